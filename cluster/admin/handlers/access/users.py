"""/v1/users: lists, creates, changes and removes users. Requests may contain secrets; answers never do."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from cluster.admin import route, route_rights
from cluster.admin.handler_request import Call, ReadView
from cluster.admin.handlers.access.awaited_change import changed, user_of
from cluster.admin.pagination import Page, after_of, limit_of, list_route
from cluster.admin.route import Route
from cluster.admin.streamed_json import Pieces
from cluster.requests.verb import Serves
from cluster.runtime.events import rfc3339
from raftmq_wire.codes import RequestCode
from statemachine.access.user_rows import User

Secret = Annotated[str, msgspec.Meta(min_length=8, max_length=256)]
UserName = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern="^[A-Za-z0-9][A-Za-z0-9._@-]*$")]


class UserView(msgspec.Struct, frozen=True, kw_only=True):
    """One user."""

    name: str
    type: Literal["Super", "Normal"]
    enabled: bool
    created: str
    """Log time at which the user was created, RFC 3339."""
    rules: int
    tokens: int


class UsersView(ReadView, frozen=True, kw_only=True):
    """The answer to `GET /v1/users`: a page of users, by name."""

    users: list[UserView]
    next: str | None
    """The value of `after` for the next page; null on the last page."""


class NewUser(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/users`. If the user exists already with the same contents, that is no error."""

    name: UserName
    secret: Secret
    type: Literal["Super", "Normal"] = "Normal"
    enabled: bool = True


class UserChange(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `PUT /v1/users/{user}`. Fields that are left out stay unchanged."""

    secret: Secret | None = None
    type: Literal["Super", "Normal"] | None = None
    enabled: bool | None = None
    keep_tokens: Annotated[list[Annotated[str, msgspec.Meta(max_length=200)]], msgspec.Meta(max_length=100)] = []
    """Labels of tokens that stay valid when the secret changes. From level 13 of the cluster on, a new secret ends all
    other tokens, including logins."""


class UserChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The user after the change; null if it was removed."""

    node: int
    user: UserView | None


def user_view(user: User) -> UserView:
    """Returns the view of a user, which has no secret."""
    return UserView(
        name=user.name,
        type="Super" if user.is_super else "Normal",
        enabled=user.enabled,
        created=rfc3339(user.created_ms),
        rules=len(user.rules),
        tokens=len(user.tokens),
    )


async def list_users(call: Call) -> Pieces:
    """Lists users by name, a page of them."""
    users, applied = call.port.access.state.users, call.port.state.applied.index
    page, after = Page(call, limit_of(call)), after_of(call)
    names = users.keys_from(after, page.items_max + 1)
    left = len(names) > page.items_max
    for name in names[: page.items_max]:
        await page.turn()
        user = users.get(name)
        if user is not None and not page.add(user_view(user)):
            left = True
            break
        after = name
    view = UsersView(
        node=call.port.config.node.id,
        consistency=call.consistency,
        applied_index=applied,
        users=[],
        next=after if left else None,
    )
    return page.answer(view, "users")


def _hint(call: Call) -> str:
    """Returns the hint for an error when a user with a secret cannot be stored."""
    if call.port.access.secrets.problem:
        return "give every node the same key: raftmq config explain auth.key_file, then raftmq reload"
    return "raftmq user list"


async def create_user(call: Call) -> UserChanged:
    """Creates a user with its secret, type and status."""
    wanted: NewUser = call.body
    access = call.port.access
    asker, is_super = access.asker(call.caller), wanted.type == "Super"
    await changed(
        lambda done: access.users.create(
            asker, wanted.name, wanted.secret, done, is_super=is_super, enabled=wanted.enabled
        ),
        _hint(call),
    )
    return _now(call, wanted.name)


async def change_user(call: Call) -> UserChanged:
    """Changes the secret, type or status of a user."""
    wanted: UserChange = call.body
    user, access = await user_of(call, call.params["user"]), call.port.access
    is_super = None if wanted.type is None else wanted.type == "Super"
    asker = access.asker(call.caller)
    await changed(
        lambda done: access.users.change(
            asker,
            user.name,
            done,
            secret=wanted.secret,
            is_super=is_super,
            enabled=wanted.enabled,
            keep_tokens=wanted.keep_tokens,
        ),
        _hint(call),
    )
    return _now(call, user.name)


async def delete_user(call: Call) -> UserChanged:
    """Removes a user with its rules and tokens, and closes its connections."""
    user, access = await user_of(call, call.params["user"]), call.port.access
    asker = access.asker(call.caller)
    await changed(lambda done: access.users.remove(asker, user.name, done))
    return _now(call, user.name)


def _now(call: Call, name: str) -> UserChanged:
    user = call.port.access.state.users.get(name)
    return UserChanged(node=call.port.config.node.id, user=None if user is None else user_view(user))


ROUTES: Final[tuple[Route, ...]] = (
    list_route("/v1/users", list_users, UsersView, route_rights.of_verb(RequestCode.AUTH_LIST_USER)),
    Route.of_verb(
        "POST",
        "/v1/users",
        create_user,
        UserChanged,
        route.CONSTANT,
        route_rights.of_verb(RequestCode.AUTH_CREATE_USER),
        NewUser,
        serves=Serves.LEADER_ALONE,
        because=route.HAS_SECRET,
    ),
    Route.of_verb(
        "PUT",
        "/v1/users/{user}",
        change_user,
        UserChanged,
        route.CONSTANT,
        route_rights.of_verb(RequestCode.AUTH_UPDATE_USER),
        UserChange,
        serves=Serves.LEADER_ALONE,
        because=route.HAS_SECRET,
    ),
    Route.of_verb(
        "DELETE",
        "/v1/users/{user}",
        delete_user,
        UserChanged,
        route.CONSTANT,
        route_rights.of_verb(RequestCode.AUTH_DELETE_USER),
    ),
)

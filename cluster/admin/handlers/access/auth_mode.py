"""/v1/auth reads and sets `auth.mode`, and shows which requests `enforce` would deny. /v1/audit lists every change of
users."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from cluster.admin import route, route_rights
from cluster.admin.errors import ApiError
from cluster.admin.handler_request import Call, ReadView
from cluster.admin.handlers.access.awaited_change import changed
from cluster.admin.pagination import Page
from cluster.admin.request_parsing import number_of
from cluster.admin.route import Route
from cluster.admin.streamed_json import Pieces
from cluster.requests.verb import Serves
from cluster.runtime.events import rfc3339
from cluster.runtime.request_limits import INT64_MAX
from raftlog.work import charge
from raftmq_wire.codes import RequestCode

BEFORE, LIMIT = "before", "limit"
AUDIT_MAX: Final = 200
SUPERS_SHOWN: Final = 100
BLOCKING: Final = ("user_key", "peer_secret")
"""Codes of findings because of which the mode cannot become `enforce`. `user_key`: a node cannot decrypt the secrets of
users. `peer_secret`: a node accepts peers that have not proven the cluster's secret."""


class DenialView(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one address that were denied for one reason, or that `enforce` would have denied."""

    address: str
    why: str
    last: str
    """The last such request: the name of its request code, or its HTTP method and address."""
    enforced: bool
    times: int
    """The number of such requests, counted since the last time that there was none for an hour."""
    at: str
    """The time of the last such request, RFC 3339."""


class AuthView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/auth`, from this node's applied state."""

    node: int
    mode: Literal["off", "observe", "enforce"]
    supers: list[str]
    """Names of enabled Supers, at most SUPERS_SHOWN."""
    total: int
    problem: str
    """The reason why this node cannot decrypt the secrets of users; "" if it can."""
    key: str
    """The id of the key that encrypts the secrets of users; "" if there is none yet."""
    keys: list[str]
    """The ids of the keys in this node's `auth.key_file`, the newest first."""
    older: int
    """Number of users whose secrets are encrypted with another key than `key`."""
    proven: bool
    """True if every peer must prove the cluster's secret to this node. While the secret is changed, the older secret
    counts too."""
    denials: list[DenialView]
    """Denials of the last hour on this node, the newest first."""


class KeyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `PUT /v1/auth/key`."""

    key: Annotated[str, msgspec.Meta(max_length=64)]
    """The id of a key in `auth.key_file` of every node."""


class KeyChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The answer after the key was changed: the id of the key that encrypts the secrets of users from now on."""

    node: int
    key: str
    older: int
    """Number of users whose secrets are still encrypted with an earlier key."""


class ModeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `PUT /v1/auth`."""

    mode: Literal["off", "observe", "enforce"]


class ModeChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The answer after `auth.mode` was set: the mode in force."""

    node: int
    mode: Literal["off", "observe", "enforce"]


class AuditView(msgspec.Struct, frozen=True, kw_only=True):
    """One change of users, rules, tokens or the mode."""

    number: int
    at: str
    """Log time of the change, RFC 3339."""
    user: str
    """The user who asked for the change; `operator` for a person with the cluster's secret."""
    address: str
    """The address of the client."""
    about: str
    action: str


class AuditPage(ReadView, frozen=True, kw_only=True):
    """The answer to `GET /v1/audit`: changes, the newest first."""

    changes: list[AuditView]
    next: int | None
    """The value of `before` for the next page; null on the last page."""


async def get_auth(call: Call) -> AuthView:
    """Returns the mode, the Supers, and the denials of the last hour on this node."""
    access = call.port.access
    supers = []
    for user in access.state.users.values():
        charge(1)
        if user.is_super and user.enabled:
            supers.append(user.name)
        if len(supers) == min(SUPERS_SHOWN, access.state.supers):
            break
    return AuthView(
        node=call.port.config.node.id,
        mode=access.state.mode.value,
        supers=supers,
        total=access.state.supers,
        problem=access.secrets.problem,
        key=access.state.key_id,
        keys=access.secrets.key_ids,
        older=_older(call),
        proven=call.port.status().secret.state in ("required", "changing"),
        denials=[
            DenialView(
                address=each.address,
                why=each.why,
                last=each.last,
                enforced=each.enforced,
                times=each.times,
                at=rfc3339(each.last_ms),
            )
            for each in access.denials.last_hour()
        ],
    )


async def set_auth(call: Call) -> ModeChanged:
    """Sets `auth.mode`; refuses `enforce` while a node cannot judge requests."""
    wanted: ModeRequest = call.body
    access = call.port.access
    if wanted.mode == "enforce":
        await call.watch.ask_around()
        for finding in call.watch.cluster():
            if finding.code in BLOCKING:
                raise ApiError("refused", f"nothing can be enforced yet: {finding.says}", finding.do_now)
    asker = access.asker(call.caller)
    await changed(lambda done: access.users.set_mode(asker, wanted.mode, done), "raftmq auth show")
    return ModeChanged(node=call.port.config.node.id, mode=access.state.mode.value)


def _older(call: Call) -> int:
    return len(call.port.access.state.under_other_keys())


async def set_key(call: Call) -> KeyChanged:
    """Sets the key that encrypts the secrets of users; the leader then encrypts them again."""
    wanted: KeyRequest = call.body
    access = call.port.access
    asker = access.asker(call.caller)
    await changed(lambda done: access.users.rotate_key(asker, wanted.key, done), "raftmq auth key")
    return KeyChanged(node=call.port.config.node.id, key=access.state.key_id, older=_older(call))


async def list_audit(call: Call) -> Pieces:
    """Lists changes of users, rules, tokens and the mode, newest first, a page of them."""
    applied = call.port.state.applied.index
    limit = number_of(call.query, LIMIT, AUDIT_MAX, AUDIT_MAX) or AUDIT_MAX
    before = number_of(call.query, BEFORE, INT64_MAX)
    page, last = Page(call, limit), None
    for row in call.port.access.state.audit(before, limit):
        await page.turn()
        view = AuditView(
            number=row.number,
            at=rfc3339(row.time_ms),
            user=row.user,
            address=row.address,
            about=row.about,
            action=row.action,
        )
        if not page.add(view):
            break
        last = row.number
    more = last is not None and next(call.port.access.state.audit(last, 1), None) is not None
    answer = AuditPage(
        node=call.port.config.node.id,
        consistency=call.consistency,
        applied_index=applied,
        changes=[],
        next=last if more else None,
    )
    return page.answer(answer, "changes")


ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "/v1/auth", get_auth, AuthView, route.page(), route_rights.USERS),
    Route.of_verb(
        "PUT",
        "/v1/auth",
        set_auth,
        ModeChanged,
        route.CONSTANT,
        route_rights.of_verb(RequestCode.SET_AUTH_MODE),
        ModeRequest,
    ),
    Route(
        "PUT",
        "/v1/auth/key",
        set_key,
        KeyChanged,
        route.CONSTANT,
        route_rights.USERS,
        Serves.LEADER,
        KeyRequest,
    ),
    Route(
        "GET",
        "/v1/audit",
        list_audit,
        AuditPage,
        route.page(AUDIT_MAX),
        route_rights.USERS,
        Serves.READ,
        asks=(BEFORE, LIMIT),
    ),
)

"""/v1/tokens: lists, makes and removes the tokens by which clients of the HTTP API identify their users.

A token is shown once, to the client that asked for it. The node that is asked makes the token. Only its SHA-256 is sent
to the leader and stored in the log.
"""

from __future__ import annotations

import base64
from typing import Annotated, Final

import msgspec

from cluster.admin import route, route_rights
from cluster.admin.access import Caller, digest_of
from cluster.admin.errors import STATUS, ApiError, ErrorView
from cluster.admin.handler_request import Call, ReadView, comes_true
from cluster.admin.handlers.access.awaited_change import changed, user_of
from cluster.admin.pagination import Page
from cluster.admin.route import Route
from cluster.admin.streamed_json import Pieces
from cluster.broker.access.user_admin import DAY_MS, TOKEN_DAYS_MAX
from cluster.requests.verb import Serves
from cluster.runtime.events import rfc3339
from cluster.runtime.request_limits import Unsigned63
from statemachine.access.access_commands import TOKENS_OF_USER_MAX

USER: Final = "user"
TOKEN_BYTES: Final = 32
Label = Annotated[str, msgspec.Meta(max_length=200)]
Days = Annotated[int, msgspec.Meta(ge=1, le=TOKEN_DAYS_MAX)]
TokenName = Annotated[str, msgspec.Meta(max_length=64)]


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """One token."""

    id: str
    """The SHA-256 of the token, in hex."""
    label: str
    ends: str
    """Log time at which the token expires, RFC 3339."""
    ended: bool


class TokensView(ReadView, frozen=True, kw_only=True):
    """The answer to `GET /v1/tokens?user=NAME`."""

    user: str
    tokens: list[TokenView]


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/tokens`."""

    user: TokenName
    label: Label = ""
    days: Days = 90


class TokenGiven(msgspec.Struct, frozen=True, kw_only=True):
    """The answer with a new token. No later answer shows the token."""

    node: int
    user: str
    id: str
    token: str
    ends: str


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `PUT /v1/tokens/{token}`, by which a node stores a token that it has made. {token} is its SHA-256."""

    user: TokenName
    label: Label
    ends_ms: Unsigned63
    """Log time at which the token expires, in ms since 1970; at most 3,650 days from now."""


class TokenChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The answer after a token was added or removed."""

    node: int
    id: str


async def list_tokens(call: Call) -> Pieces:
    """Lists the tokens of a user, including expired ones.

    ?user= names the user; without it, the tokens of the caller are listed.
    """
    access, applied = call.port.access, call.port.state.applied.index
    name = call.query.get(USER) or (call.caller.user.name if call.caller.user is not None else "")
    if not name:
        raise ApiError("bad_query", "user is missing", "add ?user=NAME")
    if not access.may_list(call.caller, name):
        raise ApiError("denied", "only a Super sees the tokens of others", "ask one who is")
    user = await user_of(call, name)
    page, now_ms = Page(call, TOKENS_OF_USER_MAX), access.log_time_ms()
    for digest in user.tokens:
        await page.turn()
        row = access.state.tokens.get(digest)
        if row is not None:
            ended = row.ends_ms <= now_ms
            page.add(TokenView(id=digest.hex(), label=row.label, ends=rfc3339(row.ends_ms), ended=ended))
    node = call.port.config.node.id
    view = TokensView(node=node, consistency=call.consistency, applied_index=applied, user=user.name, tokens=[])
    return page.answer(view, "tokens")


async def create_token(call: Call) -> TokenGiven:
    """Makes a token for a user. No later answer shows it."""
    wanted: TokenRequest = call.body
    ends_ms = call.port.access.log_time_ms() + wanted.days * DAY_MS
    token = await issued(call, call.caller, wanted.user, wanted.label, ends_ms)
    return TokenGiven(
        node=call.port.config.node.id,
        user=wanted.user,
        id=digest_of(token).hex(),
        token=token,
        ends=rfc3339(ends_ms),
    )


async def issued(call: Call, caller: Caller, name: str, label: str, ends_ms: int) -> str:
    """Makes a token of the user `name`, stores its SHA-256 in the log, and returns the token. It expires at the log
    time `ends_ms`. Raises ApiError if the user is unknown, if the caller may not give it tokens, or if the token cannot
    be stored."""
    access = call.port.access
    token = base64.urlsafe_b64encode(access.entropy(TOKEN_BYTES)).rstrip(b"=").decode()
    digest = digest_of(token)
    if call.port.services.writes_open():
        await _put(call, caller, name, digest, ends_ms, label)
    else:
        row = msgspec.json.encode(TokenRow(user=name, label=label, ends_ms=ends_ms))
        await asked_leader(call, caller, "PUT", f"/v1/tokens/{digest.hex()}", row)
        # The client may send its next request to this node, so this waits until the token is applied here.
        await comes_true(lambda: digest in access.state.tokens, call.port.waits.here_s)
    return token


async def put_token(call: Call) -> TokenChanged:
    """Stores the SHA-256 of a token that another node has made."""
    row: TokenRow = call.body
    digest = digest_in(call)
    await _put(call, call.caller, row.user, digest, row.ends_ms, row.label)
    return TokenChanged(node=call.port.config.node.id, id=digest.hex())


async def _put(call: Call, caller: Caller, name: str, digest: bytes, ends_ms: int, label: str) -> None:
    access = call.port.access
    user = access.state.users.get(name)
    if user is None and access.may_change_tokens_of(caller, 0):
        raise ApiError("not_found", f"there is no user {name[:64]}", "GET /v1/users lists all")
    if user is None or not access.may_change_tokens_of(caller, user.id):
        raise ApiError("denied", f"only a Super may give tokens of user {name[:64]}", "ask one who is")
    asker = access.asker(caller)
    await changed(lambda done: access.users.put_token(asker, user, digest, ends_ms, label, done), "raftmq user tokens")


async def delete_token(call: Call) -> TokenChanged:
    """Removes a token, which ends the streams that were opened with it."""
    access, digest = call.port.access, digest_in(call)
    row = access.state.tokens.get(digest)
    if row is None:
        raise ApiError("not_found", "there is no such token", "raftmq user tokens NAME")
    if not access.may_change_tokens_of(call.caller, row.user_id):
        raise ApiError("denied", "only a Super may take away a token of another user", "ask one who is")
    asker = access.asker(call.caller)
    await changed(lambda done: access.users.remove_token(asker, digest, done), "raftmq user tokens")
    return TokenChanged(node=call.port.config.node.id, id=digest.hex())


def digest_in(call: Call) -> bytes:
    """Returns the SHA-256 of a token from the request's path. Raises ApiError if it is not 64 hex digits."""
    text = call.params["token"]
    if len(text) != 2 * TOKEN_BYTES or set(text) - set("0123456789abcdef"):
        raise ApiError("bad_field", "the id of a token has 64 hex digits", "GET /v1/tokens?user=NAME shows them")
    return bytes.fromhex(text)


async def asked_leader(call: Call, caller: Caller, method: str, path: str, body: bytes = b"") -> None:
    """Sends the caller's request to the leader, which carries it out. Raises ApiError with the leader's error, or with
    an unknown outcome."""
    status, answer = await call.ask_leader(caller, method, path, body)
    try:
        if status < 400:
            return
        error = msgspec.json.decode(answer, type=ErrorView).error
    except msgspec.MsgspecError:
        raise ApiError("failed", f"the leader's answer cannot be read (status {status})", "ask again") from None
    raise ApiError(error.code if error.code in STATUS else "failed", error.message, error.hint)


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET",
        "/v1/tokens",
        list_tokens,
        TokensView,
        route.page(),
        route_rights.SELF,
        Serves.READ,
        asks=(USER,),
    ),
    Route(
        "POST",
        "/v1/tokens",
        create_token,
        TokenGiven,
        route.CONSTANT,
        route_rights.SELF,
        body=TokenRequest,
    ),
    Route(
        "PUT",
        "/v1/tokens/{token}",
        put_token,
        TokenChanged,
        route.CONSTANT,
        route_rights.SELF,
        Serves.LEADER,
        TokenRow,
    ),
    Route(
        "DELETE",
        "/v1/tokens/{token}",
        delete_token,
        TokenChanged,
        route.CONSTANT,
        route_rights.SELF,
        Serves.LEADER,
    ),
)

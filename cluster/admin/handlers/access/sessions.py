"""/v1/session: logs the dashboard and `raftmq login` in and out, and shows who is logged in.

A login is a token that expires. It is valid on every node, also after a change of leader, and ends when its user is
removed. The node that is asked checks the secret, and does not send it to another node. The browser keeps the token in
a cookie that scripts cannot read, and does not send it with requests from pages of other sites.
"""

from __future__ import annotations

import hmac
from typing import Annotated, Final, Literal

import msgspec

from cluster.admin import route, route_rights
from cluster.admin.access import Caller
from cluster.admin.errors import ApiError
from cluster.admin.handler_request import Call, JsonAnswer, comes_true
from cluster.admin.handlers.access.awaited_change import changed
from cluster.admin.handlers.access.tokens import asked_leader, issued
from cluster.admin.route import Route
from cluster.broker.access.user_admin import LOGIN
from cluster.runtime.events import rfc3339
from cluster.runtime.request_limits import Word
from raftlog.types import FIRST_GROUP
from statemachine.access.user_rows import NAME, User

HOURS: Final = 12
HOURS_MAX: Final = 24 * 90
HOUR_MS: Final = 3_600_000


class LogIn(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/session`."""

    user: Word
    secret: Annotated[str, msgspec.Meta(max_length=256)]
    answer: Literal["cookie", "token"] = "cookie"
    """The way in which the token is returned. `cookie`: in a cookie, for a browser. `token`: in the body of the answer,
    for other clients."""
    hours: Annotated[int, msgspec.Meta(ge=1, le=HOURS_MAX)] = HOURS


class SessionView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The user of the request as this node knows it, and the node that answers."""

    node: int
    group: int = FIRST_GROUP
    """The number of the node's group of brokers. Nodes of the first group leave it out of the JSON."""
    cluster_id: str
    mode: Literal["off", "observe", "enforce"]
    user: str | None
    """The name of the user; null if no user is logged in."""
    type: Literal["Super", "Normal", "Operator"] | None = None
    ends: str | None = None
    """The time when the login ends, RFC 3339; null if the answer is not to a login."""
    token: str | None = None
    """The new token, if `answer` of the request was `token`. No later answer shows it."""


async def get_session(call: Call) -> SessionView:
    """Returns the user who is logged in, and the node and cluster that answer."""
    return _view(call, call.caller)


async def log_in(call: Call) -> JsonAnswer:
    """Logs a user in who gives the right secret: makes a token that expires."""
    wanted: LogIn = call.body
    access, address = call.port.access, call.caller.address
    await access.turn_of(wanted.user, address)
    if why := access.why_not_now():
        raise ApiError("cannot_judge", f"this node cannot check a secret now: {why}", "ask another node")
    user = access.state.users.get(wanted.user)
    if user is None or not _is_right(call, user, wanted.secret):
        await access.note_wrong_login(address, wanted.user)
        raise ApiError(
            "unauthenticated",
            "the user or the secret is wrong, or the user is disabled",
            f"Type both again; a Super gives another secret: raftmq user password {_named(wanted.user)}",
        )
    caller = Caller(user, address)
    ends_ms = access.log_time_ms() + wanted.hours * HOUR_MS
    token = await issued(call, caller, user.name, f"{LOGIN} from {address}", ends_ms)
    view = _view(call, caller)
    if wanted.answer == "token":
        return JsonAnswer(200, msgspec.structs.replace(view, token=token, ends=rfc3339(ends_ms)))
    cookie = _cookie(call, token, wanted.hours * HOUR_MS // 1000)
    return JsonAnswer(200, msgspec.structs.replace(view, ends=rfc3339(ends_ms)), cookie)


async def log_out(call: Call) -> JsonAnswer:
    """Ends the login whose token the request carries."""
    access, digest = call.port.access, call.caller.token
    if digest and call.port.services.writes_open():
        asker = access.asker(call.caller)
        await changed(lambda done: access.users.remove_token(asker, digest, done))
    elif digest:
        await asked_leader(call, call.caller, "DELETE", f"/v1/tokens/{digest.hex()}")
        await comes_true(lambda: digest not in access.state.tokens, call.port.waits.here_s)
    return JsonAnswer(200, _view(call, Caller(None, call.caller.address)), _cookie(call, "", 0))


def _named(given: str) -> str:
    """Returns the name that the client sent if it can be a user's name, else "NAME". For texts that repeat what a
    stranger sent."""
    return given if NAME.fullmatch(given) else "NAME"


def _is_right(call: Call, user: User, secret: str) -> bool:
    known = call.port.access.secrets.of(user)
    return known is not None and hmac.compare_digest(known, secret.encode()) and user.enabled


def _cookie(call: Call, token: str, age_s: int) -> dict[str, str]:
    secure = "; Secure" if call.secure else ""
    name = call.port.access.cookie
    return {"Set-Cookie": f"{name}={token}; Path=/; Max-Age={age_s}; HttpOnly; SameSite=Strict{secure}"}


def _view(call: Call, caller: Caller) -> SessionView:
    access, user = call.port.access, caller.user
    row = access.state.tokens.get(caller.token) if caller.token else None
    kind: Literal["Super", "Normal", "Operator"] | None = "Operator" if caller.operator else None
    if user is not None:
        kind = "Super" if user.is_super else "Normal"
    return SessionView(
        node=call.port.config.node.id,
        group=call.port.config.cluster.group,
        cluster_id=access.cluster_id,
        mode=access.state.mode.value,
        user=user.name if user is not None else "operator" if caller.operator else None,
        type=kind,
        ends=None if row is None else rfc3339(row.ends_ms),
    )


ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "/v1/session", get_session, SessionView, route.CONSTANT, route_rights.ASKED),
    Route(
        "POST",
        "/v1/session",
        log_in,
        SessionView,
        route.CONSTANT,
        route_rights.OPEN,
        body=LogIn,
    ),
    Route("DELETE", "/v1/session", log_out, SessionView, route.CONSTANT, route_rights.ASKED),
)

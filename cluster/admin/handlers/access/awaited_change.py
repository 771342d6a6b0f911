"""A change of users as a handler waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cluster.admin.errors import ApiError, unknown_outcome
from cluster.admin.handler_request import Call
from cluster.admin.pagination import neighbour
from cluster.broker.access.user_admin import Told
from cluster.broker.refusal import Reason, Refused
from cluster.runtime.awaited import told
from raftlog.kept_errors import bare
from statemachine.access.users import User

_CODES: Final = {
    Reason.INVALID: "bad_field",
    Reason.ILLEGAL: "refused",
    Reason.NOT_FOUND: "not_found",
    Reason.BUSY: "busy",
    Reason.UNAVAILABLE: "failed",
}


async def changed(start: Callable[[Told], None], hint: str = "raftmq user list") -> None:
    """Starts a change and returns when it is in force. Raises ApiError."""
    try:
        refused = await told(start)
    except Refused as at_once:
        refused = bare(at_once)
    if refused is None:
        return
    if refused.reason is Reason.UNKNOWN:
        raise unknown_outcome(refused.remark)
    code = _CODES.get(refused.reason, "failed")
    fix = "type the same command again" if code in ("failed", "busy") else hint
    raise ApiError(code, f"nothing was changed: {refused.remark}", fix)


def user_of(call: Call, name: str) -> User:
    """Returns the user of that name. Raises ApiError."""
    users = call.port.access.state.users
    user = users.get(name)
    if user is None:
        near = neighbour(name, users)
        hint = f"did you mean {near}?" if near else "raftmq user list"
        raise ApiError("not_found", f"there is no user {name[:80]}", hint)
    return user

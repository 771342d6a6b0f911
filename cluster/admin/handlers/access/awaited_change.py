"""Makes a change of users for a handler, and waits for its outcome."""

from __future__ import annotations

from collections.abc import Callable

from cluster.admin.errors import ApiError
from cluster.admin.handler_request import Call
from cluster.admin.pagination import neighbour
from cluster.admin.refusals import not_refused
from cluster.broker.access.user_admin import Changed
from statemachine.access.user_rows import User


async def changed(start: Callable[[Changed], None], hint: str = "raftmq user list") -> None:
    """Starts a change of users, and returns when it is in force. Raises ApiError if it was refused, or if its outcome
    is unknown. `hint` tells the caller what to type."""
    await not_refused(start, hint, "type the same command again", lead="nothing was changed: ")


async def user_of(call: Call, name: str) -> User:
    """Returns the user of that name. Raises ApiError if there is none."""
    users = call.port.access.state.users
    user = users.get(name)
    if user is None:
        near = await neighbour(call, name, users)
        hint = f"did you mean {near}?" if near else "raftmq user list"
        raise ApiError("not_found", f"there is no user {name[:80]}", hint)
    return user

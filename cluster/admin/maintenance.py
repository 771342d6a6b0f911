"""/v1/members/{id}/maintenance: a node whose operator works on it."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cluster.admin.call import Call, ReadView, comes_true, decided
from cluster.admin.errors import ApiError, unknown_outcome
from cluster.admin.member_requests import election_wait_s, member_id
from cluster.broker.command_levels import raising
from cluster.broker.refusal import Refused
from cluster.errors import LocalError
from cluster.members.stopping import can_stop
from raftlog.types import NOBODY, NodeId
from statemachine.commands import SET_MAINTENANCE, SETTINGS_LEVEL
from statemachine.settings import TEXT_LENGTH_MAX

Note = Annotated[str, msgspec.Meta(max_length=TEXT_LENGTH_MAX)]


class MaintenanceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /v1/members/{id}/maintenance`."""

    maintenance: bool = True
    """False: it ends."""
    author: Note = ""
    reason: Note = ""
    dry_run: bool = False
    """Only answer whether it could begin."""


class MaintenanceView(ReadView, frozen=True, kw_only=True):
    """Whether a node is in maintenance: it leads nothing, and findings about it are expected."""

    id: int
    maintenance: bool
    since_ms: int | None
    """Log time; null if it is not in maintenance."""
    author: str | None
    reason: str | None
    leader: int | None
    dry_run: bool = False
    """Nothing was changed."""


async def maintain_member(call: Call) -> MaintenanceView:
    """Begins the maintenance of a node, or ends it; it lasts until then, also across restarts."""
    wanted: MaintenanceRequest = call.body
    port, node = call.port, member_id(call.params["id"])
    settings = port.state.settings
    try:
        answer = can_stop(port.changes.group(), node, settings.maintenance)
    except LocalError as error:
        raise ApiError("not_found", error.what, error.fix) from None
    if wanted.maintenance and node not in settings.maintenance and not answer.allowed:
        raise ApiError("refused", f"{'; '.join(answer.reasons)}: nothing was changed", answer.do_now)
    if wanted.dry_run:
        return _view(call, node, dry_run=True)
    try:
        run = list(raising(port.services, SETTINGS_LEVEL, "maintenance"))
    except Refused as refused:
        raise ApiError("refused", f"{refused.remark}: nothing was changed", "raftmq node list") from None
    reason = wanted.reason if wanted.maintenance else None
    run.append([SET_MAINTENANCE, int(node), port.services.log_time_ms(), wanted.author or "unknown", reason])
    _, results = await decided(lambda done: port.services.propose(run, done))
    if not results[-1].ok:
        raise ApiError("bad_command", f"{results[-1].value}: nothing was changed", "correct the request")
    if wanted.maintenance and node == port.config.node.id:
        wait_s = election_wait_s(port)
        if not await comes_true(lambda: port.services.leader_id() not in (node, NOBODY), wait_s):
            raise unknown_outcome(f"node {node} is in maintenance, and no other node leads after {wait_s:.1f} s")
    return _view(call, node)


def _view(call: Call, node: NodeId, *, dry_run: bool = False) -> MaintenanceView:
    state = call.port.state
    known = state.settings.maintenance.get(node)
    return MaintenanceView(
        node=call.port.config.node.id,
        consistency=call.consistency,
        applied_index=state.applied.index,
        id=node,
        maintenance=known is not None,
        since_ms=None if known is None else known.since_ms,
        author=None if known is None else known.author,
        reason=None if known is None else known.reason,
        leader=call.port.services.leader_id() or None,
        dry_run=dry_run,
    )

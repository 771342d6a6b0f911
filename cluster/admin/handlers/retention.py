"""/v1/retention: shows where the log begins and why older files are still there, and runs retention now."""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec.structs import replace

from cluster.admin import route, route_rights
from cluster.admin.errors import ApiError
from cluster.admin.handler_request import DRY_RUN, Call, comes_true
from cluster.admin.request_parsing import flag_of
from cluster.admin.route import Route
from cluster.config.config import Config
from cluster.requests.verb import Serves
from cluster.retention.service import Ran
from cluster.retention.views import RetentionRun, RetentionView, settings_of

_LOOK_WAIT_S, _POLL_S = 5.0, 0.01


async def get_retention(call: Call) -> RetentionView:
    """Returns the beginning of the log, the older files that this node still has, and why."""
    config = call.port.config
    view = call.port.storage.retention.view(config.node.id)
    return replace(view, settings=settings_of(config.retention), evicts=config.tier.evicts)


async def run_retention(call: Call) -> RetentionRun:
    """Removes expired messages now, whatever the hour."""
    port, dry = call.port, flag_of(call.query, DRY_RUN)
    begins = port.state.trim_position
    try:
        async with asyncio.timeout(_LOOK_WAIT_S):
            ran = await port.storage.retention.run(dry=dry)
    except TimeoutError:
        raise ApiError(
            "failed", f"the node did not come to look at it within {_LOOK_WAIT_S:.0f} s", "ask again"
        ) from None
    if ran is None:
        raise ApiError("not_leader", "this node does not lead, or does not take writes yet", "ask again")
    decision, entry, queues = ran
    if dry:
        return _plan(port.config, ran, begins)
    if decision.count and entry is None:
        raise ApiError("not_leader", "this node may not propose now", "ask again; nothing was changed")
    if entry is not None:
        await _applied(call, entry.term, entry.index)
        await comes_true(lambda: port.state.sweep is None, port.waits.trimmed_s)
    return RetentionRun(
        node=port.config.node.id,
        term=entry.term if entry else None,
        index=entry.index if entry else None,
        segments=decision.count,
        position=port.state.trim_position,
        reason=decision.reason,
        held_by=decision.held,
        sweeping=port.state.sweep is not None,
        bytes=max(0, decision.position - begins) if decision.count else 0,
        queues=queues,
        evicts=port.config.tier.evicts,
    )


def _plan(config: Config, ran: Ran, begins: int) -> RetentionRun:
    """Returns the answer to a dry run: the part of the log that a run would remove now. `begins` is the log's present
    first position."""
    decision = ran.decision
    position = max(begins, decision.position) if decision.count else begins
    return RetentionRun(
        node=config.node.id,
        term=None,
        index=None,
        segments=decision.count,
        position=position,
        reason=decision.reason,
        held_by=decision.held,
        bytes=position - begins,
        queues=ran.queues,
        evicts=config.tier.evicts,
        dry_run=True,
    )


async def _applied(call: Call, term: int, index: int) -> None:
    """Waits until the TRIM entry is applied on this node. Raises ApiError if that takes too long, or if another entry
    may have replaced it."""
    state, wait_s = call.port.state, call.port.waits.trimmed_s
    await comes_true(lambda: state.applied.index >= index or call.port.status().term != term, wait_s)
    if state.applied.index < index:
        raise ApiError("unknown_outcome", f"entry {index} (TRIM) is not applied yet", "look again: GET /v1/retention")


ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "/v1/retention", get_retention, RetentionView, route.CONSTANT, route_rights.CLUSTER_GET),
    Route(
        "POST",
        "/v1/retention/run",
        run_retention,
        RetentionRun,
        route.CONSTANT,
        route_rights.SUPER,
        Serves.LEADER,
        asks=(DRY_RUN,),
    ),
)

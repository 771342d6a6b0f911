"""/v1/upgrade: shows the levels that the members know, and raises the cluster to the newest one that all know."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

import msgspec

from cluster.admin import route, route_rights
from cluster.admin.errors import ApiError
from cluster.admin.handler_request import Call, decided
from cluster.admin.route import Route
from cluster.members.cluster_level import UpgradeView
from cluster.requests.verb import Serves
from raftlog.work import ITEM_UNITS, charge
from raftmq_wire.errors import LocalError
from statemachine.broker_state import BrokerState
from statemachine.cluster_wide.cluster_level import Finalize

GROUPS_PER_STEP, NAMED_MAX = 256, 100


class Finalized(msgspec.Struct, frozen=True, kw_only=True):
    """The answer with the level that the cluster has now, or would get in a dry run."""

    node: int
    dry_run: bool
    before: int
    level: int
    term: int | None
    index: int | None
    """Index of the log entry; null if nothing was written."""
    broadcast_groups: list[str]
    """Names of consumer groups whose consumeBroadcastEnable=false has no effect, because it was set below level 13.
    Until it is set again, their broadcasting consumers get messages. At most 100, by name."""


class FinalizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/upgrade/finalize`."""

    dry_run: bool = False
    """True to change nothing, and only return the level that the cluster would get."""


async def get_upgrade(call: Call) -> UpgradeView:
    """Returns the level of the cluster, and the highest level that each member knows."""
    view: UpgradeView = call.port.nodes.levels.view(call.port.services.monotonic_ms())
    return view


async def finalize(call: Call) -> Finalized:
    """Raises the cluster to the newest level that all voters and learners know.

    From then on, nodes of an older version are refused. The level cannot be lowered.
    """
    wanted: FinalizeRequest = call.body
    port, before = call.port, call.port.state.level
    try:
        level = port.nodes.levels.require()
    except LocalError as error:
        raise ApiError("refused", f"{error.what}: {error.why}", error.fix) from None
    view = Finalized(
        node=port.config.node.id,
        dry_run=wanted.dry_run,
        before=before,
        level=level,
        term=None,
        index=None,
        broadcast_groups=await call.done(ignored_broadcasts(port.state)),
    )
    if wanted.dry_run or level <= before:
        return view
    entry, results = await decided(lambda done: port.services.propose([Finalize(level)], done))
    return msgspec.structs.replace(view, level=results[-1].value, term=entry.term, index=entry.index)


def ignored_broadcasts(state: BrokerState) -> Generator[None, None, list[str]]:
    """Returns the names for `Finalized.broadcast_groups`, found in steps."""
    found = list[str]()
    for number, (name, group) in enumerate(state.groups.items()):
        if number % GROUPS_PER_STEP == 0:
            yield
        charge(ITEM_UNITS)
        if group.is_ignored_broadcast:
            found.append(name)
        if len(found) == NAMED_MAX:
            break
    return found


ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "/v1/upgrade", get_upgrade, UpgradeView, route.CONSTANT, route_rights.CLUSTER_GET),
    Route(
        "POST",
        "/v1/upgrade/finalize",
        finalize,
        Finalized,
        route.CONSTANT,
        route_rights.SUPER,
        Serves.LEADER,
        FinalizeRequest,
    ),
)

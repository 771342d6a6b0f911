"""/v1/consistency returns data for a comparison of nodes, which `cluster.repair.node_comparison` makes. /v1/repair
shows and repairs the damage on this node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from cluster.admin import route, route_rights
from cluster.admin.errors import ApiError, unknown_outcome
from cluster.admin.handler_request import Call, JsonAnswer, comes_true
from cluster.admin.node_interface import AdminPort
from cluster.admin.route import Route
from cluster.repair import consistency_views as views
from cluster.repair.consistency_views import (
    CHUNKS_MAX,
    SPAN_MAX,
    ChunksRequest,
    ChunksView,
    ConsistencyView,
    EntryView,
    LogView,
    MarkView,
    RepairView,
)
from cluster.requests.verb import Serves
from cluster.runtime.request_limits import INT64_MAX
from cluster.state.recovery_views import damage_views
from cluster.state.scrub import ScrubView
from raftlog.errors import DamagedLogError, OutOfRangeError, RaftLogError
from raftlog.storage.log.segmented_log import SegmentedLog
from raftmq_wire.checksums import crc32c

T = TypeVar("T")
_APPLY_POLL_S, _APPLY_WAIT_S = 0.01, 3.0
_REPAIR_WAIT_S = 5.0


async def get_consistency(call: Call) -> ConsistencyView:
    """Returns this node's log and the sums of its rows at the newest marker entry that it remembers."""
    return _view(call.port, call.port.state.sums.newest)


async def get_member_consistency(call: Call) -> ConsistencyView:
    """Returns a member's log and the sums of its rows at the newest marker entry that it remembers."""
    return _view(call.port, call.port.state.sums.newest)


async def get_member_consistency_at(call: Call) -> ConsistencyView:
    """Returns a member's log and the sums of its rows at the requested marker entry."""
    return _view(call.port, _index(call))


async def get_consistency_at(call: Call) -> ConsistencyView:
    """Returns this node's log and the sums of its rows at the requested marker entry."""
    return _view(call.port, _index(call))


def _view(port: AdminPort, index: int) -> ConsistencyView:
    sums = port.state.sums.at(index) or {}
    status = port.status()
    log = port.storage.repairs.log
    return ConsistencyView(
        node=port.config.node.id,
        applied_index=status.applied_index,
        fenced=port.storage.consistency.fenced,
        log=LogView(
            first_index=log.first_index,
            first_position=log.first_position,
            last_index=log.tail.index,
            end_position=log.tail.end_position,
            commit_index=min(status.commit_index, log.tail.index),
            damage=damage_views(log.damage.ranges),
        ),
        index=index,
        sums={family: f"{total:016x}" for family, total in sums.items()},
    )


async def mark_consistency(call: Call) -> MarkView:
    """Adds a marker entry to the log, at which every node remembers the sums of its rows."""
    port = call.port
    index = port.storage.consistency.mark()
    if index is None:
        raise ApiError("not_leader", "this node may not propose now", "ask again; nothing was changed")
    if not await comes_true(lambda: port.state.sums.at(index) is not None, _APPLY_WAIT_S):
        raise unknown_outcome(f"the marker is in the log at entry {index} and not applied after {_APPLY_WAIT_S} s")
    return MarkView(node=port.config.node.id, term=port.status().term, index=index)


async def get_entry(call: Call) -> EntryView:
    """Returns the position of one log entry, and the checksum of its header. The checksum is "" if the entry cannot be
    read."""
    log, index = call.port.storage.repairs.log, _index(call)
    try:
        (entry,) = await _blocking(log.read_entries, index, index + 1, 1)
    except OutOfRangeError as error:
        raise ApiError("not_found", str(error), "GET /v1/consistency lists the entries") from None
    except DamagedLogError as error:
        return EntryView(
            node=call.port.config.node.id,
            index=index,
            term=0,
            position=error.position,
            end_position=error.position + 1,
            header_crc="",
        )
    return EntryView(
        node=call.port.config.node.id,
        index=index,
        term=entry.term,
        position=entry.position,
        end_position=entry.end_position,
        header_crc=f"{entry.header_crc:08x}",
    )


async def sum_log(call: Call) -> ChunksView:
    """Returns checksums of a range of the log, chunk by chunk, read from disk now."""
    wanted: ChunksRequest = call.body
    span = wanted.end_position - wanted.position
    if not 0 <= span <= SPAN_MAX or span > CHUNKS_MAX * wanted.chunk_bytes:
        raise ApiError(
            "refused",
            f"{span} bytes in chunks of {wanted.chunk_bytes}",
            f"ask for at most {SPAN_MAX} bytes and {CHUNKS_MAX} chunks at a time",
        )
    crcs = await _blocking(
        chunk_crcs, call.port.storage.repairs.log, wanted.position, wanted.end_position, wanted.chunk_bytes
    )
    return ChunksView(
        node=call.port.config.node.id, position=wanted.position, chunk_bytes=wanted.chunk_bytes, crcs=crcs
    )


def chunk_crcs(log: SegmentedLog, position: int, end_position: int, chunk_bytes: int) -> list[str | None]:
    """Returns the CRC-32C of each chunk of the log's bytes on disk, from `position` to `end_position`; None for a chunk
    that cannot be read."""
    found: list[str | None] = []
    for at in range(position, end_position, chunk_bytes):
        try:
            found.append(f"{crc32c(log.read_at(at, min(chunk_bytes, end_position - at))):08x}")
        except RaftLogError:
            found.append(None)
    return found


async def get_repair(call: Call) -> RepairView:
    """Returns the damage on this node, and the peers from which it could be repaired."""
    return _repair_view(call.port)


async def repair(call: Call) -> RepairView:
    """Repairs the damage on this node from its peers, and returns what is left."""
    port = call.port
    if not port.services.routes.own.leader():
        raise ApiError(
            "no_leader",
            "without a majority it is unknown which bytes are committed",
            "start the other nodes; if they are lost for ever: raftmq unsafe-recover --plan",
        )
    port.storage.repairs.now()
    await comes_true(lambda: not port.storage.repairs.log.damage, _REPAIR_WAIT_S, 0.1)
    return _repair_view(port)


async def get_scrub(call: Call) -> ScrubView:
    """Returns the current scrub of this node, or the last one."""
    return call.port.storage.scrubber.view


async def start_scrub(call: Call) -> JsonAnswer:
    """Starts a scrub: a helper process reads all data on this node's disk again. GET shows its findings."""
    call.port.storage.scrubber.start()
    return JsonAnswer(202, call.port.storage.scrubber.view)


def _repair_view(port: AdminPort) -> RepairView:
    log, status = port.storage.repairs.log, port.status()
    return RepairView(
        node=port.config.node.id,
        leader=status.leader,
        damage=damage_views(log.damage.ranges),
        damaged_bytes=log.damage.bytes,
        vote_withheld=not port.storage.repairs.may_vote,
        fenced=port.storage.consistency.fenced,
        peers=port.storage.repairs.reachable(),
    )


def _index(call: Call) -> int:
    text = call.params["index"]
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > INT64_MAX:
        raise ApiError("bad_field", f"{text} is no index", "give the number of an entry")
    return int(text)


async def _blocking(function: Callable[..., T], *arguments: object) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET",
        "/v1/members/{id}/consistency",
        get_member_consistency,
        views.ConsistencyView,
        route.CONSTANT,
        route_rights.CLUSTER_GET,
        Serves.MEMBER,
    ),
    Route(
        "GET",
        "/v1/members/{id}/consistency/{index}",
        get_member_consistency_at,
        views.ConsistencyView,
        route.CONSTANT,
        route_rights.CLUSTER_GET,
        Serves.MEMBER,
    ),
    Route("GET", "/v1/consistency", get_consistency, views.ConsistencyView, route.CONSTANT, route_rights.CLUSTER_GET),
    Route(
        "POST",
        "/v1/consistency",
        mark_consistency,
        views.MarkView,
        route.CONSTANT,
        route_rights.SUPER,
        Serves.LEADER,
    ),
    Route(
        "GET",
        "/v1/consistency/{index}",
        get_consistency_at,
        views.ConsistencyView,
        route.CONSTANT,
        route_rights.CLUSTER_GET,
    ),
    Route(
        "GET",
        "/v1/consistency/entries/{index}",
        get_entry,
        views.EntryView,
        route.WHOLE_MESSAGE,
        route_rights.SUPER,
    ),
    Route(
        "POST",
        "/v1/consistency/log",
        sum_log,
        views.ChunksView,
        route.page(),
        route_rights.SUPER,
        body=views.ChunksRequest,
    ),
    Route("GET", "/v1/repair", get_repair, views.RepairView, route.CONSTANT, route_rights.CLUSTER_GET),
    Route("POST", "/v1/repair", repair, views.RepairView, route.CONSTANT, route_rights.SUPER),
    Route("GET", "/v1/scrub", get_scrub, ScrubView, route.CONSTANT, route_rights.CLUSTER_GET),
    Route("POST", "/v1/scrub", start_scrub, ScrubView, route.CONSTANT, route_rights.SUPER, statuses=(202,)),
)

"""/v1/tier: shows the part of the log in the object store, scrubs it, and closes the active segment so that it can be
uploaded."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from cluster.admin import route, route_rights
from cluster.admin.errors import ApiError
from cluster.admin.handler_request import Call, JsonAnswer, comes_true
from cluster.admin.route import Route
from cluster.requests.verb import Serves
from cluster.tier.scrub.scrub_service import TierScrubs, TierScrubView
from cluster.tier.scrub.scrubber import ScrubOptions
from cluster.tier.tier_service import SealView, TierSegmentsView, TierView
from raftlog.errors import RaftLogError

_APPLY_WAIT_S = 3.0
SEGMENTS_MAX = 1000
POSITION_DIGITS = 20


class TierScrubRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/tier/scrub`."""

    reads: bool = True
    """True to read every object and compare its checksum. False only compares sizes."""
    repairs: bool = False
    """True to upload objects again that are missing or damaged, if this node still has their data."""
    sweeps: bool = False
    """True to remove objects that belong to no segment, and that no segment will ever name."""
    dry_run: bool = False
    """True to upload and remove nothing, and only report the damage and the objects that would be removed
    (`orphans`)."""


async def get_tier(call: Call) -> TierView:
    """Returns the content of the tier, and the uploads that wait or fail.

    The content is as this node has applied it. Only the leader knows of uploads that fail.
    """
    tier = call.port.config.tier
    return replace(call.port.storage.tier.view(tier.url), stop_grace_ms=tier.stop_grace_ms)


async def seal_segment(call: Call) -> SealView:
    """Closes the segment that is being written, so that all of the log up to now can go to the tier."""
    port = call.port
    if not port.config.tier.url:
        raise ApiError("refused", "no tier is configured", "set tier.url on every node, then restart them")
    try:
        entry = port.storage.tier.seal()
    except RaftLogError as error:
        raise ApiError("not_leader", str(error), "ask again; nothing was changed") from None
    await comes_true(lambda: port.state.applied.index >= entry.index or port.status().term != entry.term, _APPLY_WAIT_S)
    if port.state.applied.index < entry.index or port.status().term != entry.term:
        raise ApiError("unknown_outcome", f"entry {entry.index} is not applied yet", "look again: GET /v1/tier")
    position = port.storage.tier.view("").sealed_end
    return SealView(node=port.config.node.id, term=entry.term, index=entry.index, position=position)


async def list_segments(call: Call) -> TierSegmentsView:
    """Lists the segments in the tier by this node's state, from the position `since` on."""
    since = call.query.get("since", "0")
    if not (since.isascii() and since.isdecimal() and len(since) < POSITION_DIGITS):
        raise ApiError(
            "bad_query", f"since cannot be {since[:40]}", "give a position of the log, as `next` was answered"
        )
    return call.port.storage.tier.segments(int(since), SEGMENTS_MAX)


async def get_tier_scrub(call: Call) -> TierScrubView:
    """Returns the current scrub of the tier by this node, or the last one."""
    return _scrubs(call).view


async def start_tier_scrub(call: Call) -> JsonAnswer:
    """Starts a scrub that compares the tier with the log's state; GET then shows its result."""
    wanted: TierScrubRequest = call.body
    scrubs = _scrubs(call)
    changes = not wanted.dry_run
    if not scrubs.begin(ScrubOptions(wanted.reads, wanted.repairs and changes, wanted.sweeps and changes)):
        raise ApiError("refused", "a scrub of the tier is under way", "GET /v1/tier/scrub, and ask again when it ended")
    return JsonAnswer(202, scrubs.view)


def _scrubs(call: Call) -> TierScrubs:
    scrubs = call.port.storage.tier_scrubs
    if scrubs is None:
        raise ApiError("refused", "no tier is configured", "set tier.url on every node, then restart them")
    return scrubs


ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "/v1/tier", get_tier, TierView, route.CONSTANT, route_rights.CLUSTER_GET),
    Route("POST", "/v1/tier/seal", seal_segment, SealView, route.CONSTANT, route_rights.SUPER, Serves.LEADER),
    Route(
        "GET",
        "/v1/tier/segments",
        list_segments,
        TierSegmentsView,
        route.page(SEGMENTS_MAX),
        route_rights.CLUSTER_GET,
        asks=("since",),
    ),
    Route(
        "GET", "/v1/tier/scrub", get_tier_scrub, TierScrubView, route.CONSTANT, route_rights.CLUSTER_GET, Serves.LEADER
    ),
    Route(
        "POST",
        "/v1/tier/scrub",
        start_tier_scrub,
        TierScrubView,
        route.CONSTANT,
        route_rights.SUPER,
        Serves.LEADER,
        TierScrubRequest,
        statuses=(202,),
    ),
)

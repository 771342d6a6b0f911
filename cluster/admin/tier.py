"""/v1/tier: what the object store holds of the log, and closing the segment that is being written."""

from __future__ import annotations

from cluster.admin.call import Call, comes_true
from cluster.admin.errors import ApiError
from cluster.tier.tier_views import SealView, TierView
from raftlog.errors import RaftLogError

_APPLY_WAIT_S = 3.0


async def get_tier(call: Call) -> TierView:
    """What the tier holds according to this node's state, what waits, and on the leader what fails."""
    return call.port.tier.view(call.port.config.tier.url)


async def seal_segment(call: Call) -> SealView:
    """Closes the segment that is being written, so that all of the log up to now can go to the tier."""
    port = call.port
    if not port.config.tier.url:
        raise ApiError("refused", "no tier is configured", "set tier.url on every node, then restart them")
    try:
        entry = port.tier.seal()
    except RaftLogError as error:
        raise ApiError("not_leader", str(error), "ask again; nothing was changed") from None
    await comes_true(lambda: port.state.applied.index >= entry.index or port.status().term != entry.term, _APPLY_WAIT_S)
    if port.state.applied.index < entry.index or port.status().term != entry.term:
        raise ApiError("unknown_outcome", f"entry {entry.index} is not applied yet", "look again: GET /v1/tier")
    position = port.tier.view("").sealed_end
    return SealView(node=port.config.node.id, term=entry.term, index=entry.index, position=position)

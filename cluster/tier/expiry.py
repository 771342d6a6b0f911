"""What the tier is to keep no longer: retention says up to where, and a TRIM says it to everybody (docs/adr/0066).

The rows of the state do not know where a queue goes on above a position of the log that was evicted: the index files of
the segments that go do. Their ends are named in the TRIM, so that every node says the same first offset, and none that
nobody has.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from cluster.retention.tier_policy import TierDecision
from statemachine.tier import TierSegment
from statemachine.trim import QueueMin, Trim

if TYPE_CHECKING:
    from statemachine.broker_state import BrokerState

logger = logging.getLogger(__name__)

SEGMENTS_MAX = 64
"""That one TRIM takes: their index files are read before."""
QUEUES_MAX = 4096
"""Named in one TRIM."""

QueueEnds = Callable[[Sequence[TierSegment]], Awaitable[list[QueueMin]]]
"""(segments) -> the offsets after the last of each queue that has messages there."""


class Expiry:
    """Of the leader; event loop only."""

    def __init__(
        self,
        state: BrokerState,
        ends: QueueEnds,
        decided: Callable[[], TierDecision | None],
        cut: Callable[[Trim], bool],
    ) -> None:
        """`decided`: what retention wants at present. `cut` proposes a TRIM; False while another one is under way."""
        self._state = state
        self._ends = ends
        self._decided = decided
        self._cut = cut
        self._position = 0
        self._queues: list[QueueMin] = []
        """Not named yet, of the TRIM to `_position`."""

    def begin(self) -> None:
        """This node has just become the leader."""
        self._position, self._queues = 0, []

    async def step(self) -> bool:
        """Does what is to be done next; False if there is nothing now. Raises StoreError."""
        state, decision = self._state, self._decided()
        if (
            decision is None
            or not decision.count
            or decision.position <= state.kept.position
            or state.sweep is not None
        ):
            return False
        going = [row for row in state.kept_segments if row.end <= decision.position][:SEGMENTS_MAX]
        if not going:
            return False
        last = going[-1]
        if last.end != self._position:
            self._queues = [one for one in await self._ends(going) if self._begins_below(one)]
            self._position = last.end
        named, more = tuple(self._queues[:QUEUES_MAX]), self._queues[QUEUES_MAX:]
        if more:
            trim = Trim(*state.kept, decision.reason, named)
        else:
            trim = Trim(last.end, last.span.last_index + 1, decision.reason, named)
        if not self._cut(trim):
            return False
        self._queues = more
        if not more:
            self._position = 0  # should the entry be lost, its queues are looked up again
        logger.info(
            "the tier is to keep nothing below position %d: %s; %d segments, %d queues",
            trim.position,
            trim.reason,
            len(going),
            len(named),
        )
        return True

    def _begins_below(self, one: QueueMin) -> bool:
        """The queue is there, and its messages on the nodes stay."""
        topic_id, queue_id, offset = one
        first, here = self._state.kept_offset(topic_id, queue_id), self._state.min_offset(topic_id, queue_id)
        return topic_id in self._state.topics_by_id and first < offset <= here

"""Removes objects that nobody needs any more from the store (docs/adr/0066).

A segment is removed once all of it lies below the position up to which a TRIM removed messages on all nodes and in the
tier. Each step begins when the step before it is applied or done::

  TRIM -> DELETING -> a manifest without the segment -> tier.delete_delay_ms -> objects removed -> DELETED

A reader that takes an object's name from the rows or the manifest therefore finds the object, or is told that the
segment is gone. The row is the only record of progress: the next leader begins again with the manifest, and an object
that was removed already is no error.

A DELETE that the network delays does no harm here. Uploads go on above these segments, so no leader will ever write
these names again. (An upload removes nothing: there, a delayed DELETE could hit an object that is needed.)
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from cluster.retention.tier_policy import TierDecision
from cluster.runtime.findings import Code
from cluster.tier.log_proposals import DeposedError, TierSteps
from cluster.tier.store.errors import StoreError
from statemachine.tier import TierSegment, TierState
from statemachine.trim import QueueMin, Trim

if TYPE_CHECKING:
    from cluster.runtime.context import NodeContext
    from cluster.tier.store.object_store import ObjectStore
    from cluster.tier.tier_metrics import TierMetrics
    from statemachine.broker_state import BrokerState


logger = logging.getLogger(__name__)

ENTRY_SEGMENTS_MAX = 64
"""The most segments whose step is recorded in one entry, and published in one manifest."""
STEP_SEGMENTS_MAX = 4
"""The most segments whose objects are removed before the next upload."""
PAUSE_FIRST_MS, PAUSE_MAX_MS = 1000, 60_000
STUCK_MS = 60_000
STUCK = Code("tier_deletes_stuck", "warning", "raftmq tier status")


class Deletions:
    """Removes the objects of trimmed segments. Each term of leadership has its own instance, because a new leader does
    not know what a former one published. Event loop only."""

    def __init__(
        self,
        context: NodeContext,
        state: BrokerState,
        store: ObjectStore,
        folder: str,
        steps: TierSteps,
        *,
        metrics: TierMetrics,
        publish: Callable[[int], Awaitable[object]],
        restored_from: Callable[[], int | None],
        point: Callable[[str], Awaitable[None]],
    ) -> None:
        """`folder`: the cluster's folder in the store. `publish` (term) publishes a manifest with the current rows.
        `restored_from` returns the lowest position of the log that a restore from the tier needs; None if no restore is
        foreseen. `point` passes the failpoint of a name, at which a test may hold this service or make it fail."""
        self._clock = context.clock
        self._alarms = context.alarms
        self._delay_ms = context.config.tier.delete_delay_ms
        self._state = state
        self._store = store
        self._folder = folder
        self._steps = steps
        self._metrics = metrics
        self._publish = publish
        self._restored_from = restored_from
        self._point = point
        self._due_ms: dict[int, int] = {}
        """Base of a segment that no manifest names any more -> the time at which its objects may be removed."""
        self._paused_until_ms = 0
        self._pause_ms = PAUSE_FIRST_MS
        self._failing_since_ms: int | None = None

    def end(self) -> None:
        """Clears the alarm about removals that fail, because this node does not lead any more."""
        self._alarms.clear(STUCK)

    async def step(self, term: int) -> bool:
        """Does the next step of a removal; returns False if there is nothing to do now. If the store refuses to remove
        objects, uploads go on and the removal is tried again later. Raises NotRecordedError if a step is not known to
        be in the log, and StoreError if no manifest can be published."""
        rows = self._state.tier.rows
        kept, needed = self._state.kept.position, self._restored_from()
        # A later restore needs the log from `needed` on, so the tier must keep it.
        if needed is not None:
            kept = min(kept, needed)
        going = [row for row in rows if row.state is TierState.DELETING]
        gone = [row for row in rows if row.state is not TierState.DELETING and row.end <= kept]
        # DELETING is in the log before an object is removed, so no node reads an object that may be missing.
        if gone:
            await self._record(gone[:ENTRY_SEGMENTS_MAX], TierState.DELETING, term)
            return True
        now_ms = self._clock.monotonic_ms()
        if not going or now_ms < self._paused_until_ms:
            return False
        # A manifest without the segments is published first. Readers of the older one then have the delay to finish.
        if any(row.base not in self._due_ms for row in going):
            await self._publish(term)
            now_ms = self._clock.monotonic_ms()
            self._due_ms = {row.base: self._due_ms.get(row.base, now_ms + self._delay_ms) for row in going}
        due = [row for row in going if self._due_ms[row.base] <= now_ms][:STEP_SEGMENTS_MAX]
        # Readers may still use the manifest that named these objects.
        if not due:
            return False
        try:
            for row in due:
                await self._remove(row, term)
        except (StoreError, OSError) as error:
            self._failed(error)
            return False
        # The rows go last. If this entry is lost, the next leader removes the same objects again, which is harmless.
        self._succeeded()
        await self._record(due, TierState.DELETED, term)
        return True

    async def _record(self, rows: list[TierSegment], state: TierState, term: int) -> None:
        await self._point(f"tier.{state.name.lower()}")
        await self._steps.record_all([row.base for row in rows], state, term)
        for row in rows:
            self._metrics.moved(state)
            logger.info("tier: the segment at %d is %s", row.base, state.name, extra=_fields(row.base, state))

    async def _remove(self, row: TierSegment, term: int) -> None:
        for part in row.parts:
            # This is checked before each object. A deposed leader does not know whether the next one changed the row.
            if not self._steps.leads(term):
                raise DeposedError("the objects are the next leader's business")
            await self._point("tier.remove")
            await self._store.delete(f"{self._folder}/{part.name}")

    def _failed(self, error: Exception) -> None:
        now_ms = self._clock.monotonic_ms()
        self._paused_until_ms = now_ms + self._pause_ms
        self._pause_ms = min(PAUSE_MAX_MS, 2 * self._pause_ms)
        if self._failing_since_ms is None:
            self._failing_since_ms = now_ms
        self._metrics.failed.labels(type(error).__name__).inc()
        logger.warning("tier: objects cannot be removed, which is tried again: %s: %s", type(error).__name__, error)
        if now_ms - self._failing_since_ms >= STUCK_MS:
            self._alarms.raise_alarm(
                STUCK,
                f"no object has gone from the tier for {(now_ms - self._failing_since_ms) // 1000} s: {error}. The "
                f"node keeps trying. Nothing is lost, and the store grows. May the node's keys delete there?",
            )

    def _succeeded(self) -> None:
        self._failing_since_ms, self._pause_ms = None, PAUSE_FIRST_MS
        self._alarms.clear(STUCK)


def _fields(base: int, state: TierState) -> dict[str, object]:
    return {"base": base, "state": state.name}


# Expiry of the tier: retention decides up to which position the tier gives up segments, and a TRIM tells every node
# (docs/adr/0066).
#
# The rows of the state do not say at which offset a queue continues above a position of the log that was evicted. The
# index files of the removed segments say it. The TRIM therefore names the ends of their queues, so that every node
# reports the same first offset, and none that does not exist.

SEGMENTS_MAX = 64
"""The most segments that one TRIM removes: their index files are read before it is proposed."""
QUEUES_MAX = 4096
"""The most queues that one TRIM names."""

QueueEnds = Callable[[Sequence[TierSegment]], Awaitable[list[QueueMin]]]
"""A function of segments that returns, for each queue with messages there, the offset after the last of them."""


class Expiry:
    """Trims the tier as retention decides. Runs on the leader; event loop only."""

    def __init__(
        self,
        state: BrokerState,
        ends: QueueEnds,
        decided: Callable[[], TierDecision | None],
        cut: Callable[[Trim], bool],
    ) -> None:
        """`decided` returns the cut that retention wants at present. `cut` proposes a TRIM, and returns False while
        another one is in progress."""
        self._state = state
        self._ends = ends
        self._decided = decided
        self._cut = cut
        self._position = 0
        self._queues: list[QueueMin] = []
        """Queues that must be named before the tier may be trimmed to `_position`, and that no TRIM has named yet."""

    def begin(self) -> None:
        """Forgets the TRIM that was being prepared, because this node has just become the leader."""
        self._position, self._queues = 0, []

    async def step(self) -> bool:
        """Proposes the next TRIM; returns False if there is nothing to do now. Raises StoreError."""
        state, decision = self._state, self._decided()
        if (
            decision is None
            or not decision.count
            or decision.position <= state.kept.position
            or state.sweep is not None
        ):
            return False
        # Only whole segments go, because no part of an object can be removed.
        going = [row for row in state.kept_segments if row.end <= decision.position][:SEGMENTS_MAX]
        if not going:
            return False
        last = going[-1]
        # The queues are looked up once for each position. Those that no TRIM has named yet are remembered.
        if last.end != self._position:
            self._queues = [one for one in await self._ends(going) if self._begins_below(one)]
            self._position = last.end
        named, more = tuple(self._queues[:QUEUES_MAX]), self._queues[QUEUES_MAX:]
        # An entry must not take long to apply. If there are many queues, several TRIMs name them, and only the last one
        # moves the position.
        if more:
            trim = Trim(*state.kept, decision.reason, named)
        else:
            trim = Trim(last.end, last.span.last_index + 1, decision.reason, named)
        # While another TRIM is in progress, nothing is proposed. The next call decides again.
        if not self._cut(trim):
            return False
        self._queues = more
        if not more:
            self._position = 0  # if the entry is lost, its queues are looked up again
        logger.info(
            "the tier is to keep nothing below position %d: %s; %d segments, %d queues",
            trim.position,
            trim.reason,
            len(going),
            len(named),
        )
        return True

    def _begins_below(self, one: QueueMin) -> bool:
        """Returns True if the queue exists, and if the TRIM moves its beginning without removing messages that the
        nodes hold."""
        topic_id, queue_id, offset = one
        first, here = self._state.kept_offset(topic_id, queue_id), self._state.min_offset(topic_id, queue_id)
        return topic_id in self._state.topics_by_id and first < offset <= here

"""How long the oldest message has waited for the store, and when its segment is to be closed for that (ADR 0087).

Without it only a full segment is closed, and the last messages of a quiet cluster would lie on the nodes alone for
days. Only messages count: the entries with which the tier records its own steps would else close one segment after the
other for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.tier.segment_reads import Looked, SegmentReads
from raftlog.errors import RaftLogError
from raftlog.storage.segmented_log import SegmentedLog
from raftlog.types import LogTail

if TYPE_CHECKING:
    from statemachine.broker_state import BrokerState

LOOK_BYTES_MAX = 8 << 20
"""Of the log, in one step: more than a cluster writes of other entries meanwhile."""


class AgeSeals:
    """Of the leader; event loop only."""

    def __init__(self, state: BrokerState, log: SegmentedLog, reads: SegmentReads) -> None:
        self._state = state
        self._log = log
        self._reads = reads
        self._looked = Looked(0, None)
        """Below its position there is no message that the tier lacks; at it is the first, if it says so."""

    def begin(self) -> None:
        """This node has just become the leader: the log may have changed behind what was looked through."""
        self._looked = Looked(0, None)

    @property
    def _missing_from(self) -> int:
        """Where the log begins that the tier lacks."""
        return max(self._state.tier.verified_to(self._state.trim_position), self._log.first_position)

    def window_ms(self, now_ms: int) -> int:
        """Age of the oldest message that is not verified in the tier, in log time, as far as the log was looked
        through; 0 if there is none."""
        position, first_ms = self._looked
        return 0 if first_ms is None or position < self._missing_from else max(0, now_ms - first_ms)

    async def look(self) -> None:
        """Finds the oldest message that the tier lacks, or goes some way towards it."""
        position, first_ms = self._looked
        begins = self._missing_from
        if position < begins:
            position, first_ms = begins, None
        until = position + LOOK_BYTES_MAX
        while first_ms is None and position < min(self._state.applied_mark.end_position, until):
            try:
                position, first_ms = await self._reads.first_message(position)
            except RaftLogError:
                break  # cut or trimmed at this moment, or damaged and being repaired
        self._looked = Looked(position, first_ms)

    def is_due(self, now_ms: int, after_ms: int, tail: LogTail) -> bool:
        """Whether the segment of `tail`, the leader's last entry, written or not, holds a message that waits for longer
        than `after_ms` (0: never)."""
        if not after_ms or self._looked.position < tail.segment_base:
            return False
        return self.window_ms(now_ms) >= after_ms

"""Logs slow requests: an entry that was decided late, and where the time went.

Checked once per entry, on the leader. At most one line a second; it reports how many were left out.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from cluster.replication.outcome import Outcome

if TYPE_CHECKING:
    from cluster.config.config import Config
    from cluster.replication.pending import PendingEntry

logger = logging.getLogger(__name__)

LINE_EVERY_MS = 1000
_ENDINGS = {
    Outcome.OK: "committed and applied",
    Outcome.FAIL: "known to be lost",
    Outcome.UNKNOWN: "given up as undecided",
}


class SlowRequests:
    """Event loop only."""

    def __init__(self, config: Config) -> None:
        self.late_ms = math.inf
        """An entry is slow this long after its deadline (below 0: before it); check before a call."""
        self._next_ms = 0.0
        self._left_out = 0
        self.reload(config)

    def reload(self, config: Config) -> None:
        """Other bounds from now on; an entry that is under way may be shown with the wrong time once."""
        self._bound_ms = config.log_output.slow_request_ms
        self._deadline_ms = config.send.deadline_ms
        self.late_ms = self._bound_ms - self._deadline_ms if self._bound_ms else math.inf

    def settled(self, waiter: PendingEntry, outcome: Outcome, now_ms: float) -> None:
        """Its waiters receive `outcome` now (monotonic milliseconds)."""
        if now_ms - waiter.deadline_ms < self.late_ms:
            return
        arrived_ms = waiter.deadline_ms - self._deadline_ms  # of the first request: it sets the deadline
        took_ms = now_ms - arrived_ms
        if now_ms < self._next_ms:
            self._left_out += 1
            return
        self._next_ms = now_ms + LINE_EVERY_MS
        left_out, self._left_out = self._left_out, 0
        queued_ms = max(0.0, 1000 * waiter.proposed_s - arrived_ms)
        logger.warning(
            "slow: %s in entry %d of term %d took %.0f ms: %.0f ms until it was proposed, %.0f ms until it was %s%s",
            self._what(waiter),
            waiter.id.index,
            waiter.id.term,
            took_ms,
            queued_ms,
            took_ms - queued_ms,
            _ENDINGS[outcome],
            f"; {left_out} more were slow since the line before" if left_out else "",
        )

    @staticmethod
    def _what(waiter: PendingEntry) -> str:
        if not waiter.sends:
            return f"{len(waiter.calls)} changes of topics, groups or offsets"
        return f"{len(waiter.sends)} sends (topic {waiter.sends[0].slot.name}, ...)"

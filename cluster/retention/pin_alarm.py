"""The alarm of messages that wait and keep more of the log than retention is to leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.retention.pinned import Pin
    from cluster.runtime.alarms import Alarms
    from statemachine.broker_state import BrokerState

LOG_PINNED = "log_pinned"
"""Key of the alarm."""
PATIENCE_MS = 10 * 60_000
"""A carry takes seconds; what holds the log for so long does not end by itself."""


class PinAlarm:
    """Told about each look of retention. Event loop only."""

    def __init__(self, alarms: Alarms, state: BrokerState, segment_size: int) -> None:
        """`segment_size`: bytes of log that may be held without an alarm."""
        self._alarms = alarms
        self._state = state
        self._allowed = segment_size
        self._since_ms: int | None = None

    def look(self, now_ms: int, pin: Pin | None, held_bytes: int, why: str) -> None:
        """`held_bytes`: of log that would go if nothing waited there; `why` it is not carried out of the way."""
        if pin is None or held_bytes <= self._allowed:
            self._since_ms = None
            self._alarms.clear(LOG_PINNED)
            return
        if self._since_ms is None:
            self._since_ms = now_ms
        if now_ms - self._since_ms >= PATIENCE_MS and not self._alarms.raised(LOG_PINNED):
            self._alarms.raise_alarm(LOG_PINNED, self._text(why))

    def _text(self, why: str) -> str:
        timers, halves = self._state.timers.counts.pending, self._state.halves.pending.count
        why = why or "it does not come to an end, or one of them cannot be read: see the alarms about damage"
        return (
            f"messages that wait hold more than a segment of the log that retention wants to remove, for more than "
            f"{PATIENCE_MS // 60_000} minutes: {timers} wait until they are due, {halves} for the end of their "
            f"transaction, {self._state.writes.left} for the commit of a write (raftmq writes list). "
            f"Why they are not stored further on: {why}. "
            f"Shorten timer.max_delay_ms or the delays that producers ask for, end transactions, or enlarge "
            f"retention.bytes_max or the disk. Where the log is held: raftmq retention"
        )

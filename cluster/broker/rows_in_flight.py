"""Rows of `statemachine.timers` that a leader is ending: their copies, or their removal, are proposed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from statemachine.timers import TimerName, Timers


class RowsInFlight:
    """Of one term of leadership."""

    def __init__(self) -> None:
        self.inflight: dict[TimerName, int] = {}
        """Row -> bytes of its copies."""
        self.bytes = 0
        self.unknown: set[TimerName] = set()
        """Of those, the ones whose outcome was not known in time: they end when the row is gone."""

    def begin(self, name: TimerName, size: int) -> None:
        """The row is in flight with copies of `size` bytes."""
        self.inflight[name] = size
        self.bytes += size

    def end(self, name: TimerName) -> None:
        """The row is in flight no more."""
        self.bytes -= self.inflight.pop(name, 0)
        self.unknown.discard(name)

    def end_gone(self, timers: Timers) -> None:
        """Ends those of unknown outcome that were carried out after all."""
        for name in [name for name in self.unknown if timers.get(*name) is None]:
            self.end(name)

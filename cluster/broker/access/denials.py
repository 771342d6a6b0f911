"""Denials of the last hour on this node, so that an operator sees what enforcing would stop before it does."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

HOUR_MS: Final = 3_600_000
KEPT_MAX: Final = 256
TEXT_MAX: Final = 256


class Denial(NamedTuple):
    """Requests of one address that were denied for one reason."""

    address: str
    why: str
    last: str
    """The last of them: a request code, or method and route."""
    enforced: bool
    """False if the last one passed, because nothing was enforced."""
    times: int
    last_ms: int
    """The wall clock at the last one."""


class Denials:
    """Counts denials by address and reason. The newest KEPT_MAX pairs are kept, for an hour after the last one."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._kept: OrderedDict[tuple[str, str], Denial] = OrderedDict()

    def note(self, address: str, why: str, what: str, *, enforced: bool) -> None:
        """Counts one."""
        key = address, why[:TEXT_MAX]
        before = self._kept.pop(key, None)
        times = 1 + (before.times if before is not None else 0)
        self._kept[key] = Denial(*key, what, enforced, times, self._wall_ms())
        if len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)

    def last_hour(self) -> list[Denial]:
        """Returns those of the last hour, the newest first."""
        since_ms = self._wall_ms() - HOUR_MS
        return [each for each in reversed(self._kept.values()) if each.last_ms >= since_ms]

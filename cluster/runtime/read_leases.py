"""Leases record which peers are reading which part of the log, so that the files with these parts are not removed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple


class Lease(NamedTuple):
    """States that `holder` needs the log from `position` on, until `until_ms` of the monotonic clock."""

    holder: str
    position: int
    until_ms: int


class Leases:
    """The leases of one node, in memory: after a restart, peers ask again. Any thread.

    Leases keep files, not messages. A TRIM, the log entry that removes old messages, hides these messages at once. The
    files with them are removed when no lease needs them.
    """

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._lock = threading.Lock()
        self._leases: dict[str, Lease] = {}

    def touch(self, holder: str, position: int, ms: int) -> None:
        """Records that `holder` needs everything from `position` on for `ms` from now. Replaces its former lease."""
        lease = Lease(holder, position, self._monotonic_ms() + ms)
        with self._lock:
            self._leases[holder] = lease

    def release(self, holder: str) -> None:
        """Ends the lease of `holder`."""
        with self._lock:
            self._leases.pop(holder, None)

    def lowest(self) -> int | None:
        """Returns the lowest position that a lease in force needs; None if no lease is in force."""
        return min((lease.position for lease in self.all()), default=None)

    def all(self) -> list[Lease]:
        """Returns the leases in force, lowest position first."""
        now = self._monotonic_ms()
        with self._lock:
            self._leases = {holder: lease for holder, lease in self._leases.items() if lease.until_ms > now}
            return sorted(self._leases.values(), key=lambda lease: (lease.position, lease.holder))

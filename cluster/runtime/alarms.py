"""Alarms: messages that an operator must see, one text per key, raised until they are cleared.

A key is a short fixed word (`log_damage`, `digest_mismatch`). It labels a metric, so details belong in the text. Alarms
live in memory: after a restart, each service finds out by its own files which of its alarms still hold, and raises them
again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import msgspec

from cluster.runtime.findings import Code

logger = logging.getLogger(__name__)


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """One raised alarm."""

    key: str
    text: str
    """The fault, its consequence, and the command to type."""
    since_ms: int
    """Time in milliseconds since the Unix epoch at which the alarm was raised. A change of the text does not change
    it."""
    stops_service: bool = False
    """True if clients of this node are not served while the alarm is raised; the node is then not healthy."""


class Alarms:
    """The alarms of one node. Any thread may raise and clear alarms."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        """`wall_ms` reads the node's wall clock."""
        self._wall_ms = wall_ms
        self._lock = threading.Lock()
        self._raised: dict[str, Alarm] = {}
        self._codes: dict[str, Code] = {}

    def raise_alarm(self, key: Code, text: str, *, stops_service: bool = False) -> None:
        """Raises the alarm `key`, or gives the raised one another text. Raising the same alarm again logs nothing."""
        with self._lock:
            known = self._raised.get(key)
            since_ms = self._wall_ms() if known is None else known.since_ms
            alarm = Alarm(key=str(key), text=text, since_ms=since_ms, stops_service=stops_service)
            self._raised[key] = alarm
            self._codes[key] = key
        if alarm != known:
            logger.error("alarm %s: %s", key, text)

    def clear(self, key: str) -> None:
        """Clears the alarm `key`; does nothing if it is not raised."""
        with self._lock:
            known = self._raised.pop(key, None)
        if known is not None:
            logger.warning("alarm %s ended: %s", key, known.text)

    def raised(self, key: str) -> bool:
        """Returns True if `key` is raised."""
        return key in self._raised

    def code(self, key: str) -> Code:
        """Returns the Code with which the alarm `key` was last raised, even if it was cleared since. Raises KeyError if
        it was never raised."""
        return self._codes[key]

    def all(self) -> list[Alarm]:
        """Returns all raised alarms, oldest first."""
        with self._lock:
            return sorted(self._raised.values(), key=lambda alarm: (alarm.since_ms, alarm.key))

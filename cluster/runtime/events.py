"""Events of this node, kept across restarts: elections, stalls, findings, repairs, changes.

They are for operators, not for recovery: nothing is synced, and a kill loses the events of the last second. Two files
of bounded size, DATA/events.jsonl and its predecessor DATA/events.1.jsonl, hold one JSON object per line. A line that
cannot be read is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import msgspec

logger = logging.getLogger(__name__)

FILE: Final = "events.jsonl"
OLDER: Final = "events.1.jsonl"
FILE_BYTES_MAX: Final = 512 << 10
KEPT_MAX: Final = 2_000
"""The most events that are kept in memory and shown."""
SAYS_MAX: Final = 500
"""The most characters of an event's text; the rest is cut off."""

EventKind = Literal[
    "start",
    "stop",
    "election",
    "leader",
    "stall",
    "link",
    "members",
    "repair",
    "configuration",
    "finding",
    "client",
    "change",
]
KINDS: Final[tuple[str, ...]] = EventKind.__args__  # type: ignore[attr-defined]


LAST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""


def rfc3339(ms: int) -> str:
    """Formats milliseconds since the Unix epoch as "2026-11-21T03:04:05.678Z". Formats a time after the year 9999 as
    the last millisecond of that year."""
    ms = min(ms, LAST_MS)
    return f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event as it is stored and shown."""

    id: int
    """Number of the event, ascending on this node, also across restarts. After a kill some numbers may be used
    again."""
    at: str
    """The time by this node's clock, RFC 3339, UTC."""
    node: int
    kind: str
    object: str
    """The object of the event: "cluster", "node 3", "link 1-3"."""
    says: str
    severity: Literal["info", "warning", "critical"] = "info"


class EventLog:
    """The events of one node. Event loop only, except `flush`."""

    def __init__(self, node: int, wall_ms: Callable[[], int], directory: Path | None = None) -> None:
        """`directory` contains the files; None keeps events in memory only. Blocks while it reads the files."""
        self._node = node
        self._wall_ms = wall_ms
        self._directory = directory
        self._kept: deque[Event] = deque(maxlen=KEPT_MAX)
        self._unwritten: list[Event] = []
        self._watchers: set[asyncio.Event] = set()
        self._failed = False
        if directory is not None:
            for name in (OLDER, FILE):
                self._kept.extend(_read(directory / name))
        self.last_id = max((event.id for event in self._kept), default=0)

    def note(
        self,
        kind: EventKind,
        about: str,
        says: str,
        severity: Literal["info", "warning", "critical"] = "info",
    ) -> None:
        """Records an event that happened now."""
        self.last_id += 1
        event = Event(
            id=self.last_id,
            at=rfc3339(self._wall_ms()),
            node=self._node,
            kind=kind,
            object=about,
            says=says[:SAYS_MAX],
            severity=severity,
        )
        self._kept.append(event)
        if self._directory is not None:
            self._unwritten.append(event)
        for watcher in self._watchers:
            watcher.set()

    def note_change(self, about: str, says: str) -> None:
        """Records that something was deleted or reset, and also writes it to the node's log."""
        self.note("change", about, says)
        logger.info("%s: %s", about, says)

    @property
    def watchers(self) -> int:
        """The number of open `watching` contexts."""
        return len(self._watchers)

    def kept(self) -> list[Event]:
        """Returns all events in memory, oldest first."""
        return list(self._kept)

    @contextlib.contextmanager
    def watching(self) -> Iterator[asyncio.Event]:
        """Yields an asyncio.Event that is set whenever an event is recorded; the waiter clears it."""
        watcher = asyncio.Event()
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

    # --- files -------------------------------------------------------------------------------------------------------

    def take_unwritten(self) -> list[Event]:
        """Returns the events that no earlier call has returned, for `flush`."""
        taken, self._unwritten = self._unwritten, []
        return taken

    def flush(self, events: list[Event]) -> None:
        """Appends the events to the file. Blocks; any thread, one at a time. A failure to write the file is logged
        once."""
        if self._directory is None or not events:
            return
        path = self._directory / FILE
        try:
            if path.exists() and path.stat().st_size > FILE_BYTES_MAX:
                path.replace(self._directory / OLDER)
            with path.open("ab") as file:
                file.write(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
        except OSError as error:
            if not self._failed:
                logger.warning("events cannot be written to %s: %s", path, error)
            self._failed = True


def _read(path: Path) -> list[Event]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            found.append(msgspec.json.decode(line, type=Event))
    return found

"""The append lane: everything that must be on disk before the node may speak of it.

One drain = one hard state write at most, then one append (one pwritev, one fdatasync) for all frames that gathered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple, Protocol

from raftlog.errors import StorageError
from raftlog.messages import Message
from raftlog.types import Entry, EntryId, HardState, LogTail

logger = logging.getLogger(__name__)

ZEROED_BELOW_BYTES_S = 4 << 20
"""Growth up to which the next file is zeroed ahead."""


class PersistJob(NamedTuple):
    """One Ready's share. `messages` may leave only when all of this job, and all jobs before it, are on disk."""

    hard_state: HardState | None
    entries: Sequence[Entry]
    messages: Sequence[Message]


class Persisted(NamedTuple):
    """What one drain made durable."""

    last: EntryId | None
    messages: list[Message]
    jobs: int
    bytes_written: int
    seconds: float


class Log(Protocol):
    """The part of SegmentedLog the lane writes through."""

    def append(self, entries: Sequence[Entry]) -> None:
        """Returns when the entries are durable."""

    def write_idle_mark(self) -> None:
        """Writes the sync mark alone."""

    def needs_next(self) -> bool:
        """True if the next segment file is not prepared."""


class HardStates(Protocol):
    """The part of HardStateStore the lane writes through."""

    def save(self, hard_state: HardState) -> None:
        """Returns when both slots are durable."""


class AppendLane:
    """Writes hard state and frames. Any storage error propagates: it is final for the node."""

    def __init__(self, log: Log, hard_states: HardStates, idle_mark_ms: int) -> None:
        """`idle_mark_ms`: write the sync mark alone after this long without work."""
        self._log = log
        self._hard_states = hard_states
        self.idle_after_s: float | None = idle_mark_ms / 1000

    def drain(self, batch: Sequence[PersistJob]) -> Persisted:
        """Persists the whole batch. Term and vote first: no frame of a term is on disk before the term is."""
        start = perf_counter()
        messages: list[Message] = []
        runs: list[list[Entry]] = []
        hard_state: HardState | None = None
        for job in batch:
            if job.hard_state is not None:
                hard_state = job.hard_state
            messages.extend(job.messages)
            if job.entries:
                if runs and runs[-1][-1].index + 1 == job.entries[0].index:
                    runs[-1].extend(job.entries)
                else:
                    runs.append(list(job.entries))
        if hard_state is not None:
            self._hard_states.save(hard_state)
        written = 0
        for run in runs:
            self._log.append(run)
            written += run[-1].end_position - run[0].position
        last = runs[-1][-1].id if runs else None
        return Persisted(last, messages, len(batch), written, perf_counter() - start)

    def idle(self) -> None:
        """Brings the sync mark up to date."""
        self._log.write_idle_mark()


class PrepareLane:
    """Makes the next segment file, off the append lane.

    Zeroed blocks make later syncs cheap, but writing them doubles what goes to the disk: while the log grows fast that
    costs more than it saves (docs/performance.md), so a fast log gets files that are holes.
    """

    idle_after_s: float | None = None

    def __init__(self, log: PreparesNext, clock: Callable[[], float] = perf_counter) -> None:
        """`clock`: seconds, for the speed of growth."""
        self._log = log
        self._clock = clock
        self._seen = clock(), log.tail.end_position

    def drain(self, batch: Sequence[object]) -> None:
        """Prepares one file however often it was asked. Failing is no harm yet: the roll makes its file itself."""
        if not self._log.needs_next():
            return
        now, position = self._clock(), self._log.tail.end_position
        seconds, grown = now - self._seen[0], position - self._seen[1]
        self._seen = now, position
        try:
            self._log.prepare_next(zeroed=grown <= seconds * ZEROED_BELOW_BYTES_S)
        except StorageError as error:
            logger.warning("the next segment file could not be prepared: %s", error)

    def idle(self) -> None:
        """Nothing to do."""


class PreparesNext(Protocol):
    """The part of SegmentedLog that prepares files."""

    @property
    def tail(self) -> LogTail:
        """Where the log ends."""

    def needs_next(self) -> bool:
        """True if the next segment file is not prepared."""

    def prepare_next(self, *, zeroed: bool) -> None:
        """Creates it at its full length."""

"""Implements the append lane: a worker thread that writes everything that must be on disk before the node may send
messages that depend on it.

One drain (a batch of waiting jobs) makes at most one hard state write, and then one append (one pwritev, one fdatasync)
for each run of entries whose indexes have no gap: usually one for all waiting entries.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple, Protocol

from cluster.runtime.lanes import NeverIdle
from raftlog.errors import OutOfSpaceError, StorageError
from raftlog.messages import Message, RequestVote, RequestVoteReply
from raftlog.types import Entry, EntryId, EntryType, HardState, LogTail
from statemachine.payload import has_messages

logger = logging.getLogger(__name__)

ZEROED_BELOW_BYTES_S = 4 << 20
"""The growth of the log, in bytes per second, up to which the next segment file is zeroed in advance."""
WARN_EVERY_S = 60.0


class PersistJob(NamedTuple):
    """The part of one Ready (the core's pending work) that must be persisted. `messages` may be sent only when all of
    this job, and of all jobs before it, is on disk."""

    hard_state: HardState | None
    entries: Sequence[Entry]
    messages: Sequence[Message]


RETRY = PersistJob(None, (), ())
"""A job without data, which makes the lane retry the jobs that were put aside for lack of space."""
MARK = PersistJob(None, (), ())
"""A job without data, which makes the lane write the sync mark, unless an append in the same drain does so anyway."""


class Persisted(NamedTuple):
    """The result of one drain. `last`, `messages` and `jobs` do not contain jobs for which there was no space on disk.
    These come with the result of the drain that writes them."""

    last: EntryId | None
    messages: list[Message]
    jobs: int
    bytes_written: int
    seconds: float
    parked: str = ""
    """The reason why jobs are put aside; "" if none are."""
    taken: int = 0
    """The number of jobs that were handed to this drain, RETRY and MARK included."""
    sync_seconds: float = 0.0
    """The part of `seconds` that fdatasync took."""


class WrittenLog(Protocol):
    """The part of SegmentedLog through which the append lane writes."""

    def append(self, entries: Sequence[Entry]) -> None:
        """Appends entries; returns when they are durable."""

    def write_idle_mark(self) -> None:
        """Writes the sync mark, the record that all entries so far are synced, without an entry."""

    def needs_next(self) -> bool:
        """Returns True if the next segment file has not been created in advance."""


class HardStates(Protocol):
    """The part of HardStateStore through which the append lane writes."""

    def save(self, hard_state: HardState) -> None:
        """Saves term and vote; returns when both slots are durable."""


class _Work:
    """The newest hard state, and all entries and messages in order, of jobs that are not persisted yet."""

    __slots__ = ("hard_state", "jobs", "last", "messages", "runs", "written")

    def __init__(self) -> None:
        self.hard_state: HardState | None = None
        self.runs: deque[list[Entry]] = deque()
        """Runs of entries to append; within a run, indexes ascend without a gap. A run that begins at or below the end
        of the one before it replaces conflicting entries."""
        self.messages: list[Message] = []
        self.jobs = 0
        self.written = 0
        self.last: EntryId | None = None
        """The last entry that has become durable; None if none has."""

    def add(self, job: PersistJob) -> None:
        self.jobs += 1
        if job.hard_state is not None:
            self.hard_state = job.hard_state
        self.messages.extend(job.messages)
        if job.entries:
            if self.runs and self.runs[-1][-1].index + 1 == job.entries[0].index:
                self.runs[-1].extend(job.entries)
            else:
                self.runs.append(list(job.entries))

    def take_votes(self) -> list[Message]:
        """Removes and returns the messages about votes. They depend only on term and vote, which are on disk, so they
        need not wait for space."""
        votes: list[Message] = [m for m in self.messages if isinstance(m, RequestVote | RequestVoteReply)]
        if votes:
            self.messages = [m for m in self.messages if not isinstance(m, RequestVote | RequestVoteReply)]
        return votes


class AppendLane:
    """Writes hard state and frames. Jobs for which there is no space on disk are kept and tried again; any other
    storage error propagates and is final."""

    def __init__(
        self,
        log: WrittenLog,
        hard_states: HardStates,
        idle_mark_ms: int,
        reserved: Callable[[], str] = lambda: "",
        clock: Callable[[], float] = perf_counter,
        synced_s: Callable[[], float] = float,
    ) -> None:
        """`idle_mark_ms`: after this long without work the sync mark is written alone. `reserved`: returns the reason
        why no message may be written although there is some space, "" if messages may be written. `clock`: seconds, for
        `Persisted.seconds`. `synced_s`: seconds that syncs of the log have taken so far; 0 if they are not timed."""
        self._log = log
        self._hard_states = hard_states
        self._reserved = reserved
        self._clock = clock
        self._synced_s = synced_s
        self._work = _Work()
        """The work of jobs that were put aside. Invariant: no later job is carried out before these."""
        self.idle_after_s: float | None = idle_mark_ms / 1000

    def drain(self, batch: Sequence[PersistJob]) -> Persisted:
        """Persists the jobs that were kept because of a full disk, then all of the batch. If there is no space, keeps
        all of them for a later drain; `parked` of the result is then the reason."""
        start, synced_s = self._clock(), self._synced_s()
        work, job = self._work, batch[0]
        # The usual case on a quick disk: one job with nothing but entries, while no job waits for space.
        plain = len(batch) == 1 and bool(job.entries) and job.hard_state is None and not work.jobs
        if not plain:
            self._gather(work, batch)
        try:
            if plain:
                self._append(job.entries)
            else:
                self._persist(work)
        except OutOfSpaceError as error:
            if plain:
                work.add(job)
            # A vote message is sent only if term and vote are on disk. An acknowledgement is sent only if its entries
            # are on disk.
            votes = [] if work.hard_state is not None else work.take_votes()
            return Persisted(None, votes, 0, 0, self._clock() - start, str(error), len(batch))
        spent, syncing = self._clock() - start, self._synced_s() - synced_s
        if plain:
            first, last = job.entries[0], job.entries[-1]
            written, entry_id = last.end_position - first.position, EntryId(last.term, last.index)
            return Persisted(entry_id, list(job.messages), 1, written, spent, "", 1, syncing)
        self._work = _Work()
        return Persisted(work.last, work.messages, work.jobs, work.written, spent, "", len(batch), syncing)

    def _gather(self, work: _Work, batch: Sequence[PersistJob]) -> None:
        marks = False
        for job in batch:
            if job is MARK:
                marks = True
            elif job is not RETRY:
                work.add(job)
        # The mark is written only if no job is put aside, because it says that everything before it is on disk.
        if marks and not work.jobs:
            self.idle()

    def _persist(self, work: _Work) -> None:
        """Writes term and vote, then the entries: no entry of a term is on disk before the term."""
        # The term is written first: after a crash the log must not hold entries of a term that this node does not know.
        if work.hard_state is not None:
            self._hard_states.save(work.hard_state)
            work.hard_state = None
        while work.runs:
            run = work.runs[0]
            self._append(run)
            work.written += run[-1].end_position - run[0].position
            work.last = EntryId(run[-1].term, run[-1].index)
            work.runs.popleft()

    def _append(self, run: Sequence[Entry]) -> None:
        reserved = self._reserved()
        # The last space is reserved for commands that free space: trims and changes of members may be written, messages
        # may not.
        if reserved:
            self._check_messages(run, reserved)
        self._log.append(run)

    def _check_messages(self, run: Sequence[Entry], reserved: str) -> None:
        """Raises OutOfSpaceError if the run contains messages, which may not be written while `reserved` names a
        reason."""
        if any(entry.type == EntryType.MESSAGES and has_messages(entry.payload) for entry in run):
            raise OutOfSpaceError(f"{reserved}.")

    def idle(self) -> None:
        """Writes the sync mark. Called after a time without work, and for the job MARK."""
        self._log.write_idle_mark()


class PrepareLane(NeverIdle):
    """A worker thread that creates the next segment file, so that the append lane need not.

    Zeroed blocks make later syncs cheap, but double the bytes written. While the log grows fast, that costs more than
    it saves (docs/performance.md), so a fast log gets sparse files.
    """

    def __init__(
        self,
        log: PreparesNext,
        clock: Callable[[], float] = perf_counter,
        reserved: Callable[[], str] = lambda: "",
        groups_here: Callable[[], int] = lambda: 1,
    ) -> None:
        """`clock` returns seconds, by which the growth of the log is measured. `reserved` returns the reason why
        nothing may be prepared at present, as in AppendLane. `groups_here` returns the number of groups of brokers
        whose nodes share the disk; their logs together must not grow too fast for zeroed files."""
        self._log = log
        self._clock = clock
        self._reserved = reserved
        self._groups_here = groups_here
        self._failed_s = -WARN_EVERY_S
        self._seen = clock(), log.tail.end_position

    def drain(self, batch: Sequence[object]) -> None:
        """Prepares one file, however many jobs wait. A failure is harmless: the append that needs the file then creates
        it itself."""
        # On a full disk a prepared file would take the reserved space.
        if not self._log.needs_next() or self._reserved():
            return
        now, position = self._clock(), self._log.tail.end_position
        seconds, grown = now - self._seen[0], position - self._seen[1]
        self._seen = now, position
        try:
            self._log.prepare_next(
                zeroed=grown * self._groups_here() <= seconds * ZEROED_BELOW_BYTES_S, clock=self._clock
            )
        except StorageError as error:
            if now - self._failed_s >= WARN_EVERY_S:
                self._failed_s = now
                logger.warning("the next segment file could not be prepared: %s", error)


class PreparesNext(Protocol):
    """The part of SegmentedLog that prepares segment files."""

    @property
    def tail(self) -> LogTail:
        """The end of the log."""

    def needs_next(self) -> bool:
        """Returns True if the next segment file has not been created in advance."""

    def prepare_next(self, *, zeroed: bool, clock: Callable[[], float]) -> None:
        """Creates the next segment file at its full length, filled with zeroes if `zeroed` is true and the disk is fast
        enough; else sparse."""

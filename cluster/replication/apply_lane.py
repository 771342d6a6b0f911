"""Implements the apply lane: a worker thread that applies committed entries to the state machine, one WriteBatch per
drain.

A drain is bounded, because it makes one batch and one report, and the event loop processes the report in one turn. A
node that catches up gets entries in runs of megabytes; they are cut into pieces, each of which is reported by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from time import perf_counter
from typing import NamedTuple

from cluster.replication.append_runner import StallBudget
from cluster.runtime.environment import APPLY_BYTES
from cluster.runtime.lanes import Lane, NeverIdle, ThreadLaneRunner
from raftlog.errors import ApplyStoppedError
from raftlog.types import Entry, EntryType
from statemachine.broker_state import ApplyRun, BrokerState

COMMAND_WEIGHT = 8
"""The factor by which a byte of commands is more work than a byte of messages: twenty bytes of commands may make a row
or a topic.
"""
ENTRIES_MAX = 64
"""The most entries of one piece, because even a short entry is work. A drain takes another piece only while it has
fewer entries than this. So it has fewer than twice as many (found by the simulator, seed 961500002)."""


class Applied(NamedTuple):
    """The result of one drain: the entries and, in the same order, the results of each one's commands."""

    entries: list[Entry]
    run: ApplyRun
    seconds: float


def size_of(run: Sequence[Entry]) -> int:
    """Returns the cost of applying the run of entries, as the bytes of messages that would cost as much."""
    size = run[-1].position - run[0].position + len(run[-1].payload)
    for entry in run:
        if entry.type in (EntryType.COMMAND, EntryType.CHANGE):
            size += len(entry.payload) * (COMMAND_WEIGHT - 1)
    return size


class ApplyLane(NeverIdle):
    """Applies entries to BrokerState, as its only writer. If an invariant is violated, the exception propagates and the
    node stops."""

    def __init__(
        self,
        state: BrokerState,
        drain_bytes: int = APPLY_BYTES,
        begins: Callable[[list[Entry]], bool] = lambda run: False,
    ) -> None:
        self._state = state
        self.begins = begins
        """Called with a run on the event loop, before the run is applied there. Returns True if the run may be held
        back (`HeldRuns`). Otherwise it is applied at once: nothing else is read or answered in between. Not called for
        runs that the lane's thread applies."""
        self.weight_max = drain_bytes
        """The largest weight that one drain takes (`cluster.runtime.lanes.room_of`)."""

    def weigh(self, run: list[Entry]) -> int:
        return max(size_of(run), self.weight_max * len(run) // ENTRIES_MAX)

    def drain(self, batch: Sequence[list[Entry]]) -> Applied:
        """Applies all runs of the batch as one."""
        start = perf_counter()
        entries = batch[0] if len(batch) == 1 else [entry for run in batch for entry in run]
        return Applied(entries, self._state.apply(entries), perf_counter() - start)


def pieces(run: list[Entry], size_max: int = APPLY_BYTES) -> Iterator[list[Entry]]:
    """Yields the run in pieces. Each piece has at most ENTRIES_MAX entries, whose cost (`size_of`) is at most
    `size_max`; an entry that costs more is a piece of its own."""
    if len(run) == 1 or (len(run) <= ENTRIES_MAX and size_of(run) <= size_max):
        yield run
        return
    start = size = 0
    for at, entry in enumerate(run):
        size += size_of((entry,))
        if at > start and (size > size_max or at - start == ENTRIES_MAX):
            yield run[start:at]
            start, size = at, size_of((entry,))
    yield run[start:]


# Decides where apply runs: on its lane, except that a single small run is applied at once on the loop.
#
# Passing a run to the lane and back costs two thread switches and a loop iteration, several times the cost of applying
# a small one (docs/performance.md). A small run is therefore applied inline if the lane is idle. RocksDB never syncs
# here. If inline runs take long nevertheless, because buffers are full, all runs go to the lane until the budget for
# stalls has recovered (`StallBudget`).

INLINE_BYTES_MAX = 128 * 1024
INLINE_ENTRIES_MAX = 32
"""The most entries of a run that is applied on the loop; INLINE_BYTES_MAX bounds its bytes. An entry that is appended
on the loop is applied there as well (see `append_runner`)."""
SLOW_S = 0.010
"""The seconds after which a run applied on the loop is a stall, whether it had to wait for a disk or for a core."""
HELD_MS = 10
"""The longest time for which a run is held back (`HeldRuns`)."""


def is_small(job: list[Entry], bytes_max: int = INLINE_BYTES_MAX) -> bool:
    """Returns True if a run may be applied on the loop.

    A TRIM is never small: it has few bytes, but walks every queue. A byte of commands counts more than a byte of
    messages (`size_of`).
    """
    if len(job) > INLINE_ENTRIES_MAX:
        return False
    for entry in job:
        if entry.type == EntryType.TRIM:
            return False
    return size_of(job) <= bytes_max


def begins_of(lane: object) -> Callable[[list[Entry]], bool]:
    """Returns the lane's `begins`; for a lane without it, a function that returns False."""
    begins: Callable[[list[Entry]], bool] = getattr(lane, "begins", lambda run: False)
    return begins


class HeldRuns:
    """Small committed runs whose requests are all answered and whose messages nobody waits for. They are applied
    together, a few milliseconds later, because applying one entry costs nearly as much as applying ten (ADR 0126).

    Invariant: whoever answers from the state calls `catch_up` of the lane's runner first. So nobody sees a state that
    lacks what was acknowledged.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, catch_up: Callable[[], object]) -> None:
        """`catch_up` is called HELD_MS after a run was held, if it is still held then: it must apply what `take`
        returns."""
        self._loop, self._catch_up = loop, catch_up
        self.entries: list[Entry] = []
        """The entries that are held, in the order of the log."""
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, run: list[Entry], *, may_wait: bool) -> list[Entry]:
        """Returns the entries to apply now: those that are held, then the run. If the run may wait, it is held instead
        and [] is returned, unless all together would be too much for one step on the event loop."""
        size = self._size + run[-1].end_position - run[0].position
        if not may_wait or len(self.entries) + len(run) > INLINE_ENTRIES_MAX or size > INLINE_BYTES_MAX:
            return self.take() + run
        self.entries += run
        self._size = size
        if self._timer is None:
            self._timer = self._loop.call_later(HELD_MS / 1000, self._catch_up)
        return []

    def take(self) -> list[Entry]:
        """Returns the entries that are held, which are held no longer. Returns [] if there are none."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        entries, self.entries, self._size = self.entries, [], 0
        return entries


class ApplyRunner:
    """Runs the apply lane (`lanes.LaneRunner`), on its thread or, for small runs, on the event loop."""

    def __init__(
        self,
        name: str,
        lane: Lane[list[Entry], Applied],
        loop: asyncio.AbstractEventLoop,
        on_done: Callable[[Applied], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._lane = lane
        self._begins = begins_of(lane)
        self._loop = loop
        self._on_done = on_done
        self._on_failure = on_failure
        self._on_lane = 0
        """The number of entries that the thread has received and not reported yet. Invariant: 0 whenever the loop
        applies, so that two threads never drain the lane."""
        self._stalls = StallBudget(SLOW_S)
        self._failed = False
        self._held = HeldRuns(loop, self._when_due)
        """Empty whenever the thread has runs, because entries are applied in the order of the log."""
        self._runner = ThreadLaneRunner(name, lane, loop, self._from_lane, self._fail)

    def submit(self, job: list[Entry]) -> None:
        """Applies the run: at once or soon on the loop, or on the lane's thread."""
        if self._failed:  # no entry is applied behind one that could not be
            return
        # While the thread has runs, none is applied here, because the state would skip their entries.
        if self._on_lane or not is_small(job) or self._stalls.overdrawn(self._loop.time()):
            self._when_due()
            if not self._failed:
                self._on_lane += len(job)
                self._runner.submit(job)
            return
        try:
            run = self._held.add(job, may_wait=self._begins(job))
        except Exception as error:  # noqa: BLE001 - as below
            self._fail(error)
            return
        if run:
            self._apply(run)

    def catch_up(self) -> None:
        """Applies at once what is held back. Called before anything is answered from the state. Raises
        ApplyStoppedError if that cannot be applied, or if something before it could not: the node stops, and its state
        may lack what was acknowledged."""
        if self._held.entries:
            self._apply(self._held.take())
        if self._failed:
            raise ApplyStoppedError("this node could not apply an entry of its log, and stops; ask another node")

    def _when_due(self) -> None:
        with suppress(ApplyStoppedError):  # the node knows already
            self.catch_up()

    def _fail(self, error: BaseException) -> None:
        self._failed = True
        self._on_failure(error)

    def _apply(self, run: list[Entry]) -> None:
        try:
            done = self._lane.drain([run])
        except Exception as error:  # noqa: BLE001 - as on the lane: whatever it is, the node must hear of it
            self._fail(error)
            return
        self._stalls.pay(done.seconds, self._loop.time() + done.seconds)
        self._on_done(done)

    def close(self) -> None:
        """Finishes the runs on the lane's thread. `catch_up` is called on the event loop before."""
        self._runner.close()

    def _from_lane(self, done: Applied) -> None:
        self._on_lane -= len(done.entries)
        self._on_done(done)

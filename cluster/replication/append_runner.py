"""Decides on which thread the log is written: usually on the append lane's, but a lone small append on the event loop.

Passing an append to the lane and back costs two thread switches, some futex calls, an eventfd and a turn of the loop.
On a fast disk that is more than the append itself, and while a lone message is appended there is nothing else to do. So
a small append is done at once on the loop while the disk is quick (`DiskPace`) and the lane has no work.

The promises are those of the lane: `AppendLane.drain` is called for the same jobs in the same order, and messages that
depend on a job are sent only when the drain has returned. So nothing is acknowledged earlier than on the lane.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from cluster.replication.append_lane import MARK, Persisted, PersistJob
from cluster.runtime.lanes import Lane, NeverIdle, ThreadLaneRunner
from raftlog.types import FLAG_ROLL

if TYPE_CHECKING:
    from cluster.runtime.environment import RunnerFactory


INLINE_BYTES_MAX = 128 * 1024
"""The most bytes of an append that is done on the loop; with larger ones, the loop has other work to do during the
append. A client with 64 messages of 1 KiB in flight makes an entry of 83 KiB, and has nothing to do until it is
appended."""
SLOW_S = 0.001
"""The seconds after which a drain counts as slow. A slow drain on the loop is a stall."""
SCORE_MAX = 32
SCORE_INLINE = 16
"""The score of the disk from which on the loop runs drains. Quick drains add 1, slow ones subtract SCORE_COST, so two
thirds must be quick.
"""
SCORE_COST = 2


class DiskPace:
    """Decides whether the disk is quick enough to wait for it on the event loop.

    There are two conditions. First, most recent drains must have been quick, on whichever thread they ran. Nothing is
    known at first, so the first drains run on the lane. (The average does not count: on a busy machine a few drains
    wait long for a core, on either thread.) Second, the time beyond SLOW_S that drains take on the loop must fit a
    `StallBudget`.
    """

    __slots__ = ("_score", "_stalls")

    def __init__(self) -> None:
        self._score = 0
        self._stalls = StallBudget(SLOW_S)

    def quick(self, now_s: float) -> bool:
        """Returns True if the next drain may run on the loop. `now_s`: monotonic seconds."""
        return self._score >= SCORE_INLINE and not self._stalls.overdrawn(now_s)

    def note(self, seconds: float) -> None:
        """Records how long a drain with a sync took."""
        if seconds <= SLOW_S:
            self._score = min(SCORE_MAX, self._score + 1)
        else:
            self._score = max(0, self._score - SCORE_COST)

    def note_inline(self, seconds: float, now_s: float) -> bool:
        """Records how long a drain on the loop took, which ended at `now_s`. Returns True if it was a stall."""
        self.note(seconds)
        return self._stalls.pay(seconds, now_s)


class Pace(Protocol):
    """Decides whether the event loop may run a drain itself (`DiskPace`)."""

    def quick(self, now_s: float) -> bool:
        """Returns True if the next drain may run on the loop."""

    def note(self, seconds: float) -> None:
        """Records how long a drain with a sync took."""

    def note_inline(self, seconds: float, now_s: float) -> bool:
        """Records how long a drain on the loop took, which ended at `now_s`. Returns True if it was a stall."""


class AppendRunner:
    """Runs the append lane (`lanes.LaneRunner`), on its thread or on the event loop. Event loop only, except for
    `close`."""

    def __init__(
        self,
        name: str,
        lane: Lane[PersistJob, Persisted],
        loop: asyncio.AbstractEventLoop,
        on_done: Callable[[Persisted], None],
        on_failure: Callable[[BaseException], None],
        *,
        thread: RunnerFactory = ThreadLaneRunner,
        pace: Pace | None = None,
        inline: Callable[[Sequence[PersistJob]], Persisted] | None = None,
        on_inline: Callable[[bool], object] = lambda stalled: None,
    ) -> None:
        """Takes the arguments of `lanes.ThreadLaneRunner`, but `on_done` may be called before `submit` returns.
        `thread` makes the runner for jobs that are not done on the loop. `pace`: None for a new DiskPace. `inline`: the
        function that drains on the loop; None for the lane's own `drain`. `on_inline` is called after each drain on the
        loop, with True if it was a stall."""
        self._drain = inline or lane.drain
        self._loop = loop
        self._on_done = on_done
        self._on_failure = on_failure
        self._on_inline = on_inline
        self._pace = pace or DiskPace()
        self._on_thread = 0
        """The number of jobs that the thread has received and not reported yet. Invariant: 0 whenever the loop drains,
        so that two threads never write the log, and no job overtakes another."""
        self._parked = False
        """True if the lane has put jobs aside: later jobs wait behind them, on the thread."""
        self._failed = False
        self.at_once = False
        """True if the last job was done on the loop, so the disk is quick and nothing waits on the lane."""
        self._next_index = -1
        """Index of the entry after those submitted. A job that begins at another index replaces a conflicting end of
        the log."""
        self._mark_after_s = lane.idle_after_s
        self._mark_timer: asyncio.TimerHandle | None = None
        self._worked_s = 0.0
        """The time, by the loop's clock, at which the log was written last."""
        self._runner = thread(name, _Unmarked(lane), loop, self._from_thread, self._fail)

    def submit(self, job: PersistJob) -> None:
        """Persists the job: at once on the loop, or on the lane's thread."""
        if self._failed:
            return
        entries = job.entries
        # A small job needs one write and one sync of a few pages: no vote, no cut of the log, no new file.
        small = (
            bool(entries)
            and job.hard_state is None
            and entries[0].index == self._next_index
            and entries[-1].end_position - entries[0].position <= INLINE_BYTES_MAX
        )
        if entries:
            self._next_index = entries[-1].index + 1
        if small:
            for entry in entries:
                if entry.flags & FLAG_ROLL:
                    small = False
        if self._on_thread or self._parked or not small or not self._pace.quick(self._loop.time()):
            self._to_thread(job)
            return
        try:
            done = self._drain([job])
        except Exception as error:  # noqa: BLE001 - as on the thread: whatever it is, the node must hear of it
            self._fail(error)
            return
        self.at_once = True
        self._on_inline(self._pace.note_inline(done.seconds, self._loop.time() + done.seconds))
        self._done(done)

    def close(self) -> None:
        """Finishes the jobs on the thread. May be called on any thread, once nothing is submitted any more."""
        self._runner.close()

    def _to_thread(self, job: PersistJob) -> None:
        self.at_once = False
        self._on_thread += 1
        self._runner.submit(job)

    def _from_thread(self, done: Persisted) -> None:
        self._on_thread -= done.taken
        if not (done.jobs or done.messages or done.parked):
            return  # the drain wrote nothing but a mark
        if done.bytes_written:
            self._pace.note(done.seconds)
        self._done(done)

    def _done(self, done: Persisted) -> None:
        self._parked = bool(done.parked)
        self._worked_s = self._loop.time()
        if self._mark_timer is None and self._mark_after_s is not None:
            self._mark_timer = self._loop.call_later(self._mark_after_s, self._mark)
        self._on_done(done)

    def _mark(self) -> None:
        """Writes the sync mark if nothing was appended for long enough. One timer stays set while jobs arrive: setting
        it again for each job would cost a system call per job."""
        self._mark_timer = None
        assert self._mark_after_s is not None
        if self._failed or self._on_thread or self._parked:
            return  # the thread still has jobs: their report sets the timer
        rest_s = self._worked_s + self._mark_after_s - self._loop.time()
        if rest_s > 0:
            self._mark_timer = self._loop.call_later(rest_s, self._mark)
        else:
            self._to_thread(MARK)

    def _fail(self, error: BaseException) -> None:
        self._failed = True
        self._on_failure(error)


class _Unmarked(NeverIdle):
    """Wraps the append lane for its thread. It never writes the sync mark when idle, because that could coincide with a
    drain on the loop."""

    def __init__(self, lane: Lane[PersistJob, Persisted]) -> None:
        self.drain = lane.drain


STALL_SHARE = 0.02
"""The share of all time that stalls may take from the loop. The first seconds of each stall, up to `slow_s`, do not
count."""
STALL_BURST_S = 0.010
"""The most seconds that the budget can save up: after stalls of this length in a row, all work goes to the thread."""


class StallBudget:
    """A time budget for stalls of the event loop: it grows by STALL_SHARE of the time, up to STALL_BURST_S.

    While it is overdrawn, the work belongs on a thread. So a disk that hangs for a second blocks the loop once, and
    then not again for 50 s; the first stall cannot be avoided. Work that waited a few milliseconds for a core, as is
    usual on a busy machine, stays on the loop.
    """

    __slots__ = ("_left_s", "_paid_s", "_slow_s")

    def __init__(self, slow_s: float) -> None:
        """`slow_s`: the seconds after which work is a stall; the time beyond that is taken from the budget."""
        self._slow_s = slow_s
        self._left_s = STALL_BURST_S
        self._paid_s = 0.0
        """The time at which the budget was last brought up to date, in seconds."""

    def overdrawn(self, now_s: float) -> bool:
        """Returns True if the budget is overdrawn, so that the next piece of work belongs on the thread."""
        return self._left_s < 0 and self._saved(now_s) < 0

    def pay(self, seconds: float, now_s: float) -> bool:
        """Charges work on the loop that took `seconds` and ended at `now_s`. Returns True if it was a stall."""
        if seconds <= self._slow_s:
            return False
        self._left_s = min(STALL_BURST_S, self._saved(now_s)) - (seconds - self._slow_s)
        self._paid_s = now_s
        return True

    def _saved(self, now_s: float) -> float:
        return self._left_s + (now_s - self._paid_s) * STALL_SHARE

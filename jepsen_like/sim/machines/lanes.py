"""Simulated lanes. In production a lane is a thread that works off queued jobs; one batch of work is called a drain.
Here a drain is one timer on the loop, and the report of its result to the node is another. Faults can come between the
two."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from cluster.replication.append_lane import Persisted, PersistJob
from cluster.replication.apply_lane import INLINE_BYTES_MAX, HeldRuns, begins_of, is_small
from cluster.runtime.lanes import Lane
from jepsen_like.fakes.memory_fs import PowerCut
from jepsen_like.sim.machines.lane_steps import Steps
from jepsen_like.sim.machines.loop import SimLoop
from raftlog.work import METER


class LaneWatcher(Protocol):
    """Observer of a lane's drains. `on_draining` and `on_drained` may kill the process."""

    def on_draining(self, lane: str, batch: Sequence[Any]) -> None:
        """Called when the lane is about to do the work of these jobs."""

    def on_drained(self, lane: str, batch: Sequence[Any], done: Any) -> None:
        """Called when the work is done, before the node gets the result."""

    def on_worked(self, lane: str, batch: Sequence[Any], units: int) -> None:
        """Called when the work is done, with the units that it charged the meter (`raftlog.work`)."""

    def on_reported(self, lane: str, batch: Sequence[Any], done: Any) -> None:
        """Called when the node has received the result of the drain."""

    def on_power_cut(self) -> None:
        """Called when the power failed in the middle of a drain."""


class DiskSpeed(NamedTuple):
    """Ranges of delays in seconds. A drain takes a random time in `drain_s`, and its result reaches the node a random
    time in `report_s` later. While the disk is slow, both are multiplied by its slow factor."""

    drain_s: tuple[float, float]
    report_s: tuple[float, float]


class SimLane:
    """A `cluster.runtime.lanes.LaneRunner` whose steps are timers of the node's process, so that they die and pause
    with the process."""

    polled = True
    """True, because a real event loop learns by polling that another thread is done."""

    def __init__(
        self,
        name: str,
        lane: Lane[Any, Any],
        loop: SimLoop,
        rng: random.Random,
        speed: DiskSpeed,
        slow: Callable[[], float],
        watcher: LaneWatcher,
        on_done: Callable[[Any], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`slow()` returns the factor by which every delay is multiplied now."""
        self.name, self._lane, self._loop, self._rng = name, lane, loop, rng
        self._speed, self._slow, self._watcher = speed, slow, watcher
        self._on_done, self._on_failure = on_done, on_failure
        self._jobs: list[Any] = []
        self._busy = False
        self._dead = False
        self._worked = 0
        self.stepped = 0.0
        """Share (0 to 1) of the drains that run step by step, with other events between the steps (see
        `sim/machines/lane_steps.py`)."""
        self.holds_lock: Callable[[], bool] = lambda: False
        self._steps: Steps | None = None

    def submit(self, job: Any) -> None:
        """Queues a job, and starts a drain if the lane is idle."""
        self._jobs.append(job)
        if not (self._busy or self._dead):
            self._begin()

    def close(self) -> None:
        """Finishes a drain that runs step by step, does all queued jobs at once, and does no more work from then
        on."""
        if self._steps is not None and not self._dead:
            self._steps.finish()
            self._ended(self._steps, [])
        jobs, self._jobs = self._jobs, []
        if jobs and not self._dead:
            self._drain_all(jobs)
        self._dead = True

    def _begin(self) -> None:
        self._busy = True
        self._loop.call_later(self._rng.uniform(*self._speed.drain_s) * self._slow(), self._drain)

    def _drain(self) -> None:
        if self._dead:
            return
        jobs = self._take()
        self._worked += 1
        if self.stepped and self._rng.random() < self.stepped:
            self._watcher.on_draining(self.name, jobs)
            self._steps = Steps(partial(self._lane.drain, jobs), self.holds_lock)
            self._advance(self._steps, jobs)
        else:
            before = METER.units
            done = self._drain_all(jobs)
            METER.units = before  # in production a thread does this work, not the loop
            self._drained(jobs, done)

    def _take(self) -> list[Any]:
        """Takes queued jobs for one drain, as many as the lane does at once (`cluster.runtime.lanes.room_of`)."""
        weigh: Callable[[Any], int] | None = getattr(self._lane, "weigh", None)
        count = len(self._jobs)
        if weigh is not None and count > 1:
            left: int = self._lane.weight_max  # type: ignore[attr-defined]  # it comes with `weigh`
            count = 0
            while left > 0 and count < len(self._jobs):
                left -= weigh(self._jobs[count])
                count += 1
        jobs, self._jobs = self._jobs[:count], self._jobs[count:]
        return jobs

    def _advance(self, steps: Steps, jobs: list[Any]) -> None:
        """Runs one step of a drain and schedules the next, so that other events happen in between."""
        if self._dead or steps is not self._steps:
            return
        if steps.advance():
            self._drained(jobs, self._ended(steps, jobs))
        else:
            self._loop.call_later(
                self._rng.uniform(0.0, self._speed.drain_s[1]) * self._slow(), self._advance, steps, jobs
            )

    def _ended(self, steps: Steps, jobs: list[Any]) -> Any:
        """Returns the result of a drain that ran step by step; its failure is recorded like that of any other drain."""
        self._steps = None
        self._watcher.on_worked(self.name, jobs, steps.units)
        if steps.error is not None:
            self._failed(steps.error)
        return steps.result

    def abandon(self) -> None:
        """Ends the lane in the middle of a drain, because its process has ended."""
        steps, self._steps = self._steps, None
        self._dead = True
        if steps is not None:
            steps.abandon()

    def _drained(self, jobs: list[Any], done: Any) -> None:
        if not self._dead:
            self._watcher.on_drained(self.name, jobs, done)
            delay = self._rng.uniform(*self._speed.report_s) * self._slow()
            self._loop.call_later(delay, self._report, jobs, done)

    def _drain_all(self, jobs: list[Any]) -> Any:
        self._watcher.on_draining(self.name, jobs)
        if self._loop.turn_bound is None:
            return self._try(partial(self._lane.drain, jobs))
        before = METER.units
        done = self._try(partial(self._lane.drain, jobs))
        self._watcher.on_worked(self.name, jobs, METER.units - before)
        return done

    def _try(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - a lane's failure is the node's to hear
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        self._dead = True
        if isinstance(error, PowerCut):
            self._watcher.on_power_cut()
        else:
            self._on_failure(error)

    def _report(self, jobs: list[Any], done: Any) -> None:
        if self._dead:
            return
        self._busy = False
        self._on_done(done)
        self._watcher.on_reported(self.name, jobs, done)
        if self._busy:
            return  # `_on_done` or the watcher began another drain, and only one may run at a time
        if self._jobs:
            self._begin()
        elif self._lane.idle_after_s is not None:
            self._loop.call_later(self._lane.idle_after_s, self._idle, self._worked)

    def _idle(self, worked: int) -> None:
        if not (self._dead or self._busy or self._jobs) and worked == self._worked:
            self._try(self._lane.idle)


class SimApplyLane(SimLane):
    """The apply lane. In production it does a small job at once when it is idle (`cluster.replication.apply_lane`);
    here chance decides whether it does."""

    inline = 0.0
    """Share (0 to 1) of the small jobs that are done within `submit`, if the lane is idle."""
    inline_bytes = INLINE_BYTES_MAX
    """Largest size of a small job, in bytes."""
    held: Callable[[], bool] = staticmethod(lambda: False)
    """Function that returns True while a fault holds apply back: then no job is done within `submit`."""

    _runs: HeldRuns | None = None

    def submit(self, job: Any) -> None:
        """Does a small job at once or soon, if the lane is idle and chance says so; otherwise queues it."""
        chosen = self._rng.random() < self.inline and is_small(job, self.inline_bytes)
        if self._busy or self._dead or self._jobs or not chosen or self.held():
            self.catch_up()
            super().submit(job)
            return
        if self._runs is None:
            self._runs = HeldRuns(self._loop, self.catch_up)
        if run := self._runs.add(job, may_wait=begins_of(self._lane)(job)):
            self._do(run)

    def catch_up(self) -> None:
        """Does at once what is held back, as in production."""
        if self._runs is not None and self._runs.entries:
            self._do(self._runs.take())

    def _do(self, job: Any) -> None:
        if self._dead:
            return
        self._worked += 1
        done = self._drain_all([job])
        if not self._dead:
            self._watcher.on_drained(self.name, [job], done)
            self._on_done(done)
            self._watcher.on_reported(self.name, [job], done)


class SimPace:
    """A `cluster.replication.append_runner.Pace` that decides at random whether an append runs on the event loop. The
    first append after the disk became slow may still do so, as in production; then the process pauses for the length of
    the drain."""

    def __init__(
        self,
        rng: random.Random,
        inline: float,
        speed: DiskSpeed,
        slow: Callable[[], float],
        stall: Callable[[float], None],
    ) -> None:
        """`inline`: share (0 to 1) of the eligible drains that run on the event loop. `slow()` returns the factor by
        which every delay is multiplied now. `stall` pauses the process for that many seconds."""
        self._rng, self._inline, self._speed, self._slow, self._stall = rng, inline, speed, slow, stall
        self._was_slow = False

    def quick(self, now_s: float) -> bool:
        """Returns True if the next append is to be written on the event loop. Chance decides, but while the disk stays
        slow no append is."""
        factor = self._slow()
        was_slow, self._was_slow = self._was_slow, factor > 1
        if (was_slow and self._was_slow) or self._rng.random() >= self._inline:
            return False
        if self._was_slow:
            self._stall(self._rng.uniform(*self._speed.drain_s) * factor)
        return True

    def note(self, seconds: float) -> None:
        """Does nothing: this pace learns nothing from the time that an append took."""

    def note_inline(self, seconds: float, now_s: float) -> bool:
        """Does nothing: this pace learns nothing from the time that an append on the event loop took. Returns False."""
        return False


class WatchedAppends:
    """The append lane when the event loop drains it: tells the watcher of these drains as a SimLane does."""

    def __init__(self, lane: Lane[PersistJob, Persisted], watcher: LaneWatcher, alive: Callable[[], bool]) -> None:
        """`alive()` returns True while the process is alive."""
        self._lane, self._watcher, self._alive = lane, watcher, alive
        self._last: tuple[Sequence[PersistJob], Persisted] | None = None

    def drain(self, batch: Sequence[PersistJob]) -> Persisted:
        """Carries out the work of the batch, see Lane. Raises PowerCut if the process died during it: the rest of its
        turn never happens."""
        self._watcher.on_draining("append", batch)
        try:
            done = self._lane.drain(batch)
        except PowerCut:
            self._watcher.on_power_cut()
            raise
        self._watcher.on_drained("append", batch, done)
        if not self._alive():
            raise PowerCut("the process is gone")
        self._last = batch, done
        return done

    def reported(self, done: Persisted) -> None:
        """Reports to the watcher that the node has received the result of a drain, if the last drain ran on the event
        loop."""
        last, self._last = self._last, None
        if last is not None:
            self._watcher.on_reported("append", *last)

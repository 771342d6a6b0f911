"""A lane as scheduled steps on the loop: a drain after a delay, its report after another, faults in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from cluster.replication.append_lane import Persisted, PersistJob
from cluster.replication.apply_lane import INLINE_BYTES_MAX, is_small
from cluster.runtime.lanes import Lane
from jepsen_like.fakes.memory_fs import PowerCut
from jepsen_like.sim.machines.loop import SimLoop
from jepsen_like.sim.machines.steps import Steps
from raftlog.work import METER


class LaneWatcher(Protocol):
    """An observer of drains; it may kill the process in either call."""

    def on_draining(self, lane: str, batch: Sequence[Any]) -> None:
        """The lane begins the work."""

    def on_drained(self, lane: str, batch: Sequence[Any], done: Any) -> None:
        """The work is done and nobody knows it yet."""

    def on_worked(self, lane: str, batch: Sequence[Any], units: int) -> None:
        """The work charged the meter so many units."""

    def on_reported(self, lane: str, batch: Sequence[Any], done: Any) -> None:
        """The node has heard of it."""

    def on_power_cut(self) -> None:
        """The power went in the middle of a drain."""


class DiskSpeed(NamedTuple):
    """Seconds: a drain takes something in `drain_s`, and `slow` times as long while the disk is slow."""

    drain_s: tuple[float, float]
    report_s: tuple[float, float]


class SimLane:
    """A `cluster.runtime.lanes.LaneRunner` whose steps are timers of the node's process: they die and stand still with
    it."""

    polled = True
    """The loop hears of another thread by polling."""

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
        """`slow()`: the factor on every delay now."""
        self.name, self._lane, self._loop, self._rng = name, lane, loop, rng
        self._speed, self._slow, self._watcher = speed, slow, watcher
        self._on_done, self._on_failure = on_done, on_failure
        self._jobs: list[Any] = []
        self._busy = False
        self._dead = False
        self._worked = 0
        self.stepped = 0.0
        """Share of the drains that are taken apart (see `sim/machines/steps.py`)."""
        self.holds_lock: Callable[[], bool] = lambda: False
        self._steps: Steps | None = None

    def submit(self, job: Any) -> None:
        """Queues a job, and begins a drain if the lane is idle."""
        self._jobs.append(job)
        if not (self._busy or self._dead):
            self._begin()

    def close(self) -> None:
        """Does what is queued, and takes no more."""
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
            METER.units = before  # it was a thread's work, not the loop's
            self._drained(jobs, done)

    def _take(self) -> list[Any]:
        """Takes the jobs that have gathered, as many as the lane does at once (`cluster.runtime.lanes.room_of`)."""
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
        """Takes one step of a drain; other events happen before the next."""
        if self._dead or steps is not self._steps:
            return
        if steps.advance():
            self._drained(jobs, self._ended(steps, jobs))
        else:
            self._loop.call_later(
                self._rng.uniform(0.0, self._speed.drain_s[1]) * self._slow(), self._advance, steps, jobs
            )

    def _ended(self, steps: Steps, jobs: list[Any]) -> Any:
        """Returns the result of the drain; its failure is noted as that of any other."""
        self._steps = None
        self._watcher.on_worked(self.name, jobs, steps.units)
        if steps.error is not None:
            self._failed(steps.error)
        return steps.result

    def abandon(self) -> None:
        """The process is gone in the middle of a drain."""
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
        except BaseException as error:  # noqa: BLE001 - a lane's failure is the node's to hear
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
            return  # `_on_done` or the watcher began another drain: none may run beside it
        if self._jobs:
            self._begin()
        elif self._lane.idle_after_s is not None:
            self._loop.call_later(self._lane.idle_after_s, self._idle, self._worked)

    def _idle(self, worked: int) -> None:
        if not (self._dead or self._busy or self._jobs) and worked == self._worked:
            self._try(self._lane.idle)


class SimApplyLane(SimLane):
    """The apply lane, which does small work at once when it has none (`cluster.replication.apply_lane`): here with a
    chance."""

    inline = 0.0
    """Share of the small work that is done in the call that brings it, if it finds the lane idle."""
    inline_bytes = INLINE_BYTES_MAX
    """Most bytes of work that is small."""
    held: Callable[[], bool] = staticmethod(lambda: False)
    """Returns True if apply is held back: then it is never done at once."""

    def submit(self, job: Any) -> None:
        """Does a small job at once, by chance, if the lane is idle; queues it otherwise."""
        chosen = self._rng.random() < self.inline and is_small(job, self.inline_bytes)
        if self._busy or self._dead or self._jobs or not chosen or self.held():
            super().submit(job)
            return
        self._worked += 1
        done = self._drain_all([job])
        if not self._dead:
            self._watcher.on_drained(self.name, [job], done)
            self._on_done(done)
            self._watcher.on_reported(self.name, [job], done)


class SimPace:
    """A `cluster.replication.append_runner.Pace` by chance. A disk that becomes slow is met once on the loop, as the
    product meets it: the whole process stands still for the length of the drain."""

    def __init__(
        self,
        rng: random.Random,
        inline: float,
        speed: DiskSpeed,
        slow: Callable[[], float],
        stall: Callable[[float], None],
    ) -> None:
        """`inline`: how often a drain that may run on the loop does; `slow()`: the factor on every delay now; `stall`
        lets the process stand still for so many seconds."""
        self._rng, self._inline, self._speed, self._slow, self._stall = rng, inline, speed, slow, stall
        self._was_slow = False

    def quick(self, now_s: float) -> bool:
        """Returns True if the next append is written on the loop: chance decides; while the disk stays slow,
        none is.
        """
        factor = self._slow()
        was_slow, self._was_slow = self._was_slow, factor > 1
        if (was_slow and self._was_slow) or self._rng.random() >= self._inline:
            return False
        if self._was_slow:
            self._stall(self._rng.uniform(*self._speed.drain_s) * factor)
        return True

    def note(self, seconds: float) -> None:
        """Learns nothing from the time that an append took."""

    def note_inline(self, seconds: float, now_s: float) -> bool:
        """Learns nothing from the time that an append on the loop took; returns False."""
        return False


class WatchedAppends:
    """The append lane as the loop drains it: the watcher hears of these drains as it does of a SimLane's."""

    def __init__(self, lane: Lane[PersistJob, Persisted], watcher: LaneWatcher, alive: Callable[[], bool]) -> None:
        """`alive()`: whether the process is."""
        self._lane, self._watcher, self._alive = lane, watcher, alive
        self._last: tuple[Sequence[PersistJob], Persisted] | None = None

    def drain(self, batch: Sequence[PersistJob]) -> Persisted:
        """See Lane. Raises PowerCut if the process is gone: what follows in its turn never happened."""
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
        """The node has heard of a drain, of this kind or another."""
        last, self._last = self._last, None
        if last is not None:
            self._watcher.on_reported("append", *last)

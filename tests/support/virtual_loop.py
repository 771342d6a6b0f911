"""An asyncio loop whose time is a number: waiting costs nothing, and the same seed gives the same run."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable
from typing import Generic, TypeVar

from cluster.runtime.lanes import Lane

Job = TypeVar("Job")
Done = TypeVar("Done")

START_WALL_MS = 1_700_000_000_000


class _Selector(selectors.DefaultSelector):
    """Instead of waiting for files it moves the loop's clock."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing is scheduled: in virtual time this loop would wait for ever")
        self.loop.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs until told to stop; `now` is its time in seconds."""

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self.now = 0.0
        super().__init__(selector)
        self.errors: list[BaseException] = []
        self.set_exception_handler(self._on_error)

    def time(self) -> float:
        return self.now

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        self.errors.append(error if isinstance(error, BaseException) else RuntimeError(str(context["message"])))

    def run_until(self, reached: Callable[[], object], limit_s: float, what: str = "") -> None:
        """Lets time pass until `reached` is true. Fails after `limit_s`, or at the first error of a callback."""
        end = self.now + limit_s
        while not reached():
            assert self.now < end, f"not reached within {limit_s} s of virtual time: {what or reached}"
            self.run_for(0.005)

    def run_for(self, seconds: float) -> None:
        """Lets so much time pass."""
        self.call_later(seconds, self.stop)
        self.run_forever()
        if self.errors:
            raise self.errors[0]


class VirtualClock:
    """`cluster.runtime.clock.Clock` over the loop; `skew_ms` is this node's own wall clock's error."""

    def __init__(self, loop: VirtualLoop, skew_ms: int = 0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms

    def wall_ms(self) -> int:
        return START_WALL_MS + int(self._loop.now * 1000) + self.skew_ms

    def monotonic_ms(self) -> int:
        return int(self._loop.now * 1000)

    def monotonic_s(self) -> float:
        return self._loop.now


class StepLaneRunner(Generic[Job, Done]):
    """A LaneRunner on the loop: a drain takes what has gathered, after a delay, and reports after another."""

    def __init__(
        self,
        lane: Lane[Job, Done],
        loop: VirtualLoop,
        rng: random.Random,
        on_done: Callable[[Done], None],
        on_failure: Callable[[BaseException], None],
        delay_s: tuple[float, float],
    ) -> None:
        self._lane = lane
        self._loop = loop
        self._rng = rng
        self._on_done = on_done
        self._on_failure = on_failure
        self.delay_s = delay_s
        self.held = False
        self.silent = False
        """What is done is not reported until `speak`: as if a sync took long."""
        self._unsaid: list[Done] = []
        self._jobs: list[Job] = []
        self._busy = False
        self._dead = False
        self._worked = 0

    def submit(self, job: Job) -> None:
        self._jobs.append(job)
        self._start()

    def hold(self) -> None:
        """No drain begins until `release`."""
        self.held = True

    def release(self) -> None:
        self.held = False
        self._start()

    def speak(self) -> None:
        """Reports what was kept back, and from now on at once."""
        self.silent = False
        unsaid, self._unsaid = self._unsaid, []
        for done in unsaid:
            self._report(done)

    def close(self) -> None:
        """As a kill: what is queued is lost, nothing is reported any more."""
        self._dead = True

    def _start(self) -> None:
        if self._jobs and not (self._busy or self.held or self._dead):
            self._busy = True
            self._loop.call_later(self._rng.uniform(*self.delay_s), self._drain)

    def _drain(self) -> None:
        if self._dead:
            return
        if self.held:
            self._busy = False
            return
        jobs, self._jobs = self._jobs, []
        self._worked += 1
        try:
            done = self._lane.drain(jobs)
        except BaseException as error:  # noqa: BLE001 - a lane's failure is the node's to hear
            self._dead = True
            self._on_failure(error)
            return
        self._loop.call_later(self._rng.uniform(*self.delay_s) / 4, self._report, done)

    def _report(self, done: Done) -> None:
        if self._dead:
            return
        if self.silent:
            self._unsaid.append(done)
            return
        self._busy = False
        self._on_done(done)
        self._start()
        if self._lane.idle_after_s is not None and not self._busy:
            self._loop.call_later(self._lane.idle_after_s, self._idle, self._worked)

    def _idle(self, worked: int) -> None:
        if not (self._dead or self._busy or self._jobs) and worked == self._worked:
            self._lane.idle()

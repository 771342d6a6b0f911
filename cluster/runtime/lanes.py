"""Lanes: work that must not run on the event loop (disk, RocksDB), in order, in batches of all jobs that wait.

A lane is a plain class; a LaneRunner decides where it runs: a thread here, a scheduled step with injected delays and
faults in the simulator. The runner calls back on the loop, in submission order.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, TypeVar

Job = TypeVar("Job")
Done = TypeVar("Done")
JobIn = TypeVar("JobIn", contravariant=True)
DoneOut = TypeVar("DoneOut", covariant=True)

logger = logging.getLogger(__name__)


class Lane(Protocol[JobIn, DoneOut]):
    """The work of a lane. Raising is final: the runner reports the failure once and takes no more work."""

    idle_after_s: float | None
    """Call `idle` once when no job came for this long; None: never."""

    def drain(self, batch: Sequence[JobIn]) -> DoneOut:
        """Does all jobs of the batch, oldest first."""

    def idle(self) -> None:
        """Nothing came for `idle_after_s`."""


class NeverIdle:
    """The base of lanes that do nothing while no job comes."""

    idle_after_s: float | None = None

    def idle(self) -> None:
        """Is never called."""


def room_of(lane: Lane[Job, Done]) -> Callable[[Job], bool]:
    """Called with each job of one drain, in their order: whether the drain may have another one. A lane whose drains
    are bounded has `weigh`, and the `weight_max` of one drain; every other one takes all that have gathered."""
    weigh: Callable[[Job], int] | None = getattr(lane, "weigh", None)
    if weigh is None:
        return lambda job: True
    left: int = lane.weight_max  # type: ignore[attr-defined]  # it comes with `weigh`

    def takes_more(job: Job) -> bool:
        nonlocal left
        left -= weigh(job)
        return left > 0

    return takes_more


class LaneRunner(Protocol[JobIn]):
    """Takes the jobs of a lane."""

    def submit(self, job: JobIn) -> None:
        """Queues a job; never blocks."""

    def close(self) -> None:
        """Finishes what is queued, then stops; blocks until it has."""


class StartedLane(Generic[JobIn]):
    """A lane that runs from `start` on; its service is complete, and can be closed, before that."""

    def __init__(self, make: Callable[[], LaneRunner[JobIn]]) -> None:
        """`make` puts the lane where it runs."""
        self._make = make
        self._runner: LaneRunner[JobIn] | None = None

    def start(self) -> None:
        """Begins to run it."""
        self._runner = self._make()

    def submit(self, job: JobIn) -> None:
        """Queues a job; never blocks. Only between `start` and `close`."""
        assert self._runner is not None
        self._runner.submit(job)

    def close(self) -> None:
        """Finishes what is queued, then stops; does nothing if the lane was not started."""
        if self._runner is not None:
            self._runner.close()


class ThreadLaneRunner(Generic[Job, Done]):
    """Runs a lane on its own thread."""

    def __init__(
        self,
        name: str,
        lane: Lane[Job, Done],
        loop: asyncio.AbstractEventLoop,
        on_done: Callable[[Done], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`on_done` and `on_failure` are called on `loop`."""
        self._lane = lane
        self._loop = loop
        self._on_done = on_done
        self._on_failure = on_failure
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queues a job; never blocks."""
        self._queue.put(job)

    def close(self) -> None:
        """Finishes what is queued, then stops."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:  # noqa: BLE001 - whatever it is, the node must hear of it
            self._tell(self._on_failure, error)

    def _step(self) -> bool:
        batch = self._take()
        if not batch:
            return False
        last = batch[-1] is None
        jobs = [job for job in batch if job is not None]
        if jobs:
            self._tell(self._on_done, self._lane.drain(jobs))
        return not last

    def _take(self) -> list[Job | None]:
        """Blocks for one job, then takes what has gathered, as much as the lane does at once; stops at the closing
        mark."""
        queue = self._queue
        try:
            first = queue.get(timeout=self._lane.idle_after_s)
        except Empty:
            self._lane.idle()
            first = queue.get()
        batch, takes_more = [first], room_of(self._lane)
        while batch[-1] is not None and takes_more(batch[-1]):
            try:
                batch.append(queue.get_nowait())
            except Empty:
                break
        return batch

    def _tell(self, callback: Callable[..., None], value: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, value)
        except RuntimeError:
            logger.debug("the event loop is closed; a lane's completion is dropped")

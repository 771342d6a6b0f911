"""Lanes: work that must not run on the event loop (disk, RocksDB). A lane does its jobs in order, in batches of all
waiting jobs.

A lane is a plain class; a LaneRunner decides where it runs: on a thread, or in the simulator as a scheduled step with
injected delays and faults. The runner calls back on the loop, in the order of submission.
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
    """Seconds without a job after which `idle` is called once; None for never."""

    def drain(self, batch: Sequence[JobIn]) -> DoneOut:
        """Does all jobs of the batch, oldest first."""

    def idle(self) -> None:
        """Called when no job came for `idle_after_s`."""


class NeverIdle:
    """The base of lanes that do nothing while no job comes."""

    idle_after_s: float | None = None

    def idle(self) -> None:
        """Is never called."""


def room_of(lane: Lane[Job, Done]) -> Callable[[Job], bool]:
    """Returns a function that is called with each job of one drain, in order, and returns True if the drain may have
    another one. A lane with bounded drains has `weigh`, and the `weight_max` of one drain; any other lane takes all
    waiting jobs."""
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
        """Finishes the queued jobs, then stops; blocks until it has."""


class StartedLane(Generic[JobIn]):
    """A lane that runs from `start` on. Its service is complete, and can be closed, before that."""

    def __init__(self, make: Callable[[], LaneRunner[JobIn]]) -> None:
        """`make` makes the runner."""
        self._make = make
        self._runner: LaneRunner[JobIn] | None = None

    def start(self) -> None:
        """Starts the lane."""
        self._runner = self._make()

    def submit(self, job: JobIn) -> None:
        """Queues a job; never blocks. Allowed only between `start` and `close`."""
        assert self._runner is not None
        self._runner.submit(job)

    def close(self) -> None:
        """Finishes the queued jobs, then stops; does nothing if the lane was not started."""
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
        """Finishes the queued jobs, then stops."""
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
        """Blocks for one job, then takes further waiting ones, as many as one drain may have; stops at the closing
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

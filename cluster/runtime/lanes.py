"""Lanes: work that must not run on the event loop (disk, RocksDB), done in order, in batches of all waiting jobs.

A lane is a plain class. A LaneRunner decides where it runs: on a thread, or in the simulator as a scheduled step with
injected delays and faults. The runner calls back on the loop, in the order of submission.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

Job = TypeVar("Job")
Done = TypeVar("Done")
JobIn = TypeVar("JobIn", contravariant=True)
DoneOut = TypeVar("DoneOut", covariant=True)

logger = logging.getLogger(__name__)


class Lane(Protocol[JobIn, DoneOut]):
    """The work of a lane. An exception is final: the runner reports the failure once and takes no more work."""

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
        """Does nothing, and is never called."""


def room_of(lane: Lane[Job, Done]) -> Callable[[Job], bool]:
    """Returns a function that bounds one drain. It is called with each job of the drain, in order, and returns True if
    the drain may have another job. A lane with bounded drains has `weigh`, the weight of a job, and `weight_max`, the
    weight of a drain. Every other lane takes all waiting jobs."""
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
    """Runs a lane and takes its jobs."""

    def submit(self, job: JobIn) -> None:
        """Queues a job; never blocks."""

    def close(self) -> None:
        """Finishes what is queued, then stops; blocks until it has."""


class StartedLane(Generic[JobIn]):
    """A lane that runs from `start` on. The service that has it is complete, and can be closed, before `start`."""

    def __init__(self, make: Callable[[], LaneRunner[JobIn]]) -> None:
        """`make` makes the lane's runner."""
        self._make = make
        self._runner: LaneRunner[JobIn] | None = None

    def start(self) -> None:
        """Starts the lane."""
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
        """Finishes what is queued, then stops; blocks until the thread has ended."""
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
        """Blocks until there is a job. Returns the waiting jobs, as many as the lane does at once. A None, the mark of
        `close`, is the last that it returns."""
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


P = ParamSpec("P")
T = TypeVar("T")

_Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any] | None", Callable[[], Any]]


class CallThreads:
    """Runs at most `count` blocking calls at a time; further ones wait. Threads start with the first call and are
    daemons, because the interpreter's own pool would wait for them when it ends."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._count = count
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls the function on a thread; returns or raises what it does. If the caller is cancelled, a call that has
        begun goes on and its result is dropped."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._put((loop, done, lambda: function(*args, **kwargs)))
        return await done

    def begin(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Calls the function on a thread and returns at once. For a call whose result is not used, and which raises
        nothing."""
        self._put((asyncio.get_running_loop(), None, lambda: function(*args, **kwargs)))

    def _put(self, job: _Job) -> None:
        self._queue.put(job)
        if len(self._threads) < self._count:
            thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Makes threads end when they have done the queued calls; does not wait for them."""
        for _ in self._threads:
            self._queue.put(None)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            loop, done, call = job
            if done is None:
                call()
                continue
            if done.cancelled():
                continue
            try:
                settle = _settler(done, call(), None)
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                settle = _settler(done, None, error)
            try:
                loop.call_soon_threadsafe(settle)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more
            del job, done, call, settle  # bytes of the last call are not kept until the next


def _settler(done: asyncio.Future[Any], result: object, error: BaseException | None) -> Callable[[], None]:
    def settle() -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    return settle

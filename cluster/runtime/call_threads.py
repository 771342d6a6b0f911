"""Threads for calls that may block, also for ever: a dead network mount must not keep the process from ending."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any] | None", Callable[[], Any]]


class CallThreads:
    """At most `count` calls at a time; more wait their turn. Threads start with the first call and are daemons: the
    interpreter's own pool would wait for them at its end."""

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
        """Calls the function on a thread and returns at once; for a call that nobody waits for, and that raises
        nothing."""
        self._put((asyncio.get_running_loop(), None, lambda: function(*args, **kwargs)))

    def _put(self, job: _Job) -> None:
        self._queue.put(job)
        if len(self._threads) < self._count:
            thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Threads end when they have done what is queued; waits for none."""
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

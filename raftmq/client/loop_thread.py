"""An event loop in another thread, for the blocking client."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


def new_loop() -> asyncio.AbstractEventLoop:
    """Returns an event loop of uvloop if it is installed, else one of asyncio. The client does not require uvloop,
    since it is larger than all its other dependencies together."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.new_event_loop()
    return new_event_loop()


class LoopThread:
    """An event loop that runs in another thread. Lifecycle: started when made, `run` from any other thread, `close`
    once."""

    def __init__(self) -> None:
        self.loop = new_loop()
        self._thread = threading.Thread(target=self._main, name="raftmq-client", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        pending = asyncio.all_tasks(self.loop)
        for task in pending:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        self.loop.close()

    @property
    def is_current(self) -> bool:
        """True if the calling thread is the loop's own, where nothing may block."""
        return threading.current_thread() is self._thread

    def check_may_wait(self) -> None:
        """Raises RuntimeError where waiting for the loop would never end: in the loop's own thread, or after the loop
        was closed."""
        if self.is_current:
            raise RuntimeError("a blocking call inside a callback of the client would wait for itself")
        if self.loop.is_closed():
            raise RuntimeError("the client is closed")

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs `work` on the loop and waits for it; an interrupt of the waiting thread cancels `work`."""
        try:
            self.check_may_wait()
        except RuntimeError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def begin(self, work: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        """Starts `work` on the loop; cancelling the future cancels it. Raises RuntimeError if the loop is closed."""
        if self.loop.is_closed():
            work.close()
            raise RuntimeError("the client is closed")
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self) -> None:
        """Stops the loop and its thread."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()

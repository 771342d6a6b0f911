"""Bounded room for unsettled sends, in messages and bytes, shared by threads and the event loop."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import deque
from collections.abc import Callable


class Room:
    """Counts the messages and bytes of unsettled sends against two bounds. Waiters are woken once the room is at most
    three quarters full, not at each release, because waking a thread for every message would cost more than the message
    itself. A send larger than a bound is admitted when the room is empty."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        if max_messages < 1 or max_bytes < 1:
            raise ValueError("max_messages and max_bytes must be at least 1")
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._messages = 0
        self._bytes = 0
        self._lock = threading.Lock()
        self._waiters: deque[Callable[[], None]] = deque()
        self._idle: list[Callable[[], None]] = []

    def take(self, size: int, wake: Callable[[], None] | None = None) -> bool:
        """Reserves room for one message of `size` bytes; returns True if there was room. Otherwise returns False, and
        `wake` is called later, on any thread, when there may be room."""
        with self._lock:
            if self._messages == 0 or (self._messages < self._max_messages and self._bytes + size <= self._max_bytes):
                self._messages += 1
                self._bytes += size
                return True
            if wake is not None:
                self._waiters.append(wake)
            return False

    def give_back(self, messages: int, size: int) -> None:
        """Releases the room of settled sends."""
        with self._lock:
            self._messages -= messages
            self._bytes -= size
            woken, idle = [], []
            if self._messages * 4 <= self._max_messages * 3 and self._bytes * 4 <= self._max_bytes * 3:
                woken, self._waiters = list(self._waiters), deque()
            if self._messages == 0:
                idle, self._idle = self._idle, []
        for wake in (*woken, *idle):
            wake()

    def when_empty(self, call: Callable[[], None]) -> None:
        """Calls `call` once no send is unsettled; at once if that is so now."""
        with self._lock:
            if self._messages:
                self._idle.append(call)
                return
        call()

    async def take_async(self, size: int) -> None:
        """Reserves room as `take` does, waiting for it on the event loop."""
        loop = asyncio.get_running_loop()
        while True:
            future: asyncio.Future[None] = loop.create_future()
            if self.take(size, functools.partial(_wake, loop, future)):
                return
            await future

    def take_blocking(self, size: int) -> None:
        """Reserves room as `take` does, waiting for it in the calling thread."""
        while True:
            event = threading.Event()
            if self.take(size, event.set):
                return
            event.wait()


def _wake(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    loop.call_soon_threadsafe(_done, future)


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

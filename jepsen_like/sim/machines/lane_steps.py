"""Drains (a lane's batches of work) that run step by step: they stop before and after calls of disk and database, and
other events come in between.

Lanes are threads in production, so the event loop and the other lanes see what a drain has half done. Here such a drain
runs in a thread of its own, which runs only while the simulator waits for it; the seed decides where it stops, and for
how long. It never stops while it holds a lock, because the simulator's own thread must not wait for one.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any

from raftlog.work import METER


class AbandonedError(BaseException):
    """Raised inside a drain whose process has ended: the rest of its work must not happen."""


_here = threading.local()


def may_stop() -> None:
    """Stops here if called inside a drain that runs step by step; otherwise does nothing."""
    work: Steps | None = getattr(_here, "work", None)
    if work is not None:
        work.stop_here()


class Steps:
    """One drain that runs step by step. Call `advance` until it is `done`; then `result` or `error` holds the
    outcome."""

    def __init__(self, work: Callable[[], Any], holds_lock: Callable[[], bool]) -> None:
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.units = 0
        """Units that the drain charged the meter of its thread, set when it is done."""
        self._work = work
        self._holds_lock = holds_lock
        self._abandoned = False
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), daemon=True)
        self._thread.start()

    def advance(self) -> bool:
        """Runs the drain to its next stop; returns True if it has ended."""
        self._go.release()
        self._back.acquire()
        if self.done:
            self._thread.join()
        return self.done

    def finish(self) -> None:
        """Runs the drain to its end."""
        while not self.done:
            self.advance()

    def abandon(self) -> None:
        """Ends the drain at the present step, by an AbandonedError in its thread."""
        self._abandoned = True
        self.finish()

    def stop_here(self) -> None:
        """Hands control back to the simulator until the next `advance`, unless the drain holds a lock. The drain's own
        thread calls it. Raises AbandonedError if the drain was abandoned."""
        if not self._abandoned and self._holds_lock():
            return
        if not self._abandoned:
            self._back.release()
            self._go.acquire()
        if self._abandoned:
            raise AbandonedError

    def _run(self) -> None:
        self._go.acquire()
        _here.work = self
        try:
            if not self._abandoned:
                self.result = self._work()
        except BaseException as error:  # noqa: BLE001 - whoever advances it hears of it
            self.error = error
        self.units = METER.units
        self.done = True
        self._back.release()

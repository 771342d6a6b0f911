"""A lane's drain taken apart: it stops before and after calls of disk and database, and other events come between.

Lanes are threads in production, so the event loop and the other lanes see what a drain has half done. Here a drain runs
in a thread of its own, which runs only while the simulator waits for it: where it stops, and for how long, the seed
decides. It never stops while it holds a lock: the simulator's own thread must not wait for one.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any

from raftlog.work import METER


class AbandonedError(BaseException):
    """The process of this drain is gone: nothing that it still had to do happens."""


_here = threading.local()


def may_stop() -> None:
    """Stops a drain here if it is taken apart; elsewhere nothing happens."""
    work: Steps | None = getattr(_here, "work", None)
    if work is not None:
        work.stop_here()


class Steps:
    """`advance` until it is `done`; then `result` or `error` say how it went."""

    def __init__(self, work: Callable[[], Any], holds_lock: Callable[[], bool]) -> None:
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.units = 0
        """Units that it charged the meter of its thread, when it is done."""
        self._work = work
        self._holds_lock = holds_lock
        self._abandoned = False
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), daemon=True)
        self._thread.start()

    def advance(self) -> bool:
        """Goes on to the next stop; True if there is none."""
        self._go.release()
        self._back.acquire()
        if self.done:
            self._thread.join()
        return self.done

    def finish(self) -> None:
        """Runs the work to its end."""
        while not self.done:
            self.advance()

    def abandon(self) -> None:
        """Ends the work where it stands."""
        self._abandoned = True
        self.finish()

    def stop_here(self) -> None:
        """Called by the work itself."""
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

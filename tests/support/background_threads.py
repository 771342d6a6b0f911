"""Threads that do something over and over while the test's own thread does something else."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def beside(*bodies: Callable[[], object]) -> Iterator[list[BaseException]]:
    """Runs each of `bodies` again and again on a thread of its own until the block ends, switching often.

    Yields what they raised so far, each of them once at most: then that thread stands still. The block must end
    without any of it.
    """
    done, failures = threading.Event(), list[BaseException]()

    def guarded(body: Callable[[], object]) -> None:
        try:
            while not done.is_set():
                body()
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(body,)) for body in bodies]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    for thread in threads:
        thread.start()
    try:
        yield failures
    finally:
        done.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert not failures, failures

"""Waiting for effects of another process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(
    look: Callable[[], T],
    timeout_s: float,
    poll_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """Calls `look` every `poll_s` seconds until it returns a true value, and returns that; after `timeout_s` or a
    little later, returns its last value."""
    deadline = clock() + timeout_s
    while not (found := look()) and clock() < deadline:
        sleep(poll_s)
    return found

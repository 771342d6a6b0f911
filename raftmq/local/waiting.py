"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(look: Callable[[], T], timeout_s: float, poll_s: float) -> T:
    """Asks every `poll_s` seconds: the first answer that is true, or the last one, given after `timeout_s` or later."""
    deadline = time.monotonic() + timeout_s
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(poll_s)
    return found

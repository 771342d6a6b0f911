"""Waits for a condition, as long as something goes on: what stands still is given up, what is slow is not.

How long nothing may happen is far longer than a busy machine needs, and grows with the slowness of this one
(tests/support/pace.py). pytest's own limit ends what goes on for ever.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from tests.support.pace import at_most

T = TypeVar("T")

PATIENCE_S = at_most(30)
LONG_S = at_most(60)
"""For what several processes have to do one after the other."""


async def until(
    reached: Callable[[], object], *, progress: Callable[[], object] | None = None, every_s: float = 0.002
) -> None:
    """Lets the loop run until `reached()` is true; `every_s=0` looks at every turn of the loop, for a state that soon
    passes. Raises TimeoutError after PATIENCE_S, with `progress()` after PATIENCE_S in which that did not change."""
    loop, far = asyncio.get_running_loop(), None
    async with asyncio.timeout(PATIENCE_S) as patience:
        while not reached():
            await asyncio.sleep(every_s)
            if progress is not None and (now := progress()) != far:
                far = now
                patience.reschedule(loop.time() + PATIENCE_S)


def wait(
    reached: Callable[[], T],
    why: str | Callable[[], object] = "",
    *,
    progress: Callable[[], object] | None = None,
    patience_s: float = LONG_S,
    every_s: float = 0.02,
) -> T:
    """Looks every `every_s` seconds until `reached()` is true, and returns what it returned.

    `progress()` says how far it is: a count, a position, all that the nodes tell. Raises AssertionError, with `why`,
    when that did not change for `patience_s`; without it, when so much time has passed.
    """
    far: object = None
    since_s = time.monotonic()
    while not (found := reached()):
        if progress is not None and (now := progress()) != far:
            far, since_s = now, time.monotonic()
        assert time.monotonic() < since_s + patience_s, why() if callable(why) else why
        time.sleep(every_s)
    return found

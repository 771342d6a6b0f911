"""How slow the machine is: one figure for a whole run, by which each limit of time in the tests is multiplied.

A limit tells a test that hangs from one that is slow, and nothing else. It is ten times what the thing takes on a quiet
machine with two cores, given to `at_most` where it is used; the figure makes it the same promise on a slower one. A
fixed piece of work is timed once, by the first process of a run; its workers and the processes that tests start find
the figure in their environment.
"""

from __future__ import annotations

import os
import time
from functools import cache

SLOWNESS = "TESTS_SLOWNESS"
"""The variable that holds the figure. Set it to choose one."""
SLOWEST = 20.0
"""At most: a test that hangs ends at last, in 40 minutes of the usual two."""

_ROUNDS = 60
_QUIET_S = 0.18
"""What the work takes on a quiet machine: two cores of 2.5 GHz, CPython 3.11."""


def at_most(quiet_s: float) -> float:
    """Returns the limit in seconds that is `quiet_s` on a quiet machine."""
    return quiet_s * slowness()


@cache
def slowness() -> float:
    """How many times slower than a quiet machine this one is, 1 to SLOWEST: what the environment says, or measured now
    and written there."""
    if SLOWNESS not in os.environ:
        os.environ[SLOWNESS] = f"{figure(_measured_s()):.2f}"
    return float(os.environ[SLOWNESS])


def figure(took_s: float) -> float:
    """Returns the figure of a machine on which the work took so many seconds. A fast one shortens no limit."""
    return min(SLOWEST, max(1.0, took_s / _QUIET_S))


def _measured_s() -> float:
    """By the clock, not by the processor's time: what others take of the machine counts. Long enough that the others
    have their turns in it."""
    begun_s = time.perf_counter()
    for _ in range(_ROUNDS):
        _work()
    return time.perf_counter() - begun_s


def _work() -> int:
    """What tests do most: names, dicts, calls."""
    counts: dict[str, int] = {}
    for number in range(10_000):
        name = str(number % 997)
        counts[name] = counts.get(name, 0) + len(name)
    return sum(counts.values())

"""Requests that are repeated because a refusal says that nothing was changed and that it will pass.

The leader takes changes of the members one at a time. The other change is often the command's own: the leader promotes
a node that has caught up, and every node shows the new voter some time before the entry that makes it one is committed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from raftmq.local.http.admin_http import ApiRefusal

SETTLED_S = 30.0
"""Time in seconds to wait for another change to end: long enough for an election and a commit."""
FIRST_S, LONGEST_S = 0.1, 2.0
"""Pauses in seconds between two attempts: the first, and the longest to which they double."""

T = TypeVar("T")


def while_passing(
    ask: Callable[[], T],
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """Repeats a request, for at most SETTLED_S, while it is refused because there is no leader or because something
    else has to be committed first. Raises what `ask` raises."""
    return _repeated(ask, lambda error: error.is_passing, lambda error: None, sleep, clock)


def when_settled(
    change: Callable[[], T],
    tell: Callable[[str], object],
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """Makes a change of the members. Repeats it, for at most SETTLED_S, while another change is in progress, and
    reports this once through `tell`. Only that refusal is waited for, because it says that nothing was proposed. Raises
    what `change` raises."""

    def say(error: ApiRefusal) -> None:
        tell(f"{error.what} ({error.why}); waiting until it is committed")

    return _repeated(change, lambda error: error.is_unsettled, say, sleep, clock)


def _repeated(
    ask: Callable[[], T],
    may_pass: Callable[[ApiRefusal], bool],
    on_first: Callable[[ApiRefusal], object],
    sleep: Callable[[float], object],
    clock: Callable[[], float],
) -> T:
    deadline, pause = clock() + SETTLED_S, FIRST_S
    waits = False
    while True:
        try:
            return ask()
        except ApiRefusal as error:
            if not may_pass(error) or clock() >= deadline:
                raise
            if not waits:
                on_first(error)
                waits = True
        sleep(pause)
        pause = min(2 * pause, LONGEST_S)

"""Upper bounds of the work in one turn of a simulated node's event loop, and in one drain (batch of work) of a lane.

A node in production spends `cluster.runtime.turns.work.TURN_SHARE` units per turn on work that is cut into steps. A
simulated node spends a twentieth of that, so that faults hit such work in the middle, as with `machine.SWEEP_ROWS`. A
callback that charges the meter more than its bound is a violation, whatever its purpose, because work that grows with
requests or data must be cut into steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, ParamSpec

from raftlog.work import METER

P = ParamSpec("P")

TURN_SHARE = 50
"""Units of one turn that all work cut into steps may take on a simulated node."""
SEND_BYTES = 128 << 10
"""Bytes of entries that one turn of a simulated node's driver sends at most, also in one message."""
TURN_BOUND = 2_000
"""Most units of one callback on a node's event loop: about twice the units of the most expensive one in a hundred
seeds."""
DRAIN_BOUND = 3_000
"""Most units of one drain of a lane."""
APPLY_BOUND = 14_000
"""Most units of one drain of the apply lane: up to 1 MiB of entries and a last piece of 1 MiB, or 127 small ones of
some 80 units each."""
DRIVER_BOUND = 4_000
"""Most units that a turn may charge in which the driver applies a small run of entries on the event loop."""
STEP_BOUND = 4_500
"""Most units of a turn that spends its share on work cut into steps, including the last step. The longest step is a
pull of 1,024 messages: 3,072 for its rows if none of them was read before, and its bytes."""
TURNS: dict[str, int] = {
    "Turns._next_turn": STEP_BOUND,
    "RaftDriver._turn": DRIVER_BOUND,
    "RaftDriver._submit_gathered": DRIVER_BOUND,
    # What was sent while this node stood still comes in one read.
    "Inlet._data": DRIVER_BOUND,
    "Inlet._go_on": DRIVER_BOUND,
    "RemotingConnection._data": 6_000,
    # The same, for a connection that had to wait for memory (seed 770000031).
    "Room._grant": 6_000,
    # All answers of a turn for one client go in one write, as many bytes as it may leave unread.
    "RemotingConnection._flush": 6_000,
    # This callback opens the node, which serves no client before that.
    "Machine._live": 1 << 60,
}
APPEND_BOUND = 6_000
"""Most units of one drain of the append lane: it writes all waiting frames, and after a pause these fill several of the
small segments of a simulated node, each with files of its own."""
FLUSH_BOUND = 18_000
"""Most units of one drain of the flush lane: a checkpoint reads each new table for its checksum, and all rows of a
simulated store are in one table (seed 760000163)."""
DRAINS: dict[str, int] = {"apply": APPLY_BOUND, "append": APPEND_BOUND, "flush": FLUSH_BOUND}


def turn_bound(name: str) -> int:
    """Returns the bound of the callback of that name, in units of the meter."""
    return TURNS.get(name, TURN_BOUND)


def drain_bound(lane: str) -> int:
    """Returns the bound of one drain of that lane, in units of the meter."""
    return DRAINS.get(lane, DRAIN_BOUND)


def name_of(callback: Any) -> str:
    """Returns a callback's name: a coroutine or a method by its own name; a callback for received bytes or the end of a
    connection by the protocol that it is for."""
    while isinstance(callback, partial):
        callback = callback.func
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        callback = owner.get_coro()
    protocol = getattr(owner, "protocol", None)
    if protocol is not None:
        return f"{type(protocol).__name__}.{callback.__name__}"
    name: str = getattr(callback, "__qualname__", "") or repr(callback)
    return name


def unmetered(watch: Callable[P, None]) -> Callable[P, None]:
    """Wraps a function of the simulator so that the units that its reads charge in a node's turn are taken back: they
    are no work of the node."""

    @wraps(watch)
    def watches(*args: P.args, **kwargs: P.kwargs) -> None:
        before = METER.units
        try:
            watch(*args, **kwargs)
        finally:
            METER.units = before

    return watches

"""The bounds of the work in one turn of a simulated node's event loop, and in one drain of a lane.

A node in production takes `cluster.runtime.turns.work.TURN_SHARE` units of cut work per turn; here a hundredth of it,
so that what is cut is met in the middle, as with `machine.SWEEP_ROWS`. A callback that charges the meter more than
its bound is a violation, whatever it was for: the work that a client or the data made long was not cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, ParamSpec

from raftlog.work import METER

P = ParamSpec("P")

TURN_SHARE = 50
"""Units that all cut work of a simulated node takes of one turn."""
SEND_BYTES = 128 << 10
"""Bytes of entries that one turn of a simulated node's driver sends, or one message."""
TURN_BOUND = 2_000
"""Units of one callback on a node's loop: about twice what the dearest one charged in a hundred seeds."""
DRAIN_BOUND = 3_000
"""Units of one drain of a lane."""
APPLY_BOUND = 14_000
"""Units of one drain of the apply lane: up to 1 MiB of entries, or 128 small ones of some 50 units each, and a last
piece.
"""
DRIVER_BOUND = 4_000
"""Units of a turn of the driver that applies a small run on the loop."""
STEP_BOUND = 4_500
"""Units of a turn's share with its last step. The longest step is a pull of 1,024 messages: 3,072 for its rows if none
of them was read before, and its bytes.
"""
TURNS: dict[str, int] = {
    "Turns._next_turn": STEP_BOUND,
    "RaftDriver._turn": DRIVER_BOUND,
    "RaftDriver._submit_gathered": DRIVER_BOUND,
    # What was sent while this node stood still comes in one read, and its frames are found at once.
    "Inlet._data": 12_000,
    "RemotingConnection._data": 6_000,
    # All answers of a turn for one client go in one write, as many bytes as it may leave unread.
    "RemotingConnection._flush": 6_000,
    # It opens the node: nobody is served before.
    "Machine._live": 1 << 60,
}
APPEND_BOUND = 6_000
"""Units of one drain of the append lane: it writes all frames that wait, and after a pause these fill several of the
small segments here, each with files of its own.
"""
DRAINS: dict[str, int] = {"apply": APPLY_BOUND, "append": APPEND_BOUND}


def turn_bound(name: str) -> int:
    """Returns the bound of the callback of that name, in units."""
    return TURNS.get(name, TURN_BOUND)


def drain_bound(lane: str) -> int:
    """Returns the bound of one drain of that lane, in units."""
    return DRAINS.get(lane, DRAIN_BOUND)


def name_of(callback: Any) -> str:
    """Names a callback: a coroutine by its own name, a method by its own; bytes and ends that the network brings, by
    the protocol that they are for.
    """
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
    """Takes back the units that the simulator's own reads charge in a node's turn: they are no work of the node."""

    @wraps(watch)
    def watches(*args: P.args, **kwargs: P.kwargs) -> None:
        before = METER.units
        try:
            watch(*args, **kwargs)
        finally:
            METER.units = before

    return watches

"""The meter of work. Code whose amount of work depends on a client or on the data charges the work here, before doing
it.

One unit is about one microsecond of a slow core. The meter only counts. It never refuses, reads no clock and knows no
bound: `cluster.runtime.turns.work.Turns` compares it with a turn's share, the simulator with the bound of a callback,
and a live node's watch with the CPU time that a turn took. The module is in `raftlog`, the lowest package, because the
state machine and the log also charge the rows and bytes that they read.

Each thread has a count of its own: the work of a lane (worker thread) does not count for the event loop's turn.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

ROW_UNITS = 3
"""The cost of reading, writing or removing one row of the store."""
SEEK_UNITS = 8
"""The cost of finding where a scan of the store begins, or of handing over one batch to it."""
CALL_UNITS = 5
"""The cost of one system call: a read or write of a file or a socket, whatever its size."""
FRAME_UNITS = 15
"""The cost of one request, or message of a peer, whatever it asks for. Sends that are handled as a batch cost
ITEM_UNITS each."""
KIB_UNITS = 1
"""The cost of 1,024 bytes that are read, copied, checked or sent. As JSON or msgpack they cost more (`TEXT_KIB_UNITS`).
"""
TEXT_KIB_UNITS = 16
"""The cost of 1,024 bytes of JSON or msgpack that are parsed or built. Text whose values are counted before costs less
(`cluster.runtime.metered_json`)."""
ITEM_UNITS = 2
"""The cost of one step of a loop whose length depends on a client or on the data."""


class Meter(threading.local):
    """The units that a thread has charged since it began; only differences mean anything."""

    units: int = 0


METER = Meter()


def charge(units: int) -> None:
    """Charges work that is about to be done."""
    METER.units += units


def charge_bytes(size: int) -> None:
    """Charges bytes that are about to be read, copied, checked or sent."""
    METER.units += (size >> 10) * KIB_UNITS


def charge_text(size: int) -> None:
    """Charges bytes of JSON or msgpack that are about to be parsed or built."""
    METER.units += 1 + (size >> 10) * TEXT_KIB_UNITS


def at_once(steps: Generator[object, None, T]) -> T:
    """Runs all steps of work without a pause; returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found

"""The longest turn of a live node's event loop, as its metrics tell it: part of the verdict on what met the node."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from jepsen_like.hostile.wire import ask_http

TURN_MAX_S: Final = 0.25
"""CPU time. From 0.1 s on it is an event; beside a load on the same cores, work takes about twice as long."""
_LONGEST: Final = re.compile(r'^raftmq_turn_longest_seconds\{what="([^"]*)"\} (\S+)$', re.MULTILINE)
_UNEXPLAINED: Final = re.compile(r'^raftmq_turns_unexplained_total\{what="([^"]*)"\} (\S+)$', re.MULTILINE)


class Turns(NamedTuple):
    """The longest turn of one node and its unexplained turns, as its metrics tell them."""

    longest_s: float
    what: str
    """Name of what ran in it; "" if no turn was worth telling."""
    unexplained: dict[str, int]
    """Function -> turns of 20 ms of CPU and more that the meter does not explain."""

    def __str__(self) -> str:
        longest = f"{1000 * self.longest_s:.0f} ms of CPU in {self.what}" if self.what else "below 20 ms of CPU"
        return "; not charged to the meter: ".join((longest, *sorted(self.unexplained)))


def turns_of(metrics: str) -> Turns:
    """Reads Prometheus's text."""
    found = _LONGEST.search(metrics)
    unexplained = {what: int(float(count)) for what, count in _UNEXPLAINED.findall(metrics)}
    return Turns(float(found[2]), found[1], unexplained) if found else Turns(0.0, "", unexplained)


async def ask_turns(admin_port: int) -> Turns:
    """Asks the node with that HTTP port for its turns since it started."""
    return turns_of((await ask_http(admin_port, "GET", "/metrics")).body.decode())

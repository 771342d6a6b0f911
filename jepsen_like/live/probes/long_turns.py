"""The longest turn of a live node's event loop, read from its metrics; the verdict on requests to the node uses it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from cluster.config.local_layout import NodeRecord
from jepsen_like.client_kit.node_http import ask_node

TURN_MAX_S: Final = 0.25
"""The longest turn allowed, in seconds of CPU time. Turns of 0.1 s and more are events of the node; beside a load on
the same cores, work takes about twice as long."""
_LONGEST: Final = re.compile(r'^raftmq_turn_longest_seconds\{what="([^"]*)"\} (\S+)$', re.MULTILINE)
_UNEXPLAINED: Final = re.compile(r'^raftmq_turns_unexplained_total\{what="([^"]*)"\} (\S+)$', re.MULTILINE)


class Turns(NamedTuple):
    """The longest turn of one node and its unexplained turns, read from its metrics."""

    longest_s: float
    what: str
    """The name of the work in the longest turn; "" if no turn was long enough to be recorded."""
    unexplained: dict[str, int]
    """Function -> the number of turns of at least 20 ms of CPU that the meter does not explain."""

    def __str__(self) -> str:
        longest = f"{1000 * self.longest_s:.0f} ms of CPU in {self.what}" if self.what else "below 20 ms of CPU"
        return "; not charged to the meter: ".join((longest, *sorted(self.unexplained)))


def turns_of(metrics: str) -> Turns:
    """Reads the turns from Prometheus's text."""
    found = _LONGEST.search(metrics)
    unexplained = {what: int(float(count)) for what, count in _UNEXPLAINED.findall(metrics)}
    return Turns(float(found[2]), found[1], unexplained) if found else Turns(0.0, "", unexplained)


async def ask_turns(node: NodeRecord) -> Turns:
    """Asks a node for its turns since it started."""
    return turns_of((await ask_node(node, "GET", "/metrics")).body.decode())

"""Judges when a message that was acknowledged at a weaker level may be gone: each level's row of docs/guarantees.md.

Judged from what happened to machines and who led, between the moment the message was sent and the moment somebody
applied its place: from then on it has the full promise, or is lost already.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import NamedTuple

from jepsen_like.sim.checks.reigns import Reigns
from jepsen_like.sim.options import Options
from raftlog.types import NodeId

Queue = tuple[int, int]
"""(topic id, queue id)"""


class Event(NamedTuple):
    """An event of a machine that may take what it held."""

    at_s: float
    node: NodeId
    kind: str
    """`end`: of the process alone. `power`: what was not synced may be gone; a disk that failed is no better. `gone`:
    with its disk."""


class Excuses:
    """Fed by the monitor."""

    def __init__(self, reigns: Reigns, now: Callable[[], float]) -> None:
        """`now`: virtual seconds."""
        self._reigns = reigns
        self._now = now
        self._events: list[Event] = []
        self._decided: dict[Queue, list[float]] = {}
        """Times at which each offset of a queue was first applied by any node."""

    def ended(self, node: NodeId, how: str) -> None:
        """A process is gone. An orderly stop takes nothing along."""
        if how != "stopped":
            self.happened(node, "end" if how == "kill" else "power")

    def happened(self, node: NodeId, kind: str) -> None:
        """Notes that this happened to the machine now."""
        self._events.append(Event(self._now(), node, kind))

    def applied(self, counts: Iterable[tuple[Queue, int]]) -> None:
        """Notes how many messages of each queue some node has applied by now."""
        for queue, count in counts:
            known = self._decided.setdefault(queue, [])
            if count > len(known):
                known.extend([self._now()] * (count - len(known)))

    def allow(self, level: str, queue: Queue, offset: int, sent_s: float, options: Options) -> bool:
        """Returns True if a message that was acknowledged there, at this level, may be gone."""
        decided = self._decided.get(queue, ())
        until_s = decided[offset] if offset < len(decided) else math.inf
        at = bisect_left(self._events, sent_s, key=lambda event: event.at_s)
        kinds = {event.kind for event in self._events[at:] if event.at_s <= until_s}
        if level == "quorum":
            return bool(kinds & {"power", "gone"})
        if len(self._reigns.houses(sent_s, until_s)) > 1:
            return True
        return bool(kinds & _takes(options))


def _takes(options: Options) -> set[str]:
    """Returns the kinds of events that take from a leader what no other node has: it was synced, written, or in its
    memory.
    """
    if not options.flush_async:
        return {"gone"}
    return {"gone", "power", "end"} if options.memory_pool else {"gone", "power"}

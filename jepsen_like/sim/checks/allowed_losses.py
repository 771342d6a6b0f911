"""Decides whether a message that was acknowledged at a weaker level may be lost, as docs/guarantees.md says per level.

The decision follows from the events of machines and the leaders between two times: when the message was sent, and when
a node first applied a message at its offset. From the second time on the message has the full promise, or is lost
already.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import NamedTuple

from jepsen_like.sim.checks.handovers import Reigns
from jepsen_like.sim.options import Options
from raftlog.types import NodeId
from statemachine.rows.keys import Queue


class LossEvent(NamedTuple):
    """An event of a machine that may lose data, with its time in seconds."""

    at_s: float
    node: NodeId
    kind: str
    """`end`: the process ended and memory is lost. `power`: unsynced data may be lost too, as after a failed disk.
    `gone`: the machine is gone with its disk."""


class Excuses:
    """Records the events that may lose messages, as the monitor reports them, and answers whether a message may be
    lost."""

    def __init__(self, reigns: Reigns, now: Callable[[], float]) -> None:
        """`now`: returns the virtual time in seconds."""
        self._reigns = reigns
        self._now = now
        self._events: list[LossEvent] = []
        self._decided: dict[Queue, list[float]] = {}
        """Queue -> time in seconds at which each offset was first applied by any node, by offset."""

    def ended(self, node: NodeId, how: str) -> None:
        """Records that a node's process ended. `how` is "stopped", "kill", "power" or a failure. An orderly stop
        ("stopped") is not recorded, because it loses nothing; a failure counts as a power failure."""
        if how != "stopped":
            self.happened(node, "end" if how == "kill" else "power")

    def happened(self, node: NodeId, kind: str) -> None:
        """Records an event of this kind on the machine, at the current time."""
        self._events.append(LossEvent(self._now(), node, kind))

    def applied(self, counts: Iterable[tuple[Queue, int]]) -> None:
        """Records how many messages of each queue some node has applied by now."""
        for queue, count in counts:
            known = self._decided.setdefault(queue, [])
            if count > len(known):
                known.extend([self._now()] * (count - len(known)))

    def allow(self, level: str, queue: Queue, offset: int, sent_s: float, options: Options) -> bool:
        """Returns True if the message that was sent at `sent_s` (virtual seconds) and acknowledged at this offset and
        level may be lost."""
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
    """Returns the kinds of events that lose a message which only the leader has: it was synced, written, or only in the
    leader's memory, depending on the flush options."""
    if not options.flush_async:
        return {"gone"}
    return {"gone", "power", "end"} if options.memory_pool else {"gone", "power"}

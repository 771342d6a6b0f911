"""Checks the outcomes that noisy clients were given against what is stored, and what passed against the rate that a
quota allows."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from jepsen_like.live.probes.noise import OURS, Ack, NoiseSends


class StoredMessage(NamedTuple):
    """A message of the topic, as a node has it."""

    queue: int
    offset: int
    body: bytes
    store_ms: int


def name_of(body: bytes) -> bytes:
    """Returns b"writer/number" of a body."""
    return body.partition(b" ")[0]


def wrong_messages(sent: Iterable[NoiseSends], stored: Iterable[StoredMessage]) -> list[str]:
    """Returns what is wrong with the messages of the topic: acknowledged ones are there once, refused ones are not,
    those of unknown outcome are there once at most."""
    found = Counter(name_of(each.body) for each in stored)
    wrong: list[str] = []
    for each in sent:
        for number in range(each.sent):
            name = b"%d/%d" % (each.writer, number)
            times = found.pop(name, 0)
            told, allowed = _fate(each, number)
            if times not in allowed:
                wrong.append(f"message {name.decode()}, which is {told}, is there {times} times")
    return wrong + [f"{name!r} was never sent" for name in found]


def _fate(sent: NoiseSends, number: int) -> tuple[str, tuple[int, ...]]:
    if number in sent.refused:
        return "refused", (0,)
    if number in sent.unknown:
        return "unknown", (0, 1)
    return "acknowledged", (1,)


def out_of_order(sent: Iterable[NoiseSends], from_s: float, to_s: float) -> list[str]:
    """Returns the acknowledged sends of plain connections that are stored before one that was sent earlier on the same
    connection, to the same queue. Only sends that were sent and acknowledged between these times count, because after a
    fault a connection may have been replaced.
    """
    wrong: list[str] = []
    for each in sent:
        lanes: dict[tuple[int, int], list[Ack]] = {}
        for ack in each.acks:
            if ack.lane != OURS and from_s <= ack.sent_s and ack.at_s <= to_s:
                lanes.setdefault((ack.lane, ack.queue), []).append(ack)
        for (lane, queue), acks in lanes.items():
            acks.sort(key=lambda ack: ack.offset)
            for before, after in itertools.pairwise(acks):
                if after.number < before.number:
                    told = f"connection {lane} of writer {each.writer}, queue {queue}"
                    wrong.append(f"{told}: message {before.number} stands before {after.number}")
    return wrong


class Window(NamedTuple):
    """A span of time, in seconds, in which clients must not exceed `rate` (per second)."""

    from_s: float
    to_s: float
    rate: float
    fresh: int = 0
    """The number of buckets that began full within the window, besides the first one."""

    @property
    def seconds(self) -> float:
        """The length of the window."""
        return self.to_s - self.from_s

    def most(self, tolerance: float) -> float:
        """Returns the most that may pass: the rate over the window with this tolerance, plus what full buckets allow at
        once: one second's worth at the start, and one for each later bucket that began full (`fresh`).
        """
        return (1 + tolerance) * self.rate * self.seconds + self.rate * (1 + self.fresh)

    def count(self, times_s: Iterable[float]) -> int:
        """Returns how many of these moments are within the window."""
        return sum(self.from_s <= each < self.to_s for each in times_s)


def too_much(what: str, window: Window, times_s: Iterable[float], tolerance: float) -> str:
    """Returns one line if more came in the window than may; else ""."""
    count, most = window.count(times_s), window.most(tolerance)
    if count <= most:
        return ""
    told = f"{window.rate:,.0f} a second and {1 + window.fresh} full buckets"
    return f"{what}: {count:,} in {window.seconds:.1f} s, where {most:,.0f} may be ({told})"


def acked_s(sent: Iterable[NoiseSends]) -> list[float]:
    """Returns the moments of all acknowledgements."""
    return [ack.at_s for each in sent for ack in each.acks]

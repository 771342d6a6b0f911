"""The pace of sends to a topic that are refused because of a quota: a few at a time, as many as were stored lately.

A refusal says that the rate of a topic is too high, but not which rate is allowed. So requests to the topic go out in
rounds, like those of a congestion window. A round ends when all of its requests were answered and a pause is over.
After a round with a refusal, the next has as many requests as were stored, plus one; after one without a refusal, it is
half as large again. If no more was stored than refused, the pause doubles; otherwise it becomes shorter by its first
length.

Without a pace each refusal would be repeated after one pause for all, which begins anew with whatever is stored: with
much in flight, most of what is sent would be refused time and again.
"""

from __future__ import annotations

import random
from typing import Final

PAUSE_S: Final = 0.1
"""The first pause, and the shortest."""
PAUSE_S_MAX: Final = 1.0
GROWS: Final = 1.5
"""The factor by which a round is larger than one of which nothing was refused."""
FORGET_S: Final = 1.0
"""Seconds without a refusal after which a topic has no pace any more."""


class TopicPace:
    """The rounds of one topic. Times are those of the loop, in seconds."""

    __slots__ = ("_jitter", "_out", "_pause_s", "_refused", "_refused_at", "_size", "_stored", "due", "refusal", "room")

    def __init__(self, jitter: random.Random, now: float) -> None:
        self._jitter = jitter
        self._pause_s = PAUSE_S
        self._size = 1
        """The requests that this round may send."""
        self._stored = self._refused = 0
        self._out = 0
        """The requests of this round that are not answered."""
        self._refused_at = now
        self.due = now + self._next_pause_s()
        """The end of the pause."""
        self.room = 0
        """The requests that may be sent yet in this round."""
        self.refusal: tuple[int, str | None] = (0, None)
        """The code and the remark of the last refusal."""

    def _next_pause_s(self) -> float:
        return self._pause_s * self._jitter.uniform(0.75, 1.0)

    def take(self) -> bool:
        """Counts one request into this round; returns False if the round is full."""
        if self.room <= 0:
            return False
        self.room -= 1
        self._out += 1
        return True

    def stored(self) -> None:
        """Records that a request was stored, also one that was sent before there was a pace."""
        self._stored += 1

    def refused(self, code: int, remark: str | None, now: float) -> None:
        """Records that a request was refused, also one that was sent before there was a pace."""
        self._refused += 1
        self._refused_at = now
        self.room = 0  # later sends must not overtake the refused one
        self.refusal = (code, remark)

    @property
    def is_first(self) -> bool:
        """True if the last refusal was the first one of its round."""
        return self._refused == 1

    def ended(self, requests: int) -> None:
        """Records that `requests` requests of this round were answered, or never will be."""
        self._out -= requests

    def is_over(self, now: float) -> bool:
        """Returns True if nothing waits, and nothing was refused for so long that the topic needs no pace."""
        return not self._out and self.room > 0 and now - self._refused_at >= FORGET_S

    def next_round(self, now: float) -> bool:
        """Begins the next round, and returns True, if this one has ended."""
        if self._out or now < self.due:
            return False
        if self._refused:
            self._size = self._stored + 1
        elif self._stored:
            self._size = max(self._size, int(GROWS * self._stored) + 1)
        if self._refused >= max(self._stored, 1):
            self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
        elif self._stored:
            self._pause_s = max(self._pause_s - PAUSE_S, PAUSE_S)
        self._stored = self._refused = 0
        self.room = self._size
        self.due = now + self._next_pause_s()
        return True

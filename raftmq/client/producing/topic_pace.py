"""The pace of sends to a topic that are refused because of a quota: a few at a time, about as many as were stored in
the last round.

A refusal says that the rate of a topic is too high, but not which rate is allowed. So requests to the topic go out in
rounds, like those of a congestion window. A round ends when all of its requests were answered and a pause is over.
After a round with a refusal, the next has as many requests as were stored, plus one; after a round without a refusal,
it is half as large again. If at least as many requests were refused as stored, the pause doubles; otherwise it becomes
shorter by its first length.

Without a pace, all refused requests would be sent again together after one common pause. With much in flight, most of
them would be refused again and again.
"""

from __future__ import annotations

import random
from typing import Final

PAUSE_S: Final = 0.1
"""The first and shortest pause, in seconds."""
PAUSE_S_MAX: Final = 1.0
GROWS: Final = 1.5
"""The factor by which a round grows after a round without a refusal."""
FORGET_S: Final = 1.0
"""Seconds without a refusal after which a topic has no pace any more."""


class TopicPace:
    """The rounds of requests to one topic. Times are loop times, in seconds."""

    __slots__ = ("_jitter", "_out", "_pause_s", "_refused", "_refused_at", "_size", "_stored", "due", "refusal", "room")

    def __init__(self, jitter: random.Random, now: float) -> None:
        self._jitter = jitter
        self._pause_s = PAUSE_S
        self._size = 1
        """The number of requests that one round may send."""
        self._stored = self._refused = 0
        self._out = 0
        """The number of requests of this round that are not answered yet."""
        self._refused_at = now
        self.due = now + self._next_pause_s()
        """The time when the pause ends."""
        self.room = 0
        """The number of requests that may still be sent in this round."""
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
        """True if exactly one request of this round was refused so far."""
        return self._refused == 1

    def ended(self, requests: int) -> None:
        """Records that `requests` requests of this round were answered, or never will be."""
        self._out -= requests

    def is_over(self, now: float) -> bool:
        """Returns True if the topic needs no pace any more: no request is unanswered, the round has room left, and
        nothing was refused for FORGET_S."""
        return not self._out and self.room > 0 and now - self._refused_at >= FORGET_S

    def next_round(self, now: float) -> bool:
        """Begins the next round if this one has ended and the pause is over. Returns True if it did."""
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

"""The queue of reads that wait until a majority confirms that this leader still leads (ReadIndex)."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from raftlog.types import ReadState


class _Round(NamedTuple):
    number: int
    index: int  # type: ignore[assignment]
    contexts: tuple[int, ...]


class ReadQueue:
    """The reads that are not yet in a round, and the rounds that are not yet confirmed.

    A round has the number of the heartbeat that began it. A follower that echoes number n confirms every round up to n,
    because heartbeat n was sent after those rounds began. Numbers rise for the life of the process, and replies of
    older terms never reach this queue.
    """

    __slots__ = ("last_round", "rounds", "states", "waiting")

    def __init__(self) -> None:
        self.last_round = 0
        self.waiting: list[int] = []
        """The contexts of the reads to put into the next round."""
        self.rounds: deque[_Round] = deque()
        self.states: list[ReadState] = []
        """The confirmed reads to give out in the next Ready."""

    def start_round(self, commit_index: int) -> None:
        """Puts all waiting reads into one round. They will be answered with `commit_index`."""
        self.last_round += 1
        self.rounds.append(_Round(self.last_round, commit_index, tuple(self.waiting)))
        self.waiting.clear()

    def confirm(self, number: int) -> None:
        """Answers the reads of every round up to `number`, which a majority has confirmed."""
        while self.rounds and self.rounds[0].number <= number:
            done = self.rounds.popleft()
            self.states.extend(ReadState(context, done.index) for context in done.contexts)

    def clear(self) -> None:
        """Drops all unconfirmed reads, because leadership ended: they are never answered. Confirmed answers stay
        true."""
        self.waiting.clear()
        self.rounds.clear()

"""The form of an attack: a name, a description, and a function that plays one round of it against one node and reports
the result."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from jepsen_like.client_kit.frames import ANSWER_S, Answer
from jepsen_like.client_kit.wire import Target

TOPIC, BULK_TOPIC = "hostile", "hostile-bulk"
QUEUES = 8
GROUP = "hostile-group"
ORDER_GROUPS = tuple(f"hostile-order-{number}" for number in range(6))
"""Groups that the rounds use in turn, so that two overlapping rounds do not commit for the same group."""
EVERY_S = 5.0
"""Seconds between the rounds of an attack."""
HOLD_S = 3.5
"""Seconds for which an attack holds, in each round, the resources that it is meant to hold."""


class Arena:
    """The cluster under attack, and the state that the rounds share."""

    def __init__(
        self,
        targets: list[Target],
        leader: int,
        cluster: str,
        seed: int,
        size: float,
        *,
        hold_s: float = HOLD_S,
        silence_s: float = ANSWER_S,
    ) -> None:
        """`size`: 1 is the attack as it was observed; less is a rehearsal. `hold_s`: seconds for which attacks that
        occupy something hold it; `silence_s`: those after which a request counts as unanswered."""
        self.targets = {target.id: target for target in targets}
        self.leader = self.targets[leader]
        self.cluster = cluster
        """The cluster's uuid, which every node reports."""
        self.rng = random.Random(seed)
        self.size = size
        self.hold_s = hold_s
        self.silence_s = silence_s
        self.serial = itertools.count(1)
        self.beside: frozenset[str] = frozenset()
        """Names of the attacks that are played at present."""
        self._turns: Counter[str] = Counter()

    def turn(self, name: str, of: int) -> int:
        """Returns the numbers below `of` in turn, for each name separately, so that overlapping rounds use different
        ones.
        """
        self._turns[name] += 1
        return self._turns[name] % of

    def sized(self, full: int) -> int:
        """Returns `full` scaled by the arena's size, at least 1."""
        return max(1, round(full * self.size))

    def target(self, round_number: int) -> Target:
        """Returns the node to attack in this round: the leader every other time, else one of the others in turn."""
        if round_number % 2 == 0 or len(self.targets) == 1:
            return self.leader
        others = [target for target in self.targets.values() if target is not self.leader]
        return others[round_number // 2 % len(others)]


class RoundReport:
    """The results of one round."""

    def __init__(self) -> None:
        self.sent = self.answered = self.closed = 0
        """Numbers of requests: all that were sent, those that were answered, and those whose connection was closed
        instead.
        """
        self.wrong: list[str] = []
        """Promises that were broken, each with its proof."""

    def note(self, answer: Answer, what: str) -> Answer:
        """Counts the outcome of a two-way request. Closing the connection is an acceptable answer to bytes that are no
        request; silence is not."""
        self.sent += 1
        self.answered += answer.is_answer
        self.closed += answer.code == -1
        if answer.code == -2:
            self.wrong.append(f"{what} was never answered")
        return answer

    def demand(self, holds: bool, what: str) -> None:
        """Adds `what` to the broken promises (`wrong`) unless `holds` is True."""
        if not holds:
            self.wrong.append(what)

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON, for the process that judges."""
        return {"sent": self.sent, "answered": self.answered, "closed": self.closed, "wrong": self.wrong}


class Attack(NamedTuple):
    """One kind of attack; `play` carries out one round of it."""

    name: str
    does: str
    play: Callable[[Arena, Target, RoundReport], Awaitable[None]]
    is_heavy: bool = False
    """True if its requests are legal and cost a node much work."""
    hinders: tuple[str, ...] = ()
    """Names of attacks that must not be played together with this one. Their findings would mean nothing, because the
    nodes then protect themselves as designed.
    """

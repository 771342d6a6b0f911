"""The plan of a run: it is made before the start, printed, and sufficient to repeat the run."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from jepsen_like.live.nemeses.coverage_gates import FULL_S
from jepsen_like.live.nemeses.nemesis_interface import Nemesis
from jepsen_like.live.nemeses.scenarios import NEMESES, Scenario
from jepsen_like.live.subjects.subject import Capability
from raftmq_wire.errors import ExitCode, LocalError

HOLD_S = (0.3, 2.5)
PAUSE_S = (0.3, 1.5)
HOSTILE = "hostile"
"""The name of the story that plays hostile clients together. A run plays it if all its faults are hostile clients."""
ONE_BY_ONE = "one-by-one"
"""The name of the story that plays hostile clients one by one beside other events (`Plan.beside`)."""
QUIET_S = 1.0
"""Seconds of load before the first fault."""
AGAIN_MAX, AGAIN_AFTER = 4, 3
"""AGAIN_MAX: the most times per round that one fault without effect is dealt again. AGAIN_AFTER: the number of other
faults that are dealt before such a fault comes again.
"""
PACE_MIN, PACE_MARGIN = 0.5, 0.93


class Plan(NamedTuple):
    """The parameters of a run, fixed before it starts."""

    subject: str
    scenario: Scenario | None
    nemeses: tuple[Nemesis, ...]
    time_s: float
    seed: int
    rate: int
    chosen: bool
    """True if the user named the faults or a scenario; otherwise all faults of the mix that this machine supports are
    dealt.
    """
    scale: float = 1.0
    """The scale of a scripted scenario, and of hostile clients: 1 for the full size, less for a rehearsal."""
    rate_given: bool = False
    """True if the user named the rate."""
    beside: tuple[str, ...] = ()
    """Names of the events (kills, snapshots and so on) that are caused at the nodes while one kind of hostile client at
    a time attacks them; (): no events are caused, and a few kinds or all attack together (`at_once`)."""
    secured: bool = False
    """True if clients speak TLS and are users, whose rules are enforced."""
    at_once: int | None = 2
    """The number of attacks of hostile clients that run at the same time; None: all of them, all the time."""

    @property
    def is_scripted(self) -> bool:
        """True if the run plays acts instead of faults."""
        return self.scenario is not None and self.scenario.is_scripted

    @property
    def story(self) -> str | None:
        """The name of the story that is played instead of randomly dealt faults
        (`jepsen_like.live.stories.story_table`); None if there is none."""
        if self.scenario is not None and self.scenario.is_scripted:
            return self.scenario.name
        return story_of(self.nemeses, self.beside)

    @property
    def full_s(self) -> float:
        """Seconds under faults of a full run; does not apply to scripted scenarios."""
        return FULL_S if self.scenario is None else self.scenario.full_s

    @property
    def gates_count(self) -> bool:
        """True if a missed gate ends the run with an exit code of its own: the run is long enough, and at full
        scale."""
        return self.scale >= 1 and (self.is_scripted or bool(self.beside) or self.time_s >= self.full_s)

    @property
    def command(self) -> str:
        """The command that repeats the run; the machine's own timing cannot be repeated."""
        words = [
            f"raftmq chaos run --subject {self.subject} --time {self.time_s:g} --seed {self.seed} --rate {self.rate}"
        ]
        if self.scenario is not None:
            words.append(f"--scenario {self.scenario.name}")
        elif self.chosen:
            words.append(f"--nemesis {','.join(nemesis.name for nemesis in self.nemeses)}")
        if self.beside:
            words.append(f"--beside {','.join(self.beside)}")
        if self.story is not None:
            words.append(f"--scale {self.scale:g}")
        if self.story == HOSTILE:
            words.append(f"--at-once {'all' if self.at_once is None else self.at_once}")
        if self.secured:
            words.append("--secured")
        return " ".join(words)


def all_hostile(nemeses: tuple[Nemesis, ...] | None) -> bool:
    """Returns True if there are faults and each is an action of a client."""
    return bool(nemeses) and all(nemesis.is_hostile for nemesis in nemeses or ())


def story_of(nemeses: tuple[Nemesis, ...] | None, beside: tuple[str, ...]) -> str | None:
    """Returns the name of the story that plays these faults; None if the faults are dealt at random."""
    if not all_hostile(nemeses):
        return None
    return ONE_BY_ONE if beside else HOSTILE


class Choice(NamedTuple):
    """The faults to play, and those that are left out, each with the reason."""

    nemeses: tuple[Nemesis, ...]
    skipped: dict[str, str]


def choose(
    capabilities: frozenset[Capability], missing: dict[Capability, str], asked: tuple[Nemesis, ...] | None
) -> Choice:
    """Chooses the faults in `asked`; if that is None, all faults of the mix. Those that cannot be played here are
    skipped and never counted.

    `missing` says why a capability is not available. Raises LocalError if none of the wanted faults can be played.
    """
    wanted = tuple(nemesis for nemesis in NEMESES.values() if nemesis.is_mixed) if asked is None else asked
    skipped = {}
    for nemesis in wanted:
        if lacking := nemesis.needs - capabilities:
            first = min(lacking, key=lambda capability: capability.value)
            skipped[nemesis.name] = missing.get(first, f"this subject has no {first.value}")
    playable = tuple(nemesis for nemesis in wanted if nemesis.name not in skipped)
    if wanted and not playable:
        raise LocalError(
            "none of these faults can be played here",
            "; ".join(f"{name}: {why}" for name, why in skipped.items()),
            "raftmq chaos doctor",
            ExitCode.REFUSED,
        )
    return Choice(playable, skipped)


class Deck:
    """Deals faults in rounds. Each round contains every fault once, or as often as `emphasis` says, in an order drawn
    by the seed. A fault without effect is put back into its round.
    """

    def __init__(self, nemeses: tuple[Nemesis, ...], rng: random.Random, emphasis: Mapping[str, int]) -> None:
        self._nemeses = [each for each in nemeses for _ in range(emphasis.get(each.name, 1))]
        self._rng = rng
        self._left: list[Nemesis] = []
        self._returned: Counter[str] = Counter()
        self.rounds = 0
        """The number of rounds that have begun."""

    def deal(self) -> Nemesis | None:
        """Returns the next fault; None if there are none to play."""
        if not self._left and self._nemeses:
            self._left = list(self._nemeses)
            self._rng.shuffle(self._left)
            self._returned.clear()
            self.rounds += 1
        return self._left.pop() if self._left else None

    def again(self, nemesis: Nemesis) -> None:
        """Puts a fault that had no effect back into the round, behind AGAIN_AFTER others. Does nothing if the same
        fault was put back AGAIN_MAX times in this round.
        """
        if self._returned[nemesis.name] < AGAIN_MAX:
            self._returned[nemesis.name] += 1
            self._left.insert(max(0, len(self._left) - AGAIN_AFTER), nemesis)

    def due(self, rounds: float) -> float:
        """Returns how many faults remain to be applied until `rounds` rounds are complete."""
        return max(0.0, (rounds - self.rounds) * len(self._nemeses) + len(self._left))


def pace(left_s: float, due: float, each_s: float) -> float:
    """Returns the factor, from PACE_MIN to 1, by which to multiply the duration of faults so that `due` faults of
    `each_s` seconds each fit into `left_s` seconds. It leaves a margin for faults that have to be played again.
    """
    return min(1.0, max(PACE_MIN, PACE_MARGIN * left_s / (due * each_s))) if due and each_s else 1.0

"""Plays schedules and random seeds with the engine (simulator) that a bug names, and returns the checker that reported.

An engine is imported only when it is used: a worker that searches the core does not wait for the other packages.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from jepsen_like.sim.result import SimResult


class Fired(NamedTuple):
    """Name of the checker that reported a violation (None: none did), and its description."""

    checker: str | None
    detail: str


NOBODY = Fired(None, "")
SEEN_BY_CLIENTS = frozenset({"lost-ack", "stale-read", "no-progress", "quiescent-failover"})
"""Checkers of the core's schedules that look only at answers to clients. A schedule's `expect` may look at anything."""


class Engine(Protocol):
    """A simulator that runs whatever packages are imported. Exceptions of mutated code are not caught."""

    def play(self, schedule: str, named: Collection[str], *, black_box: bool = False) -> Fired:
        """Plays a schedule. If several checkers report, one of those `named` is returned. `black_box`: only checkers of
        what clients see may report."""

    def seed(self, seed: int, named: Collection[str], *, black_box: bool) -> Fired:
        """Runs a random seed, with the same arguments as `play`."""


class Core:
    """The engine `jepsen_like.core_sim`: the Raft core alone."""

    def play(self, schedule: str, named: Collection[str], *, black_box: bool = False) -> Fired:
        """Plays a schedule. The first violation ends it; with `black_box`, only a checker of what clients see
        counts."""
        from jepsen_like.core_sim.scripted import CoreStage
        from jepsen_like.core_sim.violation import PromiseBroken

        try:
            CoreStage(black_box=black_box).play(schedule)
        except PromiseBroken as violation:
            if not black_box or violation.checker in SEEN_BY_CLIENTS:
                return Fired(violation.checker, violation.detail)
        return NOBODY

    def seed(self, seed: int, named: Collection[str], *, black_box: bool) -> Fired:
        """Runs a random seed."""
        from jepsen_like.core_sim.run import run_seed

        return Fired(run_seed(seed, black_box=black_box).checker, "")


class Full:
    """The engine `jepsen_like.sim`: full nodes and clients."""

    def play(self, schedule: str, named: Collection[str], *, black_box: bool = False) -> Fired:
        """Plays a schedule. If several checkers report, one of those `named` is returned. `black_box`: only checkers of
        what clients see may report."""
        from jepsen_like.sim.scripted import play

        return _fired(play(schedule, black_box=black_box), named)

    def seed(self, seed: int, named: Collection[str], *, black_box: bool) -> Fired:
        """Runs a random seed."""
        from jepsen_like.sim.world import run_seed

        return _fired(run_seed(seed, black_box=black_box), named)


def _fired(verdict: SimResult, named: Collection[str]) -> Fired:
    """Returns the violation of a run, preferably of a checker in `named`: the first violation ends a run, and one event
    may show several."""
    found = [violation for violation in verdict.violations if violation.checker in named] or verdict.violations
    return Fired(found[0].checker, found[0].what) if found else NOBODY


ENGINES: dict[str, Engine] = {"core": Core(), "full": Full()}

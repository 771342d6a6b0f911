"""Plays schedules and random seeds, by the engine that a bug names: the checker that fires, and what it says.

An engine is imported when it is used: a worker that searches the core does not wait for the rest of the packages.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from jepsen_like.sim.world import SimResult


class Fired(NamedTuple):
    """The checker that fired (None: nobody) and what it says."""

    checker: str | None
    detail: str


NOBODY = Fired(None, "")
SEEN_BY_CLIENTS = frozenset({"lost-ack", "stale-read", "no-progress", "quiescent-failover"})
"""Checkers of schedules of the core that look at answers alone. `expect` of a schedule may look at anything."""


class Engine(Protocol):
    """Runs whatever packages are imported; the exceptions of mutated code come through."""

    def play(self, schedule: str, named: Collection[str], *, black_box: bool = False) -> Fired:
        """Plays a schedule. If several checkers fire, one of those `named` is told. `black_box`: only what clients see
        may fire."""

    def seed(self, seed: int, named: Collection[str], *, black_box: bool) -> Fired:
        """Runs a random seed."""


class Core:
    """`jepsen_like.core_sim`: the Raft core alone."""

    def play(self, schedule: str, named: Collection[str], *, black_box: bool = False) -> Fired:
        """Plays a schedule; one of the checkers `named` is told if several fire. `black_box`: only what clients see may
        fire.
        """
        from jepsen_like.core_sim.scripted import Stage
        from jepsen_like.core_sim.violation import Violation

        try:
            Stage(black_box=black_box).play(schedule)
        except Violation as violation:
            if not black_box or violation.checker in SEEN_BY_CLIENTS:
                return Fired(violation.checker, violation.detail)
        return NOBODY

    def seed(self, seed: int, named: Collection[str], *, black_box: bool) -> Fired:
        """Runs a random seed."""
        from jepsen_like.core_sim.run import run_seed

        return Fired(run_seed(seed, black_box=black_box).checker, "")


class Full:
    """`jepsen_like.sim`: full nodes and clients."""

    def play(self, schedule: str, named: Collection[str], *, black_box: bool = False) -> Fired:
        """Plays a schedule; one of the checkers `named` is told if several fire. `black_box`: only what clients see may
        fire.
        """
        from jepsen_like.sim.scripted import play

        return _fired(play(schedule, black_box=black_box), named)

    def seed(self, seed: int, named: Collection[str], *, black_box: bool) -> Fired:
        """Runs a random seed."""
        from jepsen_like.sim.world import run_seed

        return _fired(run_seed(seed, black_box=black_box), named)


def _fired(verdict: SimResult, named: Collection[str]) -> Fired:
    """A run is stopped by its first violation, and one event may show several."""
    found = [violation for violation in verdict.violations if violation.checker in named] or verdict.violations
    return Fired(found[0].checker, found[0].what) if found else NOBODY


ENGINES: dict[str, Engine] = {"core": Core(), "full": Full()}

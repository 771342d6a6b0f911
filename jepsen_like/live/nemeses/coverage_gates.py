"""Gates: conditions that a run of the random mix must meet to count as a full run, each with its measured value.

A verdict says whether a promise was broken; a gate says whether the run was hard enough for the verdict to mean much.
So a missed gate never changes the verdict. A valid run that was long enough to meet its gates and missed one ends with
an exit code of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from jepsen_like.live.nemeses.nemesis_interface import Counts, Effect

FULL_S = 600.0
"""Seconds of the random mix from which on its gates count; for shorter runs they are scaled down and only shown."""
ACKED, LEADER_CHANGES, POWER_FAILURES, FELT = 500_000, 30, 100, 5
UNKNOWN_PERCENT = 2.0


class Gate(NamedTuple):
    """One condition that a run must meet."""

    name: str
    value: float
    wanted: float
    at_most: bool = False
    """True if `wanted` is an upper limit; False if it is a lower one."""
    told: str = ""
    """Names of the faults that missed a gate over several faults; "" for other gates."""

    @property
    def holds(self) -> bool:
        """True if the gate is met."""
        return self.value <= self.wanted if self.at_most else self.value >= self.wanted

    @property
    def line(self) -> str:
        """The gate as a line for people: ok or MISSED, the value and the wanted one."""
        sign = "<=" if self.at_most else ">="
        behind = f" ({self.told})" if self.told and not self.holds else ""
        return f"{'ok' if self.holds else 'MISSED':<6} {self.name} {self.value:,g} {sign} {self.wanted:,g}{behind}"


def rounds_due(time_s: float) -> float:
    """Returns how many times each fault is to have an effect in a run of that length; may be a fraction."""
    return FELT * time_s / FULL_S


def applied_and_felt(names: Iterable[str], played: Iterable[tuple[str, Effect]]) -> dict[str, tuple[int, int]]:
    """Returns fault -> (how often it was applied, how often it had a measured effect), with 0 for faults that were
    never applied."""
    applied: Counter[str] = Counter()
    felt: Counter[str] = Counter()
    for name, effect in played:
        applied[name] += 1
        felt[name] += effect.happened
    return {name: (applied[name], felt[name]) for name in dict.fromkeys([*names, *applied])}


def gates(
    time_s: float, counts: Counts, faults: dict[str, tuple[int, int]], leader_changes: int, power_failures: int | None
) -> list[Gate]:
    """Returns all gates of the mix. `power_failures` is None if this machine cannot play them: then their gate is
    skipped, not passed."""
    share = min(1.0, time_s / FULL_S)
    done = counts.acked + counts.failed + counts.unknown
    found = [
        Gate("acknowledged", counts.acked, int(ACKED * share)),
        _every_fault_felt(faults, int(FELT * share)),
        Gate("leader changes", leader_changes, int(LEADER_CHANGES * share)),
        Gate("unknown percent", round(100 * counts.unknown / done, 3) if done else 0.0, UNKNOWN_PERCENT, at_most=True),
    ]
    if power_failures is not None:
        found.insert(3, Gate("power failures", power_failures, int(POWER_FAILURES * share)))
    return found


def scenario_gates(faults: dict[str, tuple[int, int]]) -> list[Gate]:
    """Returns the gates of a scenario that deals faults: each fault must have had an effect as often as in a full run
    of the mix. Returns [] for a scenario without faults.
    """
    return [_every_fault_felt(faults, FELT)] if faults else []


def _every_fault_felt(faults: dict[str, tuple[int, int]], wanted: int) -> Gate:
    behind = {name: felt for name, (_, felt) in faults.items() if felt < wanted}
    return Gate(
        "every fault felt",
        min((felt for _, felt in faults.values()), default=0),
        wanted,
        told=", ".join(f"{name} {felt}" for name, felt in behind.items()),
    )

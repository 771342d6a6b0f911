"""A long search that never reached a rare state was blind there: it fails. A short one or a single seed does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jepsen_like.core_sim import campaign as core
from jepsen_like.sim import campaign as full
from jepsen_like.sim.checks.monitor import SOMETIMES
from tests.support.rows import each_row


def full_summary(seeds: int, missing: str | None) -> full.Summary:
    """`seeds` runs that each reached one state, so that only their sum has all of them but the missing one."""
    summary = full.Summary(0)
    for seed in range(seeds):
        name = SOMETIMES[seed % len(SOMETIMES)]
        verdict: Any = SimpleNamespace(
            seed=seed,
            violations=[],
            counts=True,
            leader_changes=1,
            faults={},
            sometimes={name: int(name != missing)},
        )
        summary.add(verdict)
    return summary


def core_summary(seeds: int, missing: str | None) -> core.CoreSummary:
    summary = core.CoreSummary(
        0, seeds=seeds, enough_acked=seeds, enough_faults=seeds, mid_append=seeds, leader_changed=seeds
    )
    summary.seen.update(name for name in core.RARE_STATES if name != missing)
    return summary


@each_row("missing", [None, *SOMETIMES])
def test_a_state_the_full_node_search_never_reached_fails_it(missing: str | None) -> None:
    expected = [] if missing is None else [f"never reached: {missing}"]
    assert full_summary(full.SOMETIMES_FROM, missing).shortfalls() == expected
    assert full_summary(full.SOMETIMES_FROM - 1, missing).shortfalls() == []


@each_row("missing", [None, *core.RARE_STATES])
def test_a_state_the_core_search_never_reached_fails_it(missing: str | None) -> None:
    expected = [] if missing is None else [f"never reached: {missing}"]
    assert core_summary(core.RARE_STATES_FROM, missing).shortfalls() == expected
    assert core_summary(core.RARE_STATES_FROM - 1, missing).shortfalls() == []

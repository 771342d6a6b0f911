"""Commands of a level above the baseline wait until every member has announced it. The level is invented."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.repair import peers
from cluster.replication.outcome import Outcome, ProposeResult
from raftlog.baseline import BASELINE
from statemachine import commands
from statemachine.commands import CREATE_TOPIC, PUT_GROUP
from tests.support.sim_cluster import SimCluster

SEED = 1

NEXT = commands.LEVEL + 1
OLD: commands.Command = [CREATE_TOPIC, {"name": "U"}, True]
NEW: commands.Command = [PUT_GROUP, {"name": "g"}, True]


@pytest.fixture
def sim(sim_of: Callable[..., SimCluster], monkeypatch: pytest.MonkeyPatch) -> SimCluster:
    """A cluster of a version whose command put_group is new."""
    monkeypatch.setitem(commands.LEVELS, PUT_GROUP, NEXT)
    monkeypatch.setattr(commands, "LEVEL", NEXT)
    monkeypatch.setattr(peers, "LEVEL", NEXT)
    return sim_of()


def propose(sim: SimCluster, *run: commands.Command) -> ProposeResult:
    results: list[ProposeResult] = []
    sim.leader().running.services.propose(list(run), results.append)
    sim.loop.run_until(lambda: results, 20, "an answer")
    return results[0]


def levels(sim: SimCluster) -> list[int]:
    sim.settle()
    return [node.state.level for node in sim.running]


def test_the_first_command_of_a_level_raises_it_in_its_own_entry(sim: SimCluster) -> None:
    assert propose(sim, OLD).outcome is Outcome.OK
    assert levels(sim) == [BASELINE] * 3
    made = propose(sim, OLD, NEW)
    assert (made.outcome, [each.ok for each in made.results]) == (Outcome.OK, [True, True])
    assert levels(sim) == [NEXT] * 3


def test_a_member_that_has_not_announced_it_is_named(sim: SimCluster) -> None:
    old = sim.followers()[0]
    announced = sim.leader().transport._levels
    announced[old.node_id] = BASELINE
    refused = propose(sim, NEW)
    assert refused.outcome is Outcome.FAIL
    assert f"node {old.node_id} has not announced commands of level {NEXT}" in refused.remark
    assert levels(sim) == [BASELINE] * 3
    assert propose(sim, OLD).outcome is Outcome.OK
    announced[old.node_id] = NEXT
    assert propose(sim, NEW).outcome is Outcome.OK
    announced[old.node_id] = BASELINE
    assert propose(sim, NEW).outcome is Outcome.OK, "it is in the log: nobody is asked"


def test_without_commands_above_the_baseline_nobody_is_asked(sim: SimCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(commands.LEVELS, PUT_GROUP)
    for node in sim.running:
        node.transport._levels.clear()
    assert propose(sim, NEW).outcome is Outcome.OK
    assert levels(sim) == [BASELINE] * 3

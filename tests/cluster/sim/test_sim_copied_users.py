"""Users and rules on whole nodes of another group of brokers than the first, which has told them once and is away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.replication.outcome import ProposeResult
from cluster.truth.truth_copies import ALARM
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.commands import Command
from statemachine.levels import GROUPS_LEVEL
from statemachine.topics.topics import CreateTopic
from statemachine.truth import CopyTruth, JournalNames, TruthPage
from tests.support.sim_cluster import SimCluster, SimNode
from tests.support.sim_users import SHOP, answer, begin, send, with_key
from tests.support.truth_kit import SECOND


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> TruthPage:
    """What a first group with users tells of itself."""
    with with_key(tmp_path_factory.mktemp("first")) as first:
        begin(first, level=GROUPS_LEVEL)
        topic = CreateTopic({"name": "T", "perm": 6, "place": [[2, 4, 4]]}, False)
        propose(first, SECOND, topic, JournalNames(1_000))
        return first.leader().state.truth.after(0)


def propose(sim: SimCluster, *run: Command) -> None:
    results: list[ProposeResult] = sim.propose(sim.leader(), *run)
    sim.loop.run_until(lambda: results, 20, "an answer")
    assert [each.ok for each in results[0].results] == [True] * len(run), results


@pytest.fixture
def settings() -> dict[str, Any]:
    return {}


@pytest.fixture
def sim(tmp_path: Path, told: TruthPage, settings: dict[str, Any]) -> Iterator[SimCluster]:
    with with_key(tmp_path, group=2, **settings) as made:
        propose(made, Finalize(GROUPS_LEVEL))
        propose(made, CopyTruth(0, told.version, told.rows))
        made.loop.run_until(lambda: all(node.state.truth.copied for node in made.running), 10, "copied everywhere")
        yield made


def sent(sim: SimCluster, node: SimNode) -> tuple[int, str]:
    """Code and remark of the answer to a send of a user who may."""
    path = node.connect()
    path.ask(send(SHOP, 1))
    return answer(sim, path, 1), path.replies[1][0][1]


def test_users_are_served_while_the_first_group_is_away(sim: SimCluster) -> None:
    """What counts is the leader of the own group: `auth.stale_ms_max` is long over for the first one."""
    sim.loop.run_for(6 * sim.leader().running.config.auth.stale_ms_max / 1000)
    assert sim.leader().running.alarms.raised(ALARM)
    for node in sim.running:
        assert sent(sim, node)[0] == 0


def test_a_node_without_the_majority_of_its_own_group_judges_nothing(sim: SimCluster) -> None:
    lonely = sim.leader()
    sim.isolate(lonely)
    sim.loop.run_for(15.0)
    code, remark = sent(sim, lonely)
    assert (code, "auth.stale_ms_max is 10000" in remark) == (14, True), remark
    sim.mend()
    sim.loop.run_until(lambda: lonely.running.serving.unheard() == "", 20, "it hears its leader")
    assert sent(sim, lonely)[0] == 0


@pytest.mark.parametrize("settings", [{"auth.copy_ms_max": 20_000}])
def test_no_node_judges_by_an_old_copy_if_that_is_set(sim: SimCluster) -> None:
    for node in sim.running:
        code, remark = sent(sim, node)
        assert code == 14
        assert "since this node started no leader of group 1 has confirmed its copy of users and rules" in remark

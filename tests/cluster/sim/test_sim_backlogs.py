"""Quotas of what a topic keeps: a send beyond it is refused with 215, or the oldest messages go, as the topic says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster.broker.topic_sizes import measure
from cluster.flow.backlogs import MEASURED_EVERY_MS
from raftmq_wire.codes import ResponseCode
from statemachine.access.quotas import SetQuotas
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import LEVEL
from statemachine.removal_slices import DeleteTopic
from statemachine.topics.topics import CreateTopic
from tests.support.sim_cluster import ClientPath, SimCluster, codes, send_frame

OVER = ResponseCode.FLOW_CONTROL
KEEPS = 20_000
BODY = b"x" * 900
MakeSim = Callable[..., SimCluster]


@pytest.fixture
def sim() -> Iterator[SimCluster]:
    with SimCluster(73, **{"retention.every_ms": 1_000}) as made:
        made.propose(made.leader(), Finalize(LEVEL))
        for topic in ("T", "U"):
            made.create_topic(topic)
        change(made, SetQuotas([("topic=T", {"backlog_bytes": KEEPS})], 1, "ann"))
        yield made


def change(sim: SimCluster, command: Any) -> None:
    sim.propose(sim.leader(), command)
    sim.settle()
    sim.loop.run_for(0.1)


def send(sim: SimCluster, path: ClientPath, numbers: range, topic: str = "T", pause_s: float = 0.1) -> list[int]:
    """Sends one after the other; returns the codes of the answers."""
    found = []
    for number in numbers:
        path.ask(send_frame(number, topic, BODY))
        sim.loop.run_for(pause_s)
        found += codes(path, number)
    return found


def kept(sim: SimCluster, topic: str = "T") -> int:
    state = sim.leader().running.state
    config = state.topics[topic]
    return measure(state, [config], 1_000)[config.id].bytes


@pytest.mark.parametrize("place", ["leader", "follower"])
def test_a_send_beyond_it_is_refused_and_not_stored(sim: SimCluster, place: str) -> None:
    path = (sim.leader() if place == "leader" else sim.followers()[0]).connect()
    found = send(sim, path, range(40))
    assert (found[:15], found[-10:]) == ([0] * 15, [OVER] * 10), "requests are larger than what is stored of them"
    assert 0.8 * KEEPS < kept(sim) <= KEEPS
    _, remark, _ = path.replies[39][0]
    assert remark.startswith("topic=T may have 20,000 bytes in its queues, has 1")
    assert remark.endswith(
        "(quota topic=T); nothing was stored, consume faster, or let the topic give up its oldest messages"
    )
    assert send(sim, path, range(100, 103), "U") == [0] * 3, "another topic"
    change(sim, SetQuotas([("topic=T", {"backlog_bytes": 2 * KEEPS})], 1, "ann"))
    assert send(sim, path, range(200, 205)) == [0] * 5
    change(sim, SetQuotas([("topic=T", None)], 1, "ann"))
    assert send(sim, path, range(300, 340)) == [0] * 40
    sim.check_equal()
    refusals = sim.leader().proposals.flow.paced.buckets.rules.refusals()
    assert [each for each in refusals if each.refused] == [], "of quotas that are there"


def test_what_has_gone_makes_room(sim: SimCluster) -> None:
    path = sim.leader().connect()
    assert send(sim, path, range(40))[-1] == OVER
    leader = sim.leader().running.state
    attributes = {"retention.ms": "1"}
    change(sim, CreateTopic({"name": "T", "attributes": attributes}, False))
    sim.loop.run_for(3)
    assert kept(sim) == 0
    assert leader.min_offset(leader.topics["T"].id, 0) > 0
    send(sim, path, range(50, 51))
    sim.loop.run_for(1.5)
    assert send(sim, path, range(60, 65)) == [0] * 5


def test_a_topic_that_goes_and_comes_again_is_empty(sim: SimCluster) -> None:
    path = sim.leader().connect()
    assert send(sim, path, range(40))[-1] == OVER
    change(sim, DeleteTopic("T"))
    sim.create_topic("T")
    found = send(sim, path, range(50, 90))
    assert found.count(0) > 15
    assert found[-1] == OVER


def test_a_new_leader_knows_it_after_a_moment(sim: SimCluster) -> None:
    assert send(sim, sim.leader().connect(), range(40))[-1] == OVER
    sim.leader().kill(power=False)
    sim.loop.run_for(3)
    found = send(sim, sim.leader().connect(), range(50, 70))
    assert found.count(0) <= 5
    assert found[-1] == OVER


def test_the_oldest_go_where_the_topic_says_so(sim: SimCluster) -> None:
    change(sim, CreateTopic({"name": "T", "attributes": {"backlog.policy": "evict"}}, False))
    path = sim.leader().connect()
    assert send(sim, path, range(100)) == [0] * 100
    sim.loop.run_for(3)
    assert 0.8 * KEEPS < kept(sim) <= KEEPS
    state = sim.leader().running.state
    topic = state.topics["T"].id
    assert state.max_offset(topic, 0) - state.min_offset(topic, 0) < 25
    assert state.max_offset(topic, 0) == 100, "the newest are there"
    sim.settle()
    sim.check_equal()


def test_who_sends_seldom_is_measured_seldom(sim: SimCluster) -> None:
    """Nobody is measured because there is a quota: only while somebody sends."""
    begun: list[int] = []
    backlogs = sim.leader().proposals.flow.paced.backlogs
    due = backlogs.due
    backlogs.due = lambda now_ms: begun.extend(found := due(now_ms)) or found  # type: ignore[method-assign]
    path = sim.leader().connect()
    send(sim, path, range(5))
    sim.loop.run_for(10 * MEASURED_EVERY_MS / 1000)
    assert len(begun) <= 2

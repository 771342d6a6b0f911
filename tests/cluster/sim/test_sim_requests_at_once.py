"""Quotas of requests at once: no more of an owner's sends are under way, and the others wait, or are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from raftmq_wire.codes import ResponseCode
from statemachine.access.quotas import SetQuotas
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import LEVEL
from tests.support.sim_cluster import ClientPath, SimCluster, codes, send_frame

OVER = ResponseCode.FLOW_CONTROL
AT_ONCE = 3


@pytest.fixture
def sim() -> Iterator[SimCluster]:
    with SimCluster(74) as made:
        made.propose(made.leader(), Finalize(LEVEL))
        for topic in ("T", "U"):
            made.create_topic(topic)
        limit(made, {"address=*": {"requests": AT_ONCE}})
        yield made


def limit(sim: SimCluster, quotas: dict[str, Any]) -> None:
    sim.propose(sim.leader(), SetQuotas(list(quotas.items()), 1, "ann"))
    sim.settle()
    sim.loop.run_for(0.1)


def ask(path: ClientPath, numbers: range, topic: str = "T", **fields: Any) -> None:
    for number in numbers:
        path.ask(send_frame(number, topic, b"%d" % number, **fields))


def answers(path: ClientPath, numbers: range) -> list[list[int]]:
    return [codes(path, number) for number in numbers]


def stored(sim: SimCluster, topic: str = "T") -> list[int]:
    return [int(body) for body in sim.leader().bodies(topic)]


@pytest.mark.parametrize("place", ["leader", "follower"])
def test_what_is_more_waits_in_its_order(sim: SimCluster, place: str) -> None:
    path = (sim.leader() if place == "leader" else sim.followers()[0]).connect()
    proposals, most = sim.leader().proposals, []

    def looked(_: Any) -> None:
        most.append(proposals.gate.sends.requests)

    sim.loop.after_event, before = looked, sim.loop.after_event
    ask(path, range(30))
    ask(path, range(100, 110), "U")
    sim.loop.run_for(0.25)
    sim.loop.after_event = before
    assert answers(path, range(30)) == [[0]] * 30
    assert answers(path, range(100, 110)) == [[0]] * 10
    assert max(most) == AT_ONCE
    assert stored(sim) == list(range(30))
    assert proposals.gate.left() == {}


def test_what_has_waited_for_long_enough_is_refused(sim: SimCluster) -> None:
    path, leader = sim.leader().connect(), sim.leader()
    held = [node.append for node in sim.followers()]
    for lane in held:
        lane.hold()
    ask(path, range(10))
    sim.loop.run_for(0.5)
    assert answers(path, range(10)) == [[]] * 10
    assert (leader.proposals.gate.sends.requests, len(leader.proposals.flow.paced)) == (AT_ONCE, 7)
    sim.loop.run_for(0.7)
    assert answers(path, range(3, 10)) == [[OVER]] * 7
    _, remark, _ = path.replies[9][0]
    assert remark == (
        "address=10.0.0.9 may have 3 sends at once (quota address=*); nothing was stored, send more slowly"
    )
    for lane in held:
        lane.release()
    sim.loop.run_for(1)
    assert answers(path, range(3)) == [[0]] * 3
    ask(path, range(20, 30))
    sim.loop.run_for(1)
    assert answers(path, range(20, 30)) == [[0]] * 10
    assert stored(sim) == [0, 1, 2, *range(20, 30)]
    assert {each.owner: each.refused for each in leader.proposals.flow.paced.buckets.rules.refusals()} == {
        "address=10.0.0.9": 7
    }


def test_a_rate_and_a_number_at_once_hold_together(sim: SimCluster) -> None:
    limit(sim, {"topic=T": {"send_messages": 10}})
    path = sim.leader().connect()
    ask(path, range(15))
    sim.loop.run_for(0.3)
    assert sum(map(len, answers(path, range(15)))) in (12, 13)
    sim.loop.run_for(1)
    assert answers(path, range(15)) == [[0]] * 15
    assert stored(sim) == list(range(15))


def test_a_quota_that_goes_lets_what_waits_go(sim: SimCluster) -> None:
    path, leader = sim.leader().connect(), sim.leader()
    ask(path, range(50))
    limit(sim, {"address=*": None})
    sim.loop.run_for(1)
    assert answers(path, range(50)) == [[0]] * 50
    assert leader.proposals.gate.at_once is None
    assert leader.proposals.gate.left() == {}

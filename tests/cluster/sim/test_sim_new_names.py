"""Quotas of new topics and groups: what each way to make one is answered, and that nothing is made then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from raftmq_wire.codec import encode_frame
from raftmq_wire.codes import RequestCode, ResponseCode
from statemachine.access.quotas import SetQuotas
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import LEVEL
from tests.support.sim_cluster import ClientPath, SimCluster, send_frame

OVER = ResponseCode.FLOW_CONTROL
TOPIC = {
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
}


@pytest.fixture
def sim() -> Iterator[SimCluster]:
    with SimCluster(72) as made:
        made.propose(made.leader(), Finalize(LEVEL))
        made.create_topic("T")
        limit(made, {"address=*": {"new_topics": 2, "new_groups": 2}})
        yield made


def limit(sim: SimCluster, quotas: dict[str, Any]) -> None:
    sim.propose(sim.leader(), SetQuotas(list(quotas.items()), 1, "ann"))
    sim.settle()
    sim.loop.run_for(0.1)


def answer(sim: SimCluster, path: ClientPath, frame: bytes) -> tuple[int, str]:
    opaque = frame_number(frame)
    path.ask(frame)
    sim.loop.run_for(0.5)
    (only,) = path.replies[opaque]
    return only[0], only[1]


def frame_number(frame: bytes) -> int:
    found: int = json.loads(frame[8 : 8 + int.from_bytes(frame[5:8], "big")])["opaque"]
    return found


def create(number: int, name: str) -> bytes:
    return encode_frame(RequestCode.UPDATE_AND_CREATE_TOPIC, number, 0, ext={**TOPIC, "topic": name})


def group(number: int, name: str) -> bytes:
    body = json.dumps({"groupName": name}).encode()
    return encode_frame(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, number, 0, ext={}, body=body)


def heartbeat(number: int, *names: str) -> bytes:
    """`number`: none that a node gives to its own requests, which come to members of a group that changes."""
    rows = [{"groupName": name, "subscriptionDataSet": [{"topic": "T", "subString": "*"}]} for name in names]
    body = json.dumps({"clientID": "c", "consumerDataSet": rows, "producerDataSet": []}).encode()
    return encode_frame(RequestCode.HEART_BEAT, number, 0, ext={}, body=body)


def made(sim: SimCluster) -> set[str]:
    state = sim.leader().running.state
    return {*state.topics} | {f"group {name}" for name in state.groups}


@pytest.mark.parametrize("place", ["leader", "follower"])
def test_topics_that_a_client_creates(sim: SimCluster, place: str) -> None:
    path = (sim.leader() if place == "leader" else sim.followers()[0]).connect()
    before = made(sim)
    assert [answer(sim, path, create(n, f"n{n}"))[0] for n in range(2)] == [0, 0]
    code, remark = answer(sim, path, create(2, "n2"))
    assert (code, remark[:30]) == (OVER, "topic n2 was not made: address")
    assert "may have 2 new topics a minute (quota address=*); try again in 2" in remark
    assert answer(sim, path, create(3, "n1"))[0] == 0, "a change of one that is there"
    assert made(sim) - before == {"n0", "n1"}
    sim.loop.run_for(31)
    assert answer(sim, path, create(4, "n4"))[0] == 0
    assert answer(sim, path, create(5, "n5"))[0] == OVER


def test_topics_that_a_send_makes(sim: SimCluster) -> None:
    path = sim.leader().connect()
    sent = [
        answer(sim, path, send_frame(n, name, b"x"))[0] for n, name in enumerate(("a", "%RETRY%g", "b", "%RETRY%h"))
    ]
    assert sent == [0, 0, OVER, OVER]
    assert answer(sim, path, send_frame(9, "T", b"x"))[0] == 0, "one that is there costs nothing"
    assert not {"b", "%RETRY%h"} & made(sim)


def test_groups_that_a_heartbeat_makes(sim: SimCluster) -> None:
    path = sim.leader().connect()
    before = made(sim)
    code, remark = answer(sim, path, heartbeat(1_000_001, "g", "h", "i"))
    assert (code, remark[:29]) == (OVER, "group i was not made: address")
    assert made(sim) - before == {"group g", "group h", "%RETRY%g", "%RETRY%h"}, "its topic comes with a group"
    assert answer(sim, path, heartbeat(1_000_002, "g", "h"))[0] == 0
    sim.loop.run_for(31)
    assert answer(sim, path, heartbeat(1_000_003, "g", "h", "i"))[0] == 0, "the next heartbeat makes it"
    assert "group i" in made(sim)


def test_groups_that_a_client_creates(sim: SimCluster) -> None:
    path = sim.leader().connect()
    assert [answer(sim, path, group(n, f"g{n}"))[0] for n in range(3)] == [0, 0, OVER]
    assert answer(sim, path, group(3, "g0"))[0] == 0
    clone = encode_frame(RequestCode.CLONE_GROUP_OFFSET, 4, 0, ext={"srcGroup": "g0", "destGroup": "g4", "topic": "T"})
    assert answer(sim, path, clone)[0] == OVER
    assert "group g4" not in made(sim)


def test_a_leader_that_begins_has_full_buckets(sim: SimCluster) -> None:
    path = sim.leader().connect()
    assert [answer(sim, path, create(n, f"n{n}"))[0] for n in range(3)] == [0, 0, OVER]
    sim.leader().kill(power=False)
    sim.loop.run_for(5)
    other = sim.leader().connect()
    assert [answer(sim, other, create(n, f"m{n}"))[0] for n in range(3)] == [0, 0, OVER]


def test_who_leads_again_begins_with_full_buckets(sim: SimCluster) -> None:
    first, second = sim.leader(), sim.followers()[0]
    assert [answer(sim, first.connect(), create(n, f"n{n}"))[0] for n in range(3)] == [0, 0, OVER]
    for node in (second, first):
        assert sim.leader().hand_over(node.node_id)
        sim.loop.run_until(lambda node=node: node.proposals.open, 10, "it leads")  # type: ignore[misc]
    assert [answer(sim, first.connect(), create(n, f"m{n}"))[0] for n in range(3)] == [0, 0, OVER]


def test_a_quota_that_was_taken_away_limits_nothing(sim: SimCluster) -> None:
    path = sim.leader().connect()
    assert [answer(sim, path, create(n, f"n{n}"))[0] for n in range(3)] == [0, 0, OVER]
    limit(sim, {"address=*": None})
    assert answer(sim, path, create(3, "n3"))[0] == 0

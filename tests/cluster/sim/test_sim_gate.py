"""What each way of a request asks of the gate, and under which label a refusal is counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from cluster.flow.gate import ITSELF, GateRequest, Holder
from raftmq_wire.codec import encode_frame
from raftmq_wire.codes import RequestCode
from tests.support.sim_cluster import ClientPath, SimCluster, SimNode, codes, send_frame

PID = b"\x0a" * 16
CLIENT = "10.0.0.9"
LOCK = b'{"consumerGroup":"g","clientId":"c","mqSet":[]}'


@pytest.fixture
def sim() -> Iterator[SimCluster]:
    with SimCluster(27) as made:
        made.create_topic("T")
        made.settle()
        yield made


def taken_by(node: SimNode) -> list[tuple[str, int, GateRequest]]:
    """The (address, user, what was asked) of each request that the node takes from now on, the long way."""
    gate: Any = node.proposals.gate
    hold = gate.hold
    found: list[tuple[str, int, GateRequest]] = []

    def noted(holder: Holder, size: int, user: int, ask: GateRequest) -> Any:
        found.append((holder.address, user, ask))
        return hold(holder, size, user, ask)

    gate.hold = noted
    return found


def answered(sim: SimCluster, path: ClientPath, *numbers: int) -> list[list[int]]:
    sim.loop.run_until(lambda: all(number in path.replies for number in numbers), 5)
    return [codes(path, number) for number in numbers]


def test_a_send_is_new_once_however_it_comes(sim: SimCluster) -> None:
    follower, leader = sim.followers()[0], sim.leader()
    passed_on, taken = taken_by(follower), taken_by(leader)
    path, other = follower.connect(), leader.connect()
    path.ask(send_frame(1, "T", b"a"))
    assert answered(sim, path, 1) == [[0]]
    assert (passed_on, taken) == ([(CLIENT, 0, GateRequest.FORWARDED_SEND)], [(CLIENT, 0, GateRequest.NEW)])
    taken.clear()
    other.ask(send_frame(1, "NEW", b"b"))
    assert answered(sim, other, 1) == [[0]]
    assert taken == [(CLIENT, 0, GateRequest.WAITING), (CLIENT, 0, GateRequest.NEW)]
    taken.clear()
    for number in (2, 3):
        other.ask(send_frame(number, "T", b"c", pid=PID, seq=1, low=1))
    assert answered(sim, other, 2, 3) == [[0], [0]]
    other.ask(send_frame(4, "T", b"c", pid=PID, seq=1, low=1))
    assert answered(sim, other, 4) == [[0]]
    assert taken == [(CLIENT, 0, GateRequest.NEW), (CLIENT, 0, GateRequest.REPEATED)], (
        "what is stored is answered and not taken"
    )


def test_a_copy_that_the_node_makes_is_nobody_s(sim: SimCluster) -> None:
    leader = sim.leader()
    taken = taken_by(leader)
    path = leader.connect()
    path.ask(send_frame(1, "T", b"later", properties="DELAY\x011\x02"))
    assert answered(sim, path, 1) == [[0]]
    sim.loop.run_until(lambda: len(taken) > 1, 10)
    assert taken == [(CLIENT, 0, GateRequest.NEW), ("", ITSELF, GateRequest.OWN)]


def fill(node: SimNode) -> None:
    """Lets the node take no further byte of sends and of what goes to the leader."""
    config = node.running.config
    node.proposals.gate.reload(replace(config, limits=replace(config.limits, node_inflight_bytes_max=1)))


def test_a_refusal_is_counted_under_its_limit_and_a_repetition_of_what_is_stored_is_none(sim: SimCluster) -> None:
    """The answer "busy" would deny what is stored."""
    leader = sim.leader()
    path = leader.connect()
    path.ask(send_frame(1, "T", b"a", pid=PID, seq=1, low=1))
    assert answered(sim, path, 1) == [[0]]
    fill(leader)
    path.ask(send_frame(2, "T", b"a", pid=PID, seq=1, low=1))
    assert answered(sim, path, 2) == [[0]]
    assert leader.refused == {}
    path.ask(send_frame(3, "T", b"b", pid=PID, seq=2, low=1))
    assert answered(sim, path, 3) == [[2]]
    assert "limits.node_inflight_bytes_max = 1" in path.replies[3][0][1]
    assert leader.refused == {"busy": 1}


@pytest.mark.parametrize(
    "frame",
    [send_frame(1, "T", b"a"), encode_frame(RequestCode.LOCK_BATCH_MQ, 1, 0, body=LOCK)],
    ids=["send", "other"],
)
def test_a_refusal_on_the_way_to_the_leader_is_counted_by_the_node_of_the_client(sim: SimCluster, frame: bytes) -> None:
    follower, leader = sim.followers()[0], sim.leader()
    fill(follower)
    path = follower.connect()
    path.ask(frame)
    assert answered(sim, path, 1) == [[2]]
    assert "limits.node_inflight_bytes_max = 1" in path.replies[1][0][1]
    assert (follower.refused, leader.refused) == ({"busy": 1}, {})


def test_a_refusal_of_the_leader_is_counted_there_once(sim: SimCluster) -> None:
    """The node that holds the connection passes the answer on."""
    follower, leader = sim.followers()[0], sim.leader()
    fill(leader)
    path = follower.connect()
    path.ask(send_frame(1, "T", b"a"))
    assert answered(sim, path, 1) == [[2]]
    assert (follower.refused, leader.refused) == ({}, {"busy": 1})

"""A producer that settles nothing, and repeats a send after its session has left the leader's memory."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.flow.gate import ITSELF, GateRequest
from statemachine.dedup import READ_PARTS, Dedup
from statemachine.rows.kv import KVError
from tests.cluster.sim.test_sim_proposals import OK, UNKNOWN, answered, ask, stored
from tests.support.sim_cluster import ClientPath, SimCluster

SEED = 31
PRODUCER = b"\7" * 16
SENDS = 2 * READ_PARTS


def send(path: ClientPath, sequence: int, opaque: int) -> None:
    ask(path, b"%d" % sequence, first=opaque, pid=PRODUCER, seq=sequence, low=1)


@pytest.fixture
def sim(sim_of: Any) -> SimCluster:
    """Each of the sends is an entry of its own; no session is in the leader's memory."""
    made: SimCluster = sim_of()
    path = made.leader().connect()
    for sequence in range(1, SENDS + 1):
        send(path, sequence, sequence)
        answered(made, path, sequence)
    dedup_of(made)._sessions.clear()
    return made


def dedup_of(sim: SimCluster) -> Dedup:
    return sim.leader().state._dedup


def test_repeats_are_recognised_after_one_reading(sim: SimCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    dedup, read = dedup_of(sim), []
    read_session = dedup.read_session

    def counted(producer_id: bytes) -> Any:
        read.append(producer_id)
        return read_session(producer_id)

    monkeypatch.setattr(dedup, "read_session", counted)
    path = sim.leader().connect()
    for opaque, sequence in enumerate((5, 5, SENDS, 1)):
        send(path, sequence, opaque)
    assert not path.replies, "they wait"
    assert path.in_flight.bytes > 0
    assert answered(sim, path, 4) == [[OK]] * 4
    places = [b'"queueOffset":"%d"' % offset for offset in (4, 4, SENDS - 1, 0)]
    assert all(place in path.replies[opaque][0][2] for opaque, place in enumerate(places))
    assert read == [PRODUCER]
    assert path.in_flight.bytes == sim.leader().proposals.gate.sends.bytes == 0
    assert len(stored(sim)) == SENDS


def test_a_new_send_needs_no_reading(sim: SimCluster) -> None:
    path, queue = sim.leader().connect(), sim.leader().proposals.flow.queue
    send(path, 5, 1)
    assert len(queue) == 0, "what needs it waits for it"
    path = sim.leader().connect()
    send(path, SENDS + 1, 0)
    assert len(queue) == 1, "at once"
    assert answered(sim, path, 1) == [[OK]]
    assert len(stored(sim)) == SENDS + 1


def test_a_client_that_left_meanwhile_is_not_answered(sim: SimCluster) -> None:
    path = sim.leader().connect()
    send(path, 5, 0)
    path.close()
    sim.loop.run_for(0.5)
    assert path.in_flight.bytes == sim.leader().proposals.gate.sends.bytes == 0
    assert len(stored(sim)) == SENDS


def test_what_cannot_be_read_is_unknown(sim: SimCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: bytes) -> Any:
        raise KVError("no")

    monkeypatch.setattr(dedup_of(sim), "read_session", fail)
    path = sim.leader().connect()
    send(path, 5, 0)
    assert answered(sim, path, 1) == [[UNKNOWN]]
    assert path.in_flight.bytes == 0


def test_without_room_to_wait_a_repeat_is_unknown_and_recognised_later(
    sim: SimCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Busy would say that it is not stored."""
    leader = sim.leader()
    path = leader.connect()
    gate, limit = leader.proposals.gate, leader.config.limits.node_inflight_bytes_max
    others = gate.hold(gate.holder(""), limit, ITSELF, GateRequest.OWN)
    send(path, 5, 0)
    assert answered(sim, path, 1) == [[UNKNOWN]]
    sim.loop.run_for(0.5)
    send(path, 5, 1)
    assert answered(sim, path, 2) == [[UNKNOWN], [OK]]
    others.ended()
    assert len(stored(sim)) == SENDS

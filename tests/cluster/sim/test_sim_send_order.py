"""Sends of one connection are stored in the order in which they came, also where they were held for a leader."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from cluster.runtime.peer_frames import Kind
from raftlog.types import NodeId, Role
from raftmq_wire.codec import encode_frame
from tests.support.sim_cluster import SimCluster, codes

SEED = 37
OK = 0


def send(sequence: int, producer_id: str = "ab" * 16, queue_id: int = 0) -> bytes:
    """A send of our client, with its sequence as opaque and as body."""
    fields = ("clients", "T", "TBW102", "4", str(queue_id), "0", "1", "0", "", "0")
    identity = {"raftmqPid": producer_id, "raftmqSeq": str(sequence), "raftmqLow": "1"}
    return encode_frame(
        310, sequence, 0, ext=dict(zip("abcdefghij", fields, strict=True)) | identity, body=b"%d" % sequence
    )


def stored(sim: SimCluster) -> list[int]:
    sim.heal()
    sim.settle()
    sim.check_equal()
    return [int(body) for body in sim.running[0].bodies("T")]


@pytest.fixture
def sim(sim_of: Callable[..., SimCluster]) -> SimCluster:
    return sim_of()


def test_held_sends_go_before_those_that_come_when_writes_are_open(sim: SimCluster) -> None:
    """A node that has just become the leader has them in hand; what was held goes in a later turn of its loop."""
    leader = sim.leader()
    sim.begin_term(leader)
    path = leader.connect()
    for sequence in (1, 2, 3):
        path.ask(send(sequence))
    leader.proposals.opened.add(lambda: path.ask(send(4)))
    leader.apply.release()
    sim.loop.run_until(lambda: all(codes(path, n) == [OK] for n in (1, 2, 3, 4)), 5)
    assert stored(sim) == [1, 2, 3, 4]


def test_what_a_leader_hands_back_goes_before_what_came_later(sim: SimCluster) -> None:
    leader, through = sim.leader(), sim.followers()[0]
    path = through.connect()
    with through.mute():
        path.ask(send(1))
        path.ask(send(2))
    first, second = through.forwarded
    for number in (first, second):
        through.forwarder.on_frame(leader.node_id, Kind.FORWARD_REPLY, [number, False], b"")
    path.ask(send(3))
    sim.loop.run_until(lambda: all(codes(path, n) == [OK] for n in (1, 2, 3)), 5)
    assert stored(sim) == [1, 2, 3]


def test_what_waits_behind_a_repetition_stays_there_when_leadership_is_lost(sim_of: Callable[..., SimCluster]) -> None:
    """Seed 948500088: the first attempts came through a node that died, and the repetitions wait for their outcome."""
    sim = sim_of(**{"limits.batches_inflight_max": 1, "send.deadline_ms": 20_000})
    leader, (through, other) = sim.leader(), sim.followers()
    for node in (through, other):
        node.append.hold()
    leader.connect().ask(send(9, "cd" * 16))
    sim.loop.run_for(0.01)
    path = through.connect()
    path.ask(send(1))
    path.ask(send(2))
    sim.loop.run_until(lambda: len(leader.proposals.flow.queue) == 2, 1)
    through.kill(power=False)
    again = leader.connect()
    for sequence in (1, 2, 3):
        again.ask(send(sequence))
    sim.loop.run_for(0.01)
    assert len(leader.proposals.flow.queue) == 3, "the first two wait behind those that came before"
    sim.isolate(leader)
    other.append.release()
    through.start()
    sim.loop.run_until(lambda: leader.raw.role is not Role.LEADER and sim.find_leader() is not None, 10)
    sim.mend()
    sim.loop.run_until(lambda: all(codes(again, n) == [OK] for n in (1, 2, 3)), 20)
    assert [each for each in stored(sim) if each != 9] == [1, 2, 3]


def test_what_a_former_leader_has_goes_to_the_next_one_before_what_came_later(sim: SimCluster) -> None:
    """The way to the next leader opens after the node has heard of it."""
    former, (through, next_one) = sim.leader(), sim.followers()
    path = through.connect()
    with sim.unlinked(through, next_one):
        sim.cut(through, former)
        path.ask(send(1))
        path.ask(send(2))
        former.transfer(next_one.node_id)
        sim.loop.run_until(lambda: through.raw.leader_id == next_one.node_id, 1)
        path.ask(send(3))
        sim.loop.run_for(0.01)
    sim.loop.run_until(lambda: through.transport.connected(next_one.node_id), 5)
    path.ask(send(4))
    sim.loop.run_until(lambda: all(codes(path, n) == [OK] for n in (1, 2, 3, 4)), 5)
    assert sim.find_leader() is next_one
    assert stored(sim) == [1, 2, 3, 4]


def test_random_faults_keep_the_order_of_each_connection(sim_of: Callable[..., SimCluster]) -> None:
    """Leaders change and links break while each of a few connections has sends in flight, and nothing comes again."""
    made = sim_of()
    rng, loop = made.rng, made.loop
    sequence = 0
    lives: list[range] = []
    for life in range(10):
        path, first = rng.choice(made.running).connect(), sequence + 1
        for _ in range(60):
            sequence += 1
            path.ask(send(sequence, producer_id=f"{life:032x}"))
            if rng.random() < 0.3:
                loop.run_for(rng.uniform(0, 0.05))
            leader, chance = made.find_leader(), rng.random()
            if leader is not None and chance < 0.04:
                leader.transfer(NodeId(rng.choice([1, 2, 3])))
            elif leader is not None and chance < 0.08:
                made.isolate(leader)
            elif chance < 0.2:
                made.mend()
        made.heal()
        loop.run_for(rng.uniform(0, 4.0))
        lives.append(range(first, sequence + 1))
    found = stored(made)
    assert len(found) == len(set(found)) > 200
    for sent in lives:
        of_it = [number for number in found if number in sent]
        wrong = [(before, after) for before, after in pairwise(of_it) if before > after]
        assert not wrong, f"stored as {of_it}"

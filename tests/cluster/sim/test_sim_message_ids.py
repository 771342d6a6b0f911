"""Ids and keys across failovers: no two acknowledged messages share an id, and every node finds each by id and key."""

from __future__ import annotations

import json

import pytest

from cluster.broker.reads.message_lookup import KeyLookup, KeyQuery, QueryResult, message_at
from raftmq_wire.message_format import decode_message_id
from tests.support.sim_cluster import SimCluster, SimNode, codes, send_frame

ROUNDS, SENDS = 5, 12


def send_all(sim: SimCluster, leader: SimNode, round_number: int, acked: dict[str, bytes]) -> None:
    """Sends through a leader; notes what was acknowledged: offsetMsgId -> body."""
    path = leader.connect()
    for n in range(SENDS):
        body = b"%d-%d" % (round_number, n)
        path.ask(send_frame(n, "T", body, queue_id=n % 2, key=f"key-{body.decode()}"))
    sim.loop.run_until(lambda: len(path.replies) == SENDS, 20, "answers")
    for n in range(SENDS):
        assert codes(path, n) == [0]
        message_id = json.loads(path.replies[n][0][2])["msgId"]
        assert message_id not in acked, "an id was given twice"
        acked[message_id] = b"%d-%d" % (round_number, n)


def lose_proposals(sim: SimCluster, leader: SimNode) -> None:
    """Sends that reach no majority: the next leader writes other messages at their positions."""
    sim.isolate(leader)
    path = leader.connect()
    for n in range(SENDS):
        path.ask(send_frame(n, "T", b"lost-%d" % n, key=f"lost-{n}"))
    sim.loop.run_for(0.2)


def found_by_key(node: SimNode, key: str) -> list[bytes]:
    topic = node.state.topics["T"]
    lookup = KeyLookup(node.running.serving.services, topic, KeyQuery(key, unique=True, count_max=9))
    steps = lookup.steps()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: QueryResult = end.value
            return [stored.message.body for stored in found.messages]


@pytest.mark.parametrize("seed", range(3))
def test_c6_ids_are_unique_across_failovers_and_lead_to_their_messages(seed: int) -> None:
    acked: dict[str, bytes] = {}
    with SimCluster(
        seed,
        segment_size=1 << 15,
        **{"limits.message_bytes_max": 4096, "limits.batch_bytes_max": 8192, "limits.frame_bytes_max": 1 << 17},
    ) as sim:
        sim.create_topic("T")
        for round_number in range(ROUNDS):
            leader = sim.leader()
            send_all(sim, leader, round_number, acked)
            lose_proposals(sim, leader)
            sim.leader(besides=leader)
            sim.heal()
        sim.settle()
        sim.check_equal()
        assert len({decode_message_id(message_id)[1] for message_id in acked}) == ROUNDS * SENDS
        for node in sim.running:
            for message_id, body in acked.items():
                stored = message_at(node.running.serving.services, decode_message_id(message_id)[1])
                assert stored is not None
                assert stored.message.body == body
                assert found_by_key(node, f"key-{body.decode()}") == [body]
            for body in set(node.bodies("T")) - set(acked.values()):
                assert body.startswith(b"lost-"), "what was undecided may be stored after all"

"""`replication.thrifty` on whole nodes: a follower that no commit waits for gets entries in batches, and soon."""

from __future__ import annotations

from tests.cluster.sim.test_sim_calls import LOOPBACK_S, Producer
from tests.support.sim_cluster import SimCluster, SimNode

SENDS = 40


def held_at_answers(sim: SimCluster, leader: SimNode) -> int:
    """Sends one message after the other; returns how often something was held when one was answered."""
    sim.create_topic("bench", 4)
    producer, times = Producer(sim), 0
    for _ in range(SENDS):
        producer.send(1)
        thrift = leader.running.thrift
        times += thrift is not None and bool(thrift.appends.held)
    return times


def test_a_message_is_answered_while_a_follower_lacks_it_and_gets_it_soon_after() -> None:
    options = {"replication.thrifty": "on"}
    with SimCluster(7, segment_size=1 << 24, inline=1.0, latency_s=LOOPBACK_S, **options) as sim:
        leader = sim.leader()
        assert held_at_answers(sim, leader) > SENDS // 4
        peers = leader.running.raw.status().peers
        assert {peer.caught_up for peer in peers} == {True}, "held counts as sent"
        sim.loop.run_for(0.05)
        last = leader.running.raw.last_index
        assert {node.running.raw.last_index for node in sim.nodes.values()} == {last}


def test_nothing_is_held_while_the_disk_is_not_quick() -> None:
    """Then appends go to the lane, whose thread takes a turn of its own."""
    with SimCluster(7, segment_size=1 << 24, inline=0.0, **{"replication.thrifty": "on"}) as sim:
        assert held_at_answers(sim, sim.leader()) == 0


def test_it_is_off_by_default() -> None:
    """The driver has the transport itself, and each message goes straight to the inbox."""
    with SimCluster(7, segment_size=1 << 24, inline=1.0) as sim:
        assert held_at_answers(sim, sim.leader()) == 0
        assert {node.running.thrift for node in sim.nodes.values()} == {None}

"""The configuration of the cluster on simulated nodes: who gives it, when it counts, and what a start takes from it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cluster.config.cluster_keys import CLUSTER_KEYS
from statemachine.cluster_wide.settings import SetConfig, SetMaintenance, Settings
from tests.support.sim_cluster import SimCluster, SimNode, codes, send_frame

SEED = 19


def settings(node: SimNode) -> Settings:
    return node.state.settings


def seeded(sim: SimCluster) -> None:
    sim.loop.run_until(lambda: all(settings(node).version for node in sim.running), 30, "a configuration everywhere")


def change(sim: SimCluster, **values: Any) -> None:
    """Changes values as the leader would, once it has checked them; waits until every running node has them."""
    leader, keys = sim.leader(), {key.replace("__", "."): value for key, value in values.items()}
    version = settings(leader).version
    results = sim.propose(leader, SetConfig(version, leader.raw.log_time_ms(), "test", "", keys))
    sim.loop.run_until(lambda: results, 10, "the change is decided")
    assert results[0].results[-1].ok, results
    sim.loop.run_until(lambda: all(settings(node).version > version for node in sim.running), 10, "it is everywhere")


def test_the_first_leader_gives_it_and_it_is_the_same_everywhere(sim_of: Callable[..., SimCluster]) -> None:
    sim = sim_of(config=1, **{"retention.hours": 7})
    seeded(sim)
    rows = [settings(node).by_key for node in sim.running]
    assert rows[0].keys() == set(CLUSTER_KEYS)
    assert rows[0]["retention.hours"].value == 7
    assert rows[1] == rows[0]
    assert rows[2] == rows[0]
    index = sim.leader().raw.last_index
    sim.loop.run_for(5)
    assert [settings(node).version for node in sim.running] == [1, 1, 1], "and it is given once"
    assert sim.leader().raw.last_index == index


def test_a_change_counts_on_every_node_without_a_restart(sim_of: Callable[..., SimCluster]) -> None:
    sim = sim_of(config=1)
    seeded(sim)
    change(sim, limits__message_bytes_max=100, topics__default_queues=3, send__deadline_ms=4000)
    for number, node in enumerate(sim.running, 1):
        assert node.running.config.limits.message_bytes_max == 100
        assert node.running.serving.services.config.send.deadline_ms == 4000
        path = node.connect()
        path.ask(send_frame(number, "T", b"x" * 101, key=f"K{number}"))
        sim.loop.run_until(partial(path.replies.__contains__, number), 20)
        assert codes(path, number) == [13], "also on the node that forwards"
    sent = sim.leader().connect()
    sent.ask(send_frame(9, "fresh", b"small", key="K9"))
    sim.loop.run_until(lambda: 9 in sent.replies, 20)
    assert sim.leader().state.topics["fresh"].queues == 3


def test_a_start_takes_it_from_the_rows_and_not_from_the_file(sim_of: Callable[..., SimCluster]) -> None:
    sim = sim_of(config=1)
    seeded(sim)
    change(sim, retention__hours=5)
    sim.loop.run_for(5)
    node = sim.followers()[0]
    node.kill(power=False)
    node.start()
    sim.loop.run_until(lambda: node.is_started, 30, "it is back")
    assert node.running.layers.own.retention.hours == 72
    assert node.running.config.retention.hours == 5
    assert node.running.keeping.retention._rules.hours == 5


def maintain(sim: SimCluster, node: SimNode, reason: str | None) -> None:
    """Changes a node's maintenance as the leader would; waits until every running node knows."""
    leader = sim.leader()
    results = sim.propose(leader, SetMaintenance(int(node.node_id), 1, "test", reason))
    wanted = reason is not None
    sim.loop.run_until(
        lambda: bool(results) and all((node.node_id in settings(each).maintenance) == wanted for each in sim.running),
        10,
        "every node knows",
    )


def test_a_node_in_maintenance_hands_over_and_leads_nothing_until_it_ends(sim_of: Callable[..., SimCluster]) -> None:
    sim = sim_of(config=1)
    seeded(sim)
    node = sim.leader()
    maintain(sim, node, "a new disk")
    sim.leader(30, besides=node)
    node.kill(power=False)
    node.start()
    sim.loop.run_until(lambda: node.is_started, 30, "it is back")
    assert node.running.peers.changes.maintained, "before its first election timeout"
    for _ in range(2):  # whoever leads is cut off: the third takes over
        before = sim.leader()
        sim.isolate(before)
        assert sim.leader(60, besides=before) is not node
        sim.heal()
        sim.loop.run_for(3)
    maintain(sim, node, None)
    assert not node.running.peers.changes.maintained
    sim.loop.run_for(5)
    sim.leader().transfer(node.node_id)
    sim.loop.run_until(lambda: sim.find_leader() is node, 30, "it may lead again")

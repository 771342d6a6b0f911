"""Metrics: what each call moves, and that docs/metrics.md tells them all."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from cluster.broker import broker_metrics
from cluster.broker.broker_metrics import BrokerLook, BrokerMetrics, ConnectionCounts, consumers_of, producers_of
from cluster.broker.groups.group_lag import QueueLag
from cluster.node.event_watch import reason_of
from cluster.node.metrics import NodeMetrics
from cluster.peer.link_state import LinkFigures, LinkState
from cluster.placement.known_groups import RegistryProcess
from cluster.placement.registry_metrics import RegistryMetrics
from cluster.placement.registry_state import RegistryState
from cluster.replication.metrics import Delays
from cluster.replication.outcome import Outcome
from cluster.runtime.turns.turn_watch import LongTurn, LoopLagSampler
from cluster.runtime.turns.work import Turns
from cluster.state.recovery_views import RecoveryStatus
from cluster.tier.store.memory_store import MemoryStore
from cluster.tier.store.retrying_store import RequestCounts
from cluster.tier.tier_assembly import ReadMetrics, TierReading
from raftlog.membership import Membership
from raftlog.types import NodeId, Role
from raftlog.work import at_once
from statemachine.tier import TierState
from tests.support.rows import each_row


@pytest.fixture
def metrics() -> NodeMetrics:
    return NodeMetrics()


def value(metrics: NodeMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def raft(metrics: NodeMetrics, leader: int) -> None:
    metrics.raft(term=7, role=Role.LEADER, leader_id=NodeId(leader), commit_index=10, applied_index=9, last_index=12)


def test_a_batch_moves_counts_and_histograms(metrics: NodeMetrics) -> None:
    metrics.proposed(messages=100, size_bytes=5000)
    metrics.proposed(messages=0, size_bytes=70)
    metrics.appends.written(5070, 0.002, 0.0)
    metrics.applied(2, 0.001)
    metrics.settled(Outcome.OK, 100, 0.004)
    metrics.settled(Outcome.UNKNOWN, 3, 3.0)
    assert value(metrics, "raftmq_raft_proposals_total") == 2
    assert value(metrics, "raftmq_batch_messages_sum") == 100
    assert value(metrics, "raftmq_batch_messages_count") == 1
    assert value(metrics, "raftmq_batch_bytes_sum") == 5070
    assert value(metrics, "raftmq_append_bytes_total") == 5070
    assert value(metrics, "raftmq_append_seconds_sum") == 0.002
    assert value(metrics, "raftmq_apply_entries_total") == 2
    assert value(metrics, "raftmq_apply_seconds_count") == 1
    assert value(metrics, "raftmq_raft_settled_total", outcome="ok") == 100
    assert value(metrics, "raftmq_raft_settled_total", outcome="unknown") == 3
    assert value(metrics, "raftmq_raft_settled_total", outcome="fail") == 0
    assert value(metrics, "raftmq_raft_commit_seconds_count") == 1


def test_topics_have_their_own_series_until_they_are_deleted(metrics: NodeMetrics) -> None:
    metrics.messages_in("orders", 10, 1000)
    metrics.messages_in("orders", 5, 500)
    metrics.messages_out("orders", 3, 300)
    assert value(metrics, "rocketmq_messages_in_total", topic="orders") == 15
    assert value(metrics, "rocketmq_throughput_in_total", topic="orders") == 1500
    assert value(metrics, "rocketmq_messages_out_total", topic="orders") == 3
    assert value(metrics, "rocketmq_throughput_out_total", topic="orders") == 300
    metrics._forget_deleted({"orders", "users"})
    assert value(metrics, "rocketmq_messages_in_total", topic="orders") == 15
    metrics._forget_deleted({"users"})
    assert b"orders" not in metrics.render()
    metrics.messages_in("orders", 1, 1)
    assert value(metrics, "rocketmq_messages_in_total", topic="orders") == 1


def test_leader_changes_count_only_new_leaders(metrics: NodeMetrics) -> None:
    for leader in (1, 1, 0, 1, 2):
        raft(metrics, leader)
    assert value(metrics, "raftmq_raft_leader_changes_total") == 2
    assert value(metrics, "raftmq_raft_leader_id") == 2
    assert value(metrics, "raftmq_raft_role") == 3
    assert value(metrics, "raftmq_raft_commit_index") == 10


def test_peers_are_those_of_now(metrics: NodeMetrics) -> None:
    metrics.peers([(NodeId(2), 10, 3), (NodeId(3), 13, 0)])
    assert value(metrics, "raftmq_peer_lag_entries", peer="2") == 3
    metrics.peers([(NodeId(3), 20, 1)])
    assert value(metrics, "raftmq_peer_match_index", peer="2") is None
    assert value(metrics, "raftmq_peer_match_index", peer="3") == 20


def test_refusals_and_pulls(metrics: NodeMetrics) -> None:
    metrics.refused("busy")
    metrics.refused("busy")
    metrics.pulled("found")
    assert value(metrics, "raftmq_requests_refused_total", reason="busy") == 2
    assert value(metrics, "raftmq_pulls_total", outcome="found") == 1


def test_two_nodes_in_one_process_do_not_share_figures(metrics: NodeMetrics) -> None:
    metrics.proposed(1, 1)
    assert value(NodeMetrics(), "raftmq_raft_proposals_total") == 0


class FakeLoop:
    """A loop whose clock the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timer: Callable[[], None] | None = None
        self.due = 0.0

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> FakeLoop:
        self.due, self.timer = when, callback
        return self

    def cancel(self) -> None:
        self.timer = None

    def fire(self, late: float) -> None:
        assert self.timer is not None
        self.now = self.due + late
        self.timer()


def test_loop_lag_is_the_largest_of_ten_seconds(metrics: NodeMetrics) -> None:
    loop = FakeLoop()
    sampler = LoopLagSampler(loop, metrics)  # type: ignore[arg-type]
    sampler.start()
    loop.fire(late=0.5)
    for _ in range(39):
        loop.fire(late=0.001)
    assert value(metrics, "raftmq_loop_lag_seconds") == pytest.approx(0.5)
    loop.fire(late=0.001)
    assert value(metrics, "raftmq_loop_lag_seconds") == pytest.approx(0.001)
    sampler.stop()
    assert loop.timer is None


def test_every_metric_is_documented(metrics: NodeMetrics) -> None:
    text = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    documented = {
        name: (kind, labels, meaning)
        for name, kind, labels, meaning in re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) ?\| (.*) \|$", text, re.MULTILINE)
    }
    assert documented == {name: facts for name, facts in described(metrics) if not name.startswith("process_")}


def described(metrics: NodeMetrics) -> list[tuple[str, tuple[str, str, str]]]:
    metrics.peers([(NodeId(2), 1, 1)])
    metrics.requests.answered(11, 0, 0.001)
    metrics.requests.slow("PULL_MESSAGE", "read", 1)
    metrics.turns.note(LongTurn(30.0, 30.0, 0, "f"))
    metrics.retention.trimmed.labels("age").inc()
    metrics.tier.moved(TierState.VERIFIED)
    metrics.tier.written.labels("log").inc(1)
    metrics.tier.failed.labels("Throttled").inc()
    metrics.tier.segments({})
    metrics.alarms(["log_damage"])
    metrics.findings([("disk_full", "critical")])
    metrics.repair.failed.labels("2").inc()
    metrics.elected("start")
    delays = {2: Delays(1.0, 1.0, 1.0)}
    metrics.ha.show(end_position=1, slaves={2: 1}, delays=delays, connections=1, sent_bytes=1, storage=(1, 0, 0))
    metrics.members.note(Membership(UUID(int=1), ()), committed=True, removed=False)
    metrics.links.expired.labels("2", "dialled").inc()
    metrics.links.changed.labels("2", LinkState.READY.value).inc()
    metrics.links.show([LinkFigures(NodeId(2), LinkState.READY, 1, 1.0)])
    metrics.install.failed.labels("2").inc()
    metrics.install.received.labels("log").inc(1)
    started = RecoveryStatus(
        clean=True, bytes_scanned=0, torn_bytes_cut=0, entries_replayed=0, stages_ms={"log": 1.0}, reasons=[]
    )
    metrics.recovery.update(started)
    metrics.group_lag.show({("g", "t"): 1}, 0, [("g", QueueLag("t", 0, 0, 0, 1))], {("g", "t"): 5})
    metrics.messages_in("%DLQ%g", 1, 1)
    look = BrokerLook(6, {("JAVA", "1"): 1}, {("g", "JAVA", "1", "push"): 1}, 7, 0.5, 1.5)
    BrokerMetrics(metrics.registry, lambda: look)
    state = RegistryState(True, [], 2, True, 1, 7, 3, 40, 1)
    RegistryMetrics(metrics.registry, lambda: [RegistryProcess(1, "h:1", True, state)])
    metrics.refused("r")
    metrics.quota_refused("new_topics")
    metrics.learnt("over", 1)
    metrics.code_refused("41", "CPP")
    metrics.denied(enforced=True)
    metrics.pulled("p")
    metrics.queried("k", "q")
    metrics.messages_in("t", 1, 1)
    metrics.messages_out("t", 1, 1)
    metrics.topic_sizes({"t": 1})
    counts, loop = RequestCounts(), asyncio.new_event_loop()
    counts.record("get_range", "ok")
    ReadMetrics(metrics.registry, counts, TierReading(loop, MemoryStore(), "c", tuple, None))
    loop.close()
    rows = []
    for family in metrics.registry.collect():
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        name = f"{family.name}_total" if family.type == "counter" else family.name
        rows.append((name, (family.type, ", ".join(f"`{label}`" for label in sorted(labels)), family.documentation)))
    return rows


def test_replication_has_the_names_of_rocketmqs_dashboards(metrics: NodeMetrics) -> None:
    metrics.ha.show(
        end_position=900,
        slaves={2: 500, 3: 900},
        delays={2: Delays(2.5, 0.8, 60.0), 3: Delays(0.0, None, inf)},
        connections=2,
        sent_bytes=70,
        storage=(800, 10, 20),
    )
    metrics.ha.received(30)
    metrics.settled(Outcome.UNKNOWN, 4, 3.0)
    lines = metrics.render().decode().splitlines()
    for line in (
        'rocketmq_ha_transfer_byte_total{role="master"} 70.0',
        'rocketmq_ha_transfer_byte_total{role="slave"} 30.0',
        'rocketmq_ha_slave_max_offset{slaveId="2"} 500.0',
        'raftmq_peer_lag_bytes{peer="2"} 400.0',
        'raftmq_peer_lag_seconds{peer="2"} 2.5',
        'raftmq_peer_lag_seconds{peer="3"} 0.0',
        'raftmq_peer_sync_seconds{peer="2"} 0.8',
        'raftmq_peer_snapshot_in_seconds{peer="2"} 60.0',
        'raftmq_peer_snapshot_in_seconds{peer="3"} +Inf',
        "rocketmq_ha_master_max_offset 900.0",
        "rocketmq_ha_connection_count 2.0",
        "ha_send_timeout_count 4.0",
        "rocketmq_storage_size 800.0",
        "rocketmq_storage_flush_behind_bytes 10.0",
        "rocketmq_storage_dispatch_behind_bytes 20.0",
    ):
        assert line in lines
    assert 'raftmq_peer_sync_seconds{peer="3"}' not in metrics.render().decode(), "a peer that reports none has none"


@each_row(
    ("why", "label"),
    [
        ("the connection of the leader, node 2, closed", "leader_closed"),
        ("the leader, node 2, was silent for 12 ticks", "leader_silent"),
        ("node 2 transferred leadership", "transferred"),
        ("no leader was heard since it started", "start"),
        ("no majority answered within 20 ticks", "no_majority"),
        ("it resigned", "other"),
    ],
)
def test_an_election_is_counted_by_what_caused_it(why: str, label: str) -> None:
    assert reason_of(why) == label


def test_dead_letters_are_counted_whichever_way_they_came(metrics: NodeMetrics) -> None:
    metrics.messages_in("%DLQ%billing", 3, 300)
    metrics.messages_in("orders", 5, 500)
    assert value(metrics, "rocketmq_send_to_dlq_messages_total", consumer_group="billing", topic="%DLQ%billing") == 3
    assert value(metrics, "rocketmq_send_to_dlq_messages_total", consumer_group="orders", topic="orders") is None


def member(connection: object, language: str = "JAVA") -> Any:
    return SimpleNamespace(connection=connection, language=language, version=453)


def test_connections_are_counted_as_rocketmq_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer in two groups is one connection; the consumers of what is left out are in a series of no group."""
    one, other = object(), object()
    known: Any = SimpleNamespace(
        producers={"a": {"1": member(one)}, "b": {"1": member(one), "2": member(other, "GO")}},
        consumers={
            "g": SimpleNamespace(consume_type="CONSUME_PASSIVELY", members={"1": member(one), "2": member(other)}),
            "h": SimpleNamespace(consume_type="CONSUME_ACTIVELY", members={"1": member(one)}),
        },
    )
    assert at_once(producers_of(known)) == {("JAVA", "453"): 1, ("GO", "453"): 1}
    pushed, pulled = ("g", "JAVA", "453", "push"), ("h", "JAVA", "453", "pull")
    assert at_once(consumers_of(known)) == {pushed: 2, pulled: 1}
    monkeypatch.setattr(broker_metrics, "SERIES_MAX", 1)
    assert at_once(consumers_of(known)) == {pushed: 2, ("", "", "", ""): 1}


def test_the_time_of_syncs_is_a_part_of_that_of_appends(metrics: NodeMetrics) -> None:
    metrics.appends.written(10, 0.5, 0.4)
    assert value(metrics, "raftmq_append_seconds_sum") == 0.5
    assert value(metrics, "raftmq_fdatasync_seconds_sum") == 0.4
    assert value(metrics, "raftmq_fdatasync_seconds_bucket", le="0.25") == 0
    assert value(metrics, "raftmq_fdatasync_seconds_bucket", le="1.0") == 1


def test_many_connections_are_counted_in_steps_and_the_last_count_is_shown() -> None:
    soon: list[Callable[[], None]] = []
    known: Any = SimpleNamespace(
        producers={}, consumers={"g": SimpleNamespace(consume_type="CONSUME_PASSIVELY", members={})}
    )
    counts = ConnectionCounts(known, Turns(soon.append, 100))
    known.consumers["g"].members["0"] = member(object())
    row = ("g", "JAVA", "453", "push")
    assert counts.count().consumers == {row: 1}, "few are counted at once"
    known.consumers["g"].members = {str(n): member(object()) for n in range(1_000)}
    while soon:
        soon.pop(0)()
    assert counts.count().consumers == {row: 1}
    turns = 0
    while soon:
        soon.pop(0)()
        turns += 1
    assert turns > 10
    assert counts.consumers == {row: 1_000}

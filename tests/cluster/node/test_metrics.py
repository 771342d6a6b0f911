"""Metrics: what each call moves, and that docs/metrics.md tells them all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.admin.findings.watch import FindingMetrics
from cluster.admin.node_interface import LoadStatus, PeerStatus
from cluster.broker.broker_metrics import (
    ConnectionCounts,
    DeadLetterMetrics,
    DeliveryMetrics,
    consumers_of,
    producers_of,
)
from cluster.node.event_watch import reason_of
from cluster.node.status_metrics import StatusMetrics
from cluster.replication.metrics import AppendMetrics, ApplyMetrics, HaMetrics, PeerDelays
from cluster.replication.outcome import Outcome
from cluster.replication.traffic_metrics import TrafficMetrics
from cluster.requests.request_metrics import RequestMetrics
from cluster.runtime.figures.service_metrics import ServiceMetrics
from cluster.runtime.turns.turn_watch import LoopLagSampler
from cluster.runtime.turns.work import Turns
from raftlog.work import at_once
from tests.support.rows import each_row
from tests.support.samples import registry_of, sample, text_of
from tests.support.sim_cluster import SimCluster

STATE: Any = SimpleNamespace(topics={"orders", "users"}, groups={})
value = sample


@pytest.fixture
def traffic() -> TrafficMetrics:
    return TrafficMetrics(STATE, RequestMetrics(), HaMetrics(lambda metrics: None))


def test_a_batch_moves_counts_and_histograms(traffic: TrafficMetrics) -> None:
    appends, applies = AppendMetrics(), ApplyMetrics()
    metrics = traffic, appends, applies
    traffic.proposed(messages=100, size_bytes=5000)
    traffic.proposed(messages=0, size_bytes=70)
    appends.written(5070, 0.002, 0.0)
    applies.applied(2, 0.001)
    traffic.settled(Outcome.OK, 99, 1, 0.004)
    traffic.settled(Outcome.UNKNOWN, 1, 2, 3.0)
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


def test_topics_have_their_own_series_until_they_are_deleted(traffic: TrafficMetrics) -> None:
    state: Any = SimpleNamespace(topics={"orders", "users"})
    traffic, deliveries = TrafficMetrics(state, traffic.requests, traffic.ha), DeliveryMetrics(state)
    metrics = traffic, deliveries
    traffic.messages_in("orders", 10, 1000)
    traffic.messages_in("orders", 5, 500)
    deliveries.messages_out("orders", 3, 300)
    assert value(metrics, "rocketmq_messages_in_total", topic="orders") == 15
    assert value(metrics, "rocketmq_throughput_in_total", topic="orders") == 1500
    assert value(metrics, "rocketmq_messages_out_total", topic="orders") == 3
    assert value(metrics, "rocketmq_throughput_out_total", topic="orders") == 300
    for each in metrics:
        each.look()
    assert value(metrics, "rocketmq_messages_in_total", topic="orders") == 15
    state.topics = {"users"}
    for each in metrics:
        each.look()
    assert "orders" not in text_of(*metrics)
    traffic.messages_in("orders", 1, 1)
    assert value(metrics, "rocketmq_messages_in_total", topic="orders") == 1


def status_of(**facts: Any) -> Any:
    load = LoadStatus(connections=1, long_polls=0, inflight_bytes=0, client_inflight_bytes=0)
    raft = {"term": 7, "role": "leader", "leader": 2, "commit_index": 10, "applied_index": 9, "last_index": 12}
    return SimpleNamespace(**({"peers": [], "alarms": [], "load": load, "writes_open": True} | raft | facts))


def test_leader_changes_count_only_new_leaders() -> None:
    metrics = StatusMetrics(status_of, STATE)
    for leader in (1, 1, 0, 1, 2):
        raw: Any = SimpleNamespace(leader_id=leader)
        metrics.on_role(raw)
    metrics.look()
    assert value(metrics, "raftmq_raft_leader_changes_total") == 2
    assert value(metrics, "raftmq_raft_leader_id") == 2
    assert value(metrics, "raftmq_raft_role") == 3
    assert value(metrics, "raftmq_raft_commit_index") == 10


def test_peers_are_those_of_now() -> None:
    def peer(node: int, match_index: int, lag: int) -> PeerStatus:
        return PeerStatus(node=node, match_index=match_index, lag_entries=lag, connected=True)

    seen = [peer(2, 10, 3), peer(3, 13, 0)]
    metrics = StatusMetrics(lambda: status_of(peers=seen), STATE)
    metrics.look()
    assert value(metrics, "raftmq_peer_lag_entries", peer="2") == 3
    seen[:] = [peer(3, 20, 1)]
    metrics.look()
    assert value(metrics, "raftmq_peer_match_index", peer="2") is None
    assert value(metrics, "raftmq_peer_match_index", peer="3") == 20


def test_sends_are_permitted_unless_the_node_would_refuse_them() -> None:
    for takes, bits in ((True, 6), (False, 4)):
        metrics = StatusMetrics(status_of, STATE, lambda takes=takes: takes)  # type: ignore[misc]
        metrics.look()
        assert value(metrics, "rocketmq_broker_permission") == bits


def test_refusals_and_pulls() -> None:
    requests, deliveries = RequestMetrics(), DeliveryMetrics(STATE)
    requests.refused("busy")
    requests.refused("busy")
    deliveries.pulled("found")
    assert value(requests, "raftmq_requests_refused_total", reason="busy") == 2
    assert value(deliveries, "raftmq_pulls_total", outcome="found") == 1


def test_two_nodes_in_one_process_do_not_share_figures(traffic: TrafficMetrics) -> None:
    traffic.proposed(1, 1)
    other = TrafficMetrics(STATE, traffic.requests, traffic.ha)
    assert value(other, "raftmq_raft_proposals_total") == 0


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


def test_loop_lag_is_the_largest_of_ten_seconds() -> None:
    loop: Any = FakeLoop()
    sampler = LoopLagSampler(loop)
    metrics = sampler.metrics
    sampler.start()
    loop.fire(late=0.5)
    for _ in range(39):
        loop.fire(late=0.001)
    assert value(metrics, "raftmq_loop_lag_seconds") == pytest.approx(0.5)
    loop.fire(late=0.001)
    assert value(metrics, "raftmq_loop_lag_seconds") == pytest.approx(0.001)
    sampler.stop()
    assert loop.timer is None


def test_every_metric_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    documented = {
        name: (kind, labels, meaning)
        for name, kind, labels, meaning in re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) ?\| (.*) \|$", text, re.MULTILINE)
    }
    options: dict[str, Any] = {"tier.url": "memory:"}
    with SimCluster(1, **options) as sim:
        node = sim.leader().running
        shown = (*node.exporter.metrics, *node.keeping.backups.part().metrics, FindingMetrics())
        assert documented == dict(described(shown))


def described(services: Sequence[ServiceMetrics]) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yields a row of the page for each metric."""
    registry_of(*services)  # refuses a name that two services use
    for service in services:
        for family in service.collect():
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels: Any = service.labels.get(family.name) or getattr(family, "_labelnames", ())
            yield name, (family.type, ", ".join(f"`{label}`" for label in sorted(labels)), family.documentation)


def test_replication_has_the_names_of_rocketmqs_dashboards(traffic: TrafficMetrics) -> None:
    traffic.ha.show(
        end_position=900,
        slaves={2: 500, 3: 900},
        delays={2: PeerDelays(2.5, 0.8, 60.0), 3: PeerDelays(0.0, None, inf)},
        connections=2,
        sent_bytes=70,
        storage=(800, 10, 20),
    )
    traffic.ha.received(30)
    traffic.settled(Outcome.UNKNOWN, 4, 2, 3.0)
    lines = text_of(traffic.ha).splitlines()
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
    assert 'raftmq_peer_sync_seconds{peer="3"}' not in text_of(traffic.ha), "a peer that reports none has none"


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


def test_dead_letters_are_counted_whichever_way_they_came(traffic: TrafficMetrics) -> None:
    metrics = DeadLetterMetrics(traffic.stored)
    traffic.messages_in("%DLQ%billing", 3, 300)
    traffic.messages_in("orders", 5, 500)
    assert value(metrics, "rocketmq_send_to_dlq_messages_total", consumer_group="billing", topic="%DLQ%billing") == 3
    assert value(metrics, "rocketmq_send_to_dlq_messages_total", consumer_group="orders", topic="orders") is None


def member(connection: object, language: str = "JAVA") -> Any:
    return SimpleNamespace(connection=connection, language=language, version=453)


def test_connections_are_counted_as_rocketmq_counts_them() -> None:
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
    assert at_once(consumers_of(known, series_max=1)) == {pushed: 2, ("", "", "", ""): 1}


def test_the_time_of_syncs_is_a_part_of_that_of_appends() -> None:
    metrics = AppendMetrics()
    metrics.written(10, 0.5, 0.4)
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

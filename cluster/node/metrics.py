"""The node's metrics for Prometheus. The methods are named after events, not after counters.

All are updated once per batch, connection or scrape, never per message. docs/metrics.md lists names and meanings (a
test compares them). A metric that RocketMQ has keeps RocketMQ's name and meaning.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Container, Generator, Iterable, Iterator, Mapping
from heapq import nlargest
from math import inf
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import HistogramMetricFamily, Metric

from cluster.admin.node_interface import Counted, LoadStatus, NodeStatus
from cluster.broker.broker_metrics import DeadLetterMetrics
from cluster.broker.groups.client_relay import RelayMetrics
from cluster.broker.groups.group_lag import LagMetrics
from cluster.broker.timers.timer_delivery import TimerMetrics
from cluster.broker.transactions.staged_writes import StagedMetrics
from cluster.broker.transactions.transaction_end import TransactionMetrics
from cluster.members.service import MembersMetrics
from cluster.peer.link_state import LinkMetrics
from cluster.repair.log_repair import RepairMetrics
from cluster.repair.progress import InstallMetrics
from cluster.replication.metrics import AppendMetrics, HaMetrics, ModeMetrics
from cluster.replication.outcome import Outcome
from cluster.requests.table import VERBS, name_of
from cluster.retention.metrics import RetentionMetrics
from cluster.runtime.figures.counters import Spread, Tallies, Tally, buckets
from cluster.runtime.host.versions import versions
from cluster.runtime.turns.turn_watch import TurnMetrics
from cluster.state.recovery_views import RecoveryMetrics
from cluster.tier.index_file.index_files import IndexMetrics
from cluster.tier.tier_metrics import TierMetrics
from raftlog.types import FIRST_GROUP, NOBODY, NodeId, Role
from raftlog.work import charge
from raftmq_wire import kernel
from raftmq_wire.codes import RequestCode, ResponseCode
from statemachine.broker_state import BrokerState

BOUNDS_MS = (1.0, 3.0, 5.0, 7.0, 10.0, 100.0, 1000.0, 2000.0, 3000.0, inf)
"""Upper bounds of the buckets of request latency in milliseconds; RocketMQ's."""
REMOTING = "remoting"
_SENT = {
    Outcome.OK: ResponseCode.SUCCESS,
    Outcome.FAIL: ResponseCode.SERVICE_NOT_AVAILABLE,
    Outcome.UNKNOWN: ResponseCode.SYSTEM_ERROR,
}
_RESPONSES = {code.value: code.name.lower() for code in ResponseCode}


class RequestMetrics:
    """Implements `slow_requests.RequestFigures`. Event loop only."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counts: dict[tuple[int, int], list[int]] = {}
        """(request code, response code) -> number of requests in each bucket. The series are few, because requests
        without a handler are counted under one code."""
        self._sums_ms: dict[tuple[int, int], float] = {}
        self._slow = Counter(
            "raftmq_slow_requests",
            "Requests that took longer than log_output.slow_request_ms, by the stage that was slow",
            ("request_code", "stage"),
            registry=registry,
        )
        registry.register(self)

    @property
    def sends(self) -> str:
        return VERBS[RequestCode.SEND_MESSAGE].name

    def sent(self, outcome: Outcome, seconds: float, sends: int) -> None:
        self.answered(RequestCode.SEND_MESSAGE, _SENT[outcome], seconds, sends)

    def answered(self, code: int, response: int, seconds: float, requests: int = 1) -> None:
        key, took_ms = (code, response), 1000 * seconds
        counts = self._counts.get(key)
        if counts is None:
            counts = self._counts[key] = [0] * len(BOUNDS_MS)
            self._sums_ms[key] = 0.0
        counts[bisect_left(BOUNDS_MS, took_ms)] += requests
        self._sums_ms[key] += took_ms * requests

    def slow(self, name: str, stage: str, requests: int) -> None:
        self._slow.labels(name.lower(), stage).inc(requests)

    def collect(self) -> Iterator[Metric]:
        """Yields the histogram of latencies to the registry."""
        family = HistogramMetricFamily(
            "rocketmq_rpc_latency",
            "Milliseconds until a request was answered, by its code; of sends, from the proposal of their entry",
            labels=("protocol_type", "request_code", "response_code"),
        )
        for (code, response), counts in self._counts.items():
            labels = (REMOTING, name_of(code).lower(), _response_name(response))
            family.add_metric(labels, buckets(BOUNDS_MS, counts), self._sums_ms[code, response])
        yield family


def _response_name(code: int) -> str:
    return _RESPONSES.get(code) or str(code)


SYNC_BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
"""Bucket bounds in seconds of a disk write or an apply: from a fast NVMe flush to a failing disk."""
COMMIT_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0, 10.0)
COUNT_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
GROUP_LABEL: Final = "broker_group"
"""The label of all series of the nodes of a further group of brokers. Those of the first group have none, so that a
cluster's series go on when it gets a second group. `group` is the label for consumer groups."""
TOPICS_MAX: Final = 200
"""The most topics whose size the metrics name, because Prometheus keeps every name for weeks."""
SAMPLE_UNITS: Final = 5
"""Units of work (raftlog.work) that one line of the exposition text counts as."""
SERIES_PER_UNIT: Final = 64
"""Series that are compared with the topics there are, for one unit of work."""
BYTES_BUCKETS: Final = tuple(float(1 << shift) for shift in range(8, 23, 2))


class NodeMetrics:
    """Counters, gauges and histograms of one node, in a registry of their own. Event loop only."""

    def __init__(self, group: int = FIRST_GROUP) -> None:
        """`group`: the node's group of brokers."""
        self._constant: Final = {} if group == FIRST_GROUP else {GROUP_LABEL: str(group)}
        # Creation times double the number of series; process_start_time_seconds has the same information.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry: Final = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        self._leader_seen: int = 0
        self._define_build()
        self._define_raft()
        self._define_lanes()
        self._define_clients()
        self.repair: Final = RepairMetrics(self.registry)
        self.members: Final = MembersMetrics(self.registry)
        self.retention: Final = RetentionMetrics(self.registry)
        self.index_files: Final = IndexMetrics(self.registry)
        self.tier: Final = TierMetrics(self.registry)
        self.recovery: Final = RecoveryMetrics(self.registry)
        self.install: Final = InstallMetrics(self.registry)
        self.modes: Final = ModeMetrics(self.registry)
        self.links: Final = LinkMetrics(self.registry)
        self.ha: Final = HaMetrics(self.registry)
        self.group_lag: Final = LagMetrics(self.registry)
        self.transactions: Final = TransactionMetrics(self.registry)
        self.staged: Final = StagedMetrics(self.registry)
        self.timers: Final = TimerMetrics(self.registry)
        self.dead_letters: Final = DeadLetterMetrics(self.registry, self._stored_in)
        self.requests: Final = RequestMetrics(self.registry)
        self.relay: Final = RelayMetrics(self.registry)
        self.turns: Final = TurnMetrics(self.registry)
        self.messages_taken = self.messages_given = 0
        self._bytes_taken = self._bytes_given = 0
        """Message bytes of all topics, including deleted ones."""
        self._loop_lag_s = 0.0

    # --- fed per batch ---------------------------------------------------------------------------------------------

    def proposed(self, messages: int, size_bytes: int) -> None:
        """Counts a proposed entry; `messages` is 0 for a COMMAND entry."""
        self._proposals.inc()
        self._batch_bytes.observe(size_bytes)
        if messages:
            self._batch_messages.observe(messages)

    def settled(self, outcome: Outcome, requests: int, seconds: float) -> None:
        """Counts the outcome of one entry, or the timeout of its waiters; `requests` waited for it."""
        self._settled[outcome].inc(requests)
        if outcome is Outcome.UNKNOWN:
            self.ha.timed_out(requests)
        if outcome is Outcome.OK:
            self._commit_seconds.observe(seconds)

    def appended_inline(self, stalled: bool) -> None:
        """Counts a drain of the append lane that ran on the event loop. `stalled`: True if it took so long that the
        lane's thread gets the next ones."""
        self._appends_inline.inc()
        if stalled:
            self._append_stalls.inc()

    def applied(self, entries: int, seconds: float) -> None:
        """Counts one drain of the apply lane."""
        self._apply_seconds.observe(seconds)
        self._apply_entries.inc(entries)

    def messages_in(self, topic: str, messages: int, size_bytes: int) -> None:
        """Counts acknowledged messages of one topic; called once per topic and entry."""
        self.messages_taken += messages
        self._bytes_taken += size_bytes
        _add(self._messages_in.values, self._throughput_in.values, topic, messages, size_bytes)

    def messages_out(self, topic: str, messages: int, size_bytes: int) -> None:
        """Counts messages that a pull was answered with."""
        self.messages_given += messages
        self._bytes_given += size_bytes
        _add(self._messages_out.values, self._throughput_out.values, topic, messages, size_bytes)

    def topic_sizes(self, sizes: Mapping[str, int], total: int = 0) -> None:
        """Sets the sizes of topics. `sizes` maps topic -> bytes of its messages in this node's log. The largest
        TOPICS_MAX of `total` topics are shown."""
        self._topic_bytes.clear()
        for topic in nlargest(TOPICS_MAX, sizes, key=sizes.__getitem__):
            self._topic_bytes.labels(topic).set(sizes[topic])
        self._topic_bytes_left.set(max(0, max(total, len(sizes)) - TOPICS_MAX))

    def _stored_in(self) -> Iterator[tuple[str, float]]:
        """Yields (topic, acknowledged messages) of every topic that has a series."""
        yield from self._messages_in.values.items()

    def _forget_deleted(self, topics: Container[str]) -> None:
        """Removes the series of topics that are gone, whichever node was asked to delete them."""
        for tallies in (self._messages_in, self._throughput_in, self._messages_out, self._throughput_out):
            charge(len(tallies.values) // SERIES_PER_UNIT)
            for topic in [each for each in tallies.values if each not in topics]:
                del tallies.values[topic]

    def refused(self, reason: str) -> None:
        """Counts a request that was refused before anything was proposed; `reason` is one of a few short texts."""
        counts = self._refused.values
        counts[reason] = counts.get(reason, 0) + 1

    def quota_refused(self, limit: str) -> None:
        """Counts what a quota refused, under the name of its limit. It is in `refused` as well."""
        counts = self._quota_refused.values
        counts[limit] = counts.get(limit, 0) + 1

    def learnt(self, outcome: str, messages: int) -> None:
        """Counts messages of a topic with learnt limits as "within" or "over" them, and as "cut"."""
        counts = self._learnt.values
        counts[outcome] = counts.get(outcome, 0) + messages

    def code_refused(self, code: str, language: str) -> None:
        """Counts a request whose code is not supported; both labels have few values."""
        self._codes_refused.labels(code, language).inc()

    def denied(self, *, enforced: bool) -> None:
        """Counts a request that its user may not make. `enforced` is False if it is only observed, because `auth.mode`
        is not enforce."""
        self._denied.labels("denied" if enforced else "observed").inc()

    def pulled(self, outcome: str) -> None:
        """Counts an answered pull: "found", "empty" (the long poll ran out), "moved" or "refused"."""
        counts = self._pulls.values
        counts[outcome] = counts.get(outcome, 0) + 1

    def queried(self, kind: str, outcome: str) -> None:
        """Counts an answered query of single messages by "key" or "id": "found", "none" or "refused"."""
        self._queries.labels(kind, outcome).inc()

    # --- fed when they change, or right before a scrape ------------------------------------------------------------

    def raft(
        self, *, term: int, role: Role, leader_id: NodeId, commit_index: int, applied_index: int, last_index: int
    ) -> None:
        """Sets the gauges of consensus as this node sees it."""
        if leader_id and leader_id != self._leader_seen:
            self._leader_seen = leader_id
            self._leader_changes.inc()
        for gauge, value in (
            (self._term, term),
            (self._role, role),
            (self._leader_id, leader_id),
            (self._commit_index, commit_index),
            (self._applied_index, applied_index),
            (self._last_index, last_index),
            (self._apply_lag, max(0, commit_index - applied_index)),
        ):
            gauge.set(value)

    def peers(self, matches: Iterable[tuple[NodeId, int, int]]) -> None:
        """Sets the gauges of peers: (peer, match index, entries behind), as the leader knows them; empty on a
        follower."""
        self._peer_match.clear()
        self._peer_lag.clear()
        for peer, match_index, lag_entries in matches:
            self._peer_match.labels(str(peer)).set(match_index)
            self._peer_lag.labels(str(peer)).set(lag_entries)

    def writes_open(self, is_open: bool) -> None:
        """Shows if this node accepts writes now."""
        self._writes_open.set(is_open)

    def load(self, load: LoadStatus) -> None:
        """Sets the gauges of the load by clients."""
        self._connections.set(load.connections)
        self._long_polls.set(load.long_polls)
        self._inflight_bytes.set(load.inflight_bytes)
        self._client_inflight_bytes.set(load.client_inflight_bytes)
        self._admission_bytes.set(load.admission_bytes)
        self._decided_rate.set(load.decided_bytes_per_second)
        self._overloaded.set(load.overloaded)

    def catalog(self, *, topics: int, groups: int) -> None:
        """Shows the numbers of topics and consumer groups."""
        self._topics.set(topics)
        self._groups.set(groups)

    def backup_age(self, seconds: float | None) -> None:
        """Sets the age of the newest good backup; None if none is known."""
        self._backup_age.set(float("nan") if seconds is None else seconds)

    def alarms(self, keys: Iterable[str]) -> None:
        """Sets the gauges of the raised alarms."""
        self._alarm.clear()
        for key in keys:
            self._alarm.labels(key).set(1)

    def elected(self, reason: str) -> None:
        """Counts an election of this node; `reason` is one of a few short words."""
        self._elections.labels(reason).inc()

    def findings(self, found: Iterable[tuple[str, str]]) -> None:
        """Sets the gauges of the cluster's findings, each given as (code, severity)."""
        self._findings.clear()
        for code, severity in found:
            self._findings.labels(code, severity).inc()

    def loop_lag(self, seconds: float) -> None:
        """Sets the largest delay of the event loop in the last 10 s (`cluster.runtime.turns.turn_watch`)."""
        self._loop_lag_s = seconds
        self._loop_lag.set(seconds)

    def runs_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Makes every scrape count the tasks of the loop."""
        self._loop_tasks.set_function(lambda: len(asyncio.all_tasks(loop)))

    def counted(self) -> Counted:
        """Returns the counters for the history of the last hour."""
        return Counted(
            messages_in=self.messages_taken,
            messages_out=self.messages_given,
            bytes_in=self._bytes_taken,
            bytes_out=self._bytes_given,
            commits=self._commit_seconds.counts,
            commit_bounds_s=self._commit_seconds.bounds,
            appends=self.appends.counts,
            append_bounds_s=self.appends.bounds,
            loop_lag_s=self._loop_lag_s,
            refused=dict(self._refused.values),
        )

    def scraped(
        self, status: NodeStatus, state: BrokerState, backup_age_s: float | None, now_ms: int
    ) -> Generator[None, None, list[bytes]]:
        """Updates the gauges and returns the exposition text in parts. The work is done in steps of one metric each.
        Only one scrape may be in progress."""
        self.raft(
            term=status.term,
            role=Role[status.role.upper()],
            leader_id=NodeId(status.leader) if status.leader else NOBODY,
            commit_index=status.commit_index,
            applied_index=status.applied_index,
            last_index=status.last_index,
        )
        self.peers((NodeId(peer.node), peer.match_index, peer.lag_entries) for peer in status.peers)
        self.writes_open(status.writes_open)
        self.load(status.load)
        self.catalog(topics=len(state.topics), groups=len(state.groups))
        self._forget_deleted(state.topics)
        yield from self.group_lag.update(state, now_ms, leads=status.writes_open)
        self.transactions.update(state.halves)
        self.staged.update(state.writes)
        self.retention.removals.set(state.removing)
        self.timers.update(state.timers, state.applied_mark.timestamp_ms)
        self.recovery.update(status.recovery)
        self.alarms(alarm.key for alarm in status.alarms)
        self.backup_age(backup_age_s)
        parts = []
        for metric in self.registry.collect():
            yield
            charge(SAMPLE_UNITS * len(metric.samples))
            parts.append(generate_latest(_Alone(self._labelled(metric))))
        return parts

    def _labelled(self, metric: Metric) -> Metric:
        """Returns the metric with the labels that all series of this node have."""
        if self._constant:
            labelled = Metric(metric.name, metric.documentation, metric.type)
            labelled.samples += [each._replace(labels={**each.labels, **self._constant}) for each in metric.samples]
            return labelled
        return metric

    def render(self) -> bytes:
        """Returns the whole exposition text."""
        return generate_latest(self.registry)

    # --- definitions -----------------------------------------------------------------------------------------------

    def _define_raft(self) -> None:
        gauge = self._gauge
        self._term = gauge("raftmq_raft_term", "Current term")
        self._role = gauge("raftmq_raft_role", "0 follower, 1 pre-candidate, 2 candidate, 3 leader")
        self._leader_id = gauge("raftmq_raft_leader_id", "Node id of the known leader, 0 if none")
        self._commit_index = gauge("raftmq_raft_commit_index", "Highest index known to be committed")
        self._applied_index = gauge("raftmq_raft_applied_index", "Highest index applied to the state machine")
        self._apply_lag = gauge("raftmq_apply_lag_entries", "Committed entries that are not applied on this node yet")
        self._last_index = gauge("raftmq_raft_last_index", "Index of the last entry in the log")
        self._writes_open = gauge("raftmq_raft_writes_open", "1 if this node leads and takes writes")
        self._alarm = gauge("raftmq_alarm", "1 for each alarm that is raised", "key")
        self._findings = gauge(
            "raftmq_findings", "Findings about the cluster, as this node knows them", "code", "severity"
        )
        self._backup_age = gauge(
            "raftmq_backup_age_seconds",
            "Age of the newest good backup of this node that it knows of; NaN if there is none",
        )
        self._backup_age.set(float("nan"))
        self._leader_changes = self._counter("raftmq_raft_leader_changes", "Leader changes that this node has observed")
        self._elections = self._counter(
            "raftmq_elections", "Elections that this node has won, by what caused them", "reason"
        )
        self._peer_match = gauge("raftmq_peer_match_index", "Highest index known to be on the peer's disk", "peer")
        self._peer_lag = gauge(
            "raftmq_peer_lag_entries", "Number of entries by which the peer's disk is behind the leader's log", "peer"
        )

    def _define_lanes(self) -> None:
        self._proposals = self._tally("raftmq_raft_proposals", "Entries proposed")
        settled = self._counter(
            "raftmq_raft_settled", "Requests whose entry was decided, or that reached their deadline", "outcome"
        )
        self._settled = {outcome: settled.labels(outcome.name.lower()) for outcome in Outcome}
        self._batch_messages = self._spread("raftmq_batch_messages", "Messages per entry", COUNT_BUCKETS)
        self._batch_bytes = self._spread("raftmq_batch_bytes", "Bytes per proposed entry", BYTES_BUCKETS)
        self._commit_seconds = self._spread(
            "raftmq_raft_commit_seconds", "Time from the proposal of an entry to its answer", COMMIT_BUCKETS
        )
        self.appends = AppendMetrics(self.registry, SYNC_BUCKETS)
        self._appends_inline = self._tally("raftmq_appends_inline", "Writes to the log done on the event loop")
        self._append_stalls = self._tally(
            "raftmq_append_stalls", "Writes to the log that held the event loop for more than 1 ms"
        )
        self._apply_seconds = self._spread(
            "raftmq_apply_seconds", "Duration of applying one run of entries", SYNC_BUCKETS
        )
        self._apply_entries = self._tally("raftmq_apply_entries", "Entries applied")
        self._loop_lag = self._gauge(
            "raftmq_loop_lag_seconds", "Longest delay of a timer on the event loop in the last 10 s"
        )
        self._loop_tasks = self._gauge("raftmq_loop_tasks", "asyncio tasks on the event loop that have not ended")

    def _define_clients(self) -> None:
        gauge, counter = self._gauge, self._counter
        self._connections = gauge("raftmq_connections", "Open client connections")
        self._long_polls = gauge("raftmq_long_polls", "Pulls waiting for messages")
        self._inflight_bytes = gauge(
            "raftmq_inflight_bytes", "Bytes of requests whose fate is open, or that another node is to answer"
        )
        self._client_inflight_bytes = gauge(
            "raftmq_client_inflight_bytes", "Bytes of requests that are not answered yet, of all connections"
        )
        self._admission_bytes = gauge(
            "raftmq_admission_limit_bytes",
            "Bytes of undecided sends that are taken in an overload; 0 if not learnt yet",
        )
        self._decided_rate = gauge(
            "raftmq_admission_bytes_per_second", "Bytes of sends that the log decides in a second while it is at work"
        )
        self._overloaded = gauge(
            "raftmq_overloaded", "1 while sends are refused because more arrive than the log takes"
        )
        self._refused = self._tallies(
            "raftmq_requests_refused", "Requests refused before anything was proposed", "reason"
        )
        self._quota_refused = self._tallies("raftmq_quota_refused", "Refused because of a quota, by its limit", "limit")
        self._learnt = self._tallies(
            "raftmq_learnt_messages",
            "Messages of topics with learnt limits: within them, over them, and refused for that in an overload",
            "outcome",
        )
        self._denied = counter("raftmq_requests_denied", "Requests that no rule allows to their user", "outcome")
        self._codes_refused = counter(
            "raftmq_codes_refused", "Requests with a code that this version does not support", "code", "language"
        )
        self._pulls = self._tallies("raftmq_pulls", "Pulls answered", "outcome")
        self._queries = counter("raftmq_queries", "Queries of single messages answered", "kind", "outcome")
        self._messages_in = self._tallies("rocketmq_messages_in", "Messages acknowledged", "topic")
        self._throughput_in = self._tallies("rocketmq_throughput_in", "Bytes of messages acknowledged", "topic")
        self._messages_out = self._tallies("rocketmq_messages_out", "Messages delivered to consumers", "topic")
        self._throughput_out = self._tallies(
            "rocketmq_throughput_out", "Bytes of messages delivered to consumers", "topic"
        )
        self._topic_bytes = gauge(
            "raftmq_topic_bytes",
            "Bytes of the topic's messages in this node's log, about (the largest topics)",
            "topic",
        )
        self._topic_bytes_left = gauge(
            "raftmq_topic_bytes_left_out", "Topics left out of raftmq_topic_bytes because there are too many"
        )
        self._topics = gauge("rocketmq_topic_number", "Number of topics")
        self._groups = gauge("rocketmq_consumer_group_number", "Number of consumer groups")

    def _define_build(self) -> None:
        build = self._gauge(
            "raftmq_build_info",
            "Always 1; the labels name the versions of RaftMQ and Python, and the kernel in use",
            "version",
            "python",
            "kernel",
        )
        build.labels(versions()["raftmq"], versions()["python"], kernel.NAME).set(1)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _tally(self, name: str, text: str) -> Tally:
        return Tally(name, text, self.registry)

    def _spread(self, name: str, text: str, bounds: tuple[float, ...]) -> Spread:
        return Spread(name, text, bounds, self.registry)

    def _tallies(self, name: str, text: str, label: str) -> Tallies:
        return Tallies(name, text, label, self.registry)


class _Alone:
    """A registry that contains one metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def _add(counts: dict[str, int], sizes: dict[str, int], topic: str, messages: int, size_bytes: int) -> None:
    counts[topic] = counts.get(topic, 0) + messages
    sizes[topic] = sizes.get(topic, 0) + size_bytes

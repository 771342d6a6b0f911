"""Gauges of the node as a whole, set from its status: its role in the Raft group, its load and its alarms."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from cluster.broker.name_rules import PERM_READ, PERM_WRITE
from cluster.runtime.figures.service_metrics import ServiceMetrics
from cluster.runtime.host.versions import versions
from raftlog.types import NOBODY, Role
from raftmq_wire import kernel

if TYPE_CHECKING:
    from cluster.admin.node_interface import LoadStatus, NodeStatus, PeerStatus
    from raftlog.core.raw_node import RawNode
    from statemachine.broker_state import BrokerState


class StatusMetrics(ServiceMetrics):
    """Sets the gauges from the node's status at each scrape. Event loop only."""

    def __init__(
        self, read: Callable[[], NodeStatus], state: BrokerState, takes_sends: Callable[[], bool] = lambda: True
    ) -> None:
        """Makes the gauges. `read` returns the status. `takes_sends` returns False if the node would refuse sends even
        as the leader."""
        super().__init__()
        self._read, self._state, self._takes_sends = read, state, takes_sends
        self._leader_seen: int = 0
        gauge = self.gauge
        build = gauge(
            "raftmq_build_info",
            "Always 1; the labels name the versions of RaftMQ and Python, and the kernel in use",
            ("version", "python", "kernel"),
        )
        build.labels(versions()["raftmq"], versions()["python"], kernel.NAME).set(1)
        self._term = gauge("raftmq_raft_term", "Current term")
        self._role = gauge("raftmq_raft_role", "0 follower, 1 pre-candidate, 2 candidate, 3 leader")
        self._leader_id = gauge("raftmq_raft_leader_id", "Node id of the known leader, 0 if none")
        self._leader_changes = self.counter("raftmq_raft_leader_changes", "Leader changes that this node has observed")
        self._commit_index = gauge("raftmq_raft_commit_index", "Highest index known to be committed")
        self._applied_index = gauge("raftmq_raft_applied_index", "Highest index applied to the state machine")
        self._apply_lag = gauge("raftmq_apply_lag_entries", "Committed entries that are not applied on this node yet")
        self._last_index = gauge("raftmq_raft_last_index", "Index of the last entry in the log")
        self._writes_open = gauge("raftmq_raft_writes_open", "1 if this node leads and takes writes")
        self._alarm = gauge("raftmq_alarm", "1 for each alarm that is raised", ("key",))
        self._peer_match = gauge("raftmq_peer_match_index", "Highest index known to be on the peer's disk", ("peer",))
        self._peer_lag = gauge(
            "raftmq_peer_lag_entries",
            "Number of entries by which the peer's disk is behind the leader's log",
            ("peer",),
        )
        self._permission = gauge(
            "rocketmq_broker_permission", "RocketMQ's bits: 4 reads, 2 sends that this node would take"
        )
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
        self._topics = gauge("rocketmq_topic_number", "Number of topics")
        self._groups = gauge("rocketmq_consumer_group_number", "Number of consumer groups")

    def on_role(self, raw: RawNode) -> None:
        """Counts the changes of the leader that this node sees."""
        if raw.leader_id and raw.leader_id != self._leader_seen:
            self._leader_seen = raw.leader_id
            self._leader_changes.inc()

    def look(self) -> None:
        """Sets all gauges from the present status."""
        status = self._read()
        self._show_raft(status)
        self._show_peers(status.peers)
        self._show_load(status.load)
        self._topics.set(len(self._state.topics))
        self._groups.set(len(self._state.groups))
        self._permission.set(PERM_READ | (PERM_WRITE if self._takes_sends() else 0))
        self._alarm.clear()
        for alarm in status.alarms:
            self._alarm.labels(alarm.key).set(1)

    def _show_raft(self, status: NodeStatus) -> None:
        self._term.set(status.term)
        self._role.set(Role[status.role.upper()])
        self._leader_id.set(status.leader or NOBODY)
        self._commit_index.set(status.commit_index)
        self._applied_index.set(status.applied_index)
        self._last_index.set(status.last_index)
        self._apply_lag.set(max(0, status.commit_index - status.applied_index))
        self._writes_open.set(status.writes_open)

    def _show_peers(self, peers: Iterable[PeerStatus]) -> None:
        self._peer_match.clear()
        self._peer_lag.clear()
        for peer in peers:
            self._peer_match.labels(str(peer.node)).set(peer.match_index)
            self._peer_lag.labels(str(peer.node)).set(peer.lag_entries)

    def _show_load(self, load: LoadStatus) -> None:
        self._connections.set(load.connections)
        self._long_polls.set(load.long_polls)
        self._inflight_bytes.set(load.inflight_bytes)
        self._client_inflight_bytes.set(load.client_inflight_bytes)
        self._admission_bytes.set(load.admission_bytes)
        self._decided_rate.set(load.decided_bytes_per_second)
        self._overloaded.set(load.overloaded)

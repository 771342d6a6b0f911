"""Metrics of membership, in the node's registry (docs/metrics.md)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from raftlog.membership import Membership


class MembersMetrics:
    """Fed at each change."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._members = Gauge("raftmq_members", "Members in force, by role", ["role"], registry=registry)
        self._index = Gauge(
            "raftmq_membership_index",
            "Index of the entry that defines the members in force; 0 for GENESIS",
            registry=registry,
        )
        self._pending = Gauge(
            "raftmq_membership_pending", "1 while a membership change is not committed", registry=registry
        )
        self._removed = Gauge("raftmq_removed", "1 if this node was removed from the cluster", registry=registry)

    def note(self, members: Membership, *, committed: bool, removed: bool) -> None:
        """What is in force now."""
        self._members.labels("voter").set(len(members.voters))
        self._members.labels("learner").set(len(members.learners))
        self._index.set(members.index)
        self._pending.set(not committed)
        self._removed.set(removed)

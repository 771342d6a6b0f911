"""Tracks the progress of a snapshot install or a backfill, for the status, the metrics and an occasional log line."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

import msgspec

from cluster.config.local_layout import node_object
from cluster.runtime.figures.service_metrics import ServiceMetrics
from raftlog.types import FIRST_GROUP, NodeId

logger = logging.getLogger(__name__)

SAY_EVERY_S = 10.0

RepairStage = Literal["none", "state", "log", "restart", "backfill"]
"""The stage in progress: this node copies a peer's checkpoint, then the log up to it, then restarts in its process and
fetches the older segments."""


class InstallView(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a snapshot install or backfill, in the status of a node."""

    stage: RepairStage = "none"
    peer: int = 0
    """The peer that supplies the data."""
    checkpoint: str = ""
    bytes_done: int = 0
    bytes_total: int = 0
    """The bytes that this stage must transfer."""
    attempts: int = 0
    """The number of searches for a snapshot since the node started."""
    last_failure: str = ""


class InstallProgress:
    """Records the progress of installs and backfills on one node. Event loop only."""

    def __init__(self, metrics: InstallMetrics, now_s: Callable[[], float], group: int = FIRST_GROUP) -> None:
        self._group = group
        self._metrics = metrics
        self._now_s = now_s
        self._stage: RepairStage = "none"
        self._peer = self._done = self._total = 0
        self._what = ""
        self._said_s = 0.0
        self.attempts = 0
        self.last_failure = ""

    def begin(self, stage: RepairStage, peer: int = 0, what: str = "", total: int = 0, done: int = 0) -> None:
        """Records that another stage begins; `done` of its `total` bytes are already here. `what` names the data for
        people."""
        self._stage, self._peer, self._what, self._total, self._done = stage, peer, what, total, done
        self._said_s = self._now_s()
        self._metrics.remaining(total - done)

    def attempt(self) -> None:
        """Counts another search for a snapshot."""
        self.attempts += 1

    def came(self, size: int) -> None:
        """Counts bytes that arrived."""
        self._done += size
        self._metrics.received.labels(self._stage).inc(size)
        self._metrics.remaining(self._total - self._done)
        now = self._now_s()
        if now - self._said_s >= SAY_EVERY_S:
            self._said_s = now
            giver = node_object(self._group, self._peer)
            logger.info("%s of %s from %s: %d of %d bytes", self._stage, self._what, giver, self._done, self._total)

    def failed(self, peer: NodeId, why: str) -> None:
        """Records that a peer did not supply what it should."""
        self.last_failure = why
        self._metrics.failed.labels(str(peer)).inc()

    def cannot_store(self, why: str) -> None:
        """Records that this node's own disk could not store the data."""
        self.last_failure = why

    def end(self) -> None:
        """Records that no install is in progress any more."""
        self.begin("none")

    def view(self) -> InstallView:
        """Returns the progress of the install, for the node's status."""
        return InstallView(
            stage=self._stage,
            peer=self._peer,
            checkpoint=self._what,
            bytes_done=self._done,
            bytes_total=self._total,
            attempts=self.attempts,
            last_failure=self.last_failure,
        )


class InstallMetrics(ServiceMetrics):
    """Metrics of installs, updated once per piece that arrives."""

    def __init__(self) -> None:
        super().__init__()
        gauge, counter = self.gauge, self.counter
        self.offered = counter(
            "raftmq_install_offers",
            "Snapshot offers received because the leader has trimmed entries that this node needs",
        )
        self.received = counter(
            "raftmq_install_bytes", "Bytes fetched for a snapshot (state, log) or its backfill", ["part"]
        )
        self._remaining = gauge(
            "raftmq_install_remaining_bytes", "Bytes that an install or a backfill still has to fetch"
        )
        self.failed = counter("raftmq_install_failures", "Failed attempts to fetch a snapshot or a segment", ["peer"])
        self.installed = counter("raftmq_installs", "Snapshots installed at this start of the node")
        self.backfilled = counter("raftmq_backfilled_segments", "Older segments fetched after an install")

    def remaining(self, size_bytes: int) -> None:
        """Sets the bytes that are still missing."""
        self._remaining.set(max(0, size_bytes))

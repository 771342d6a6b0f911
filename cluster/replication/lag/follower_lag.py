"""Measures, on the leader, the lag of each follower in bytes and in time, and forecasts it.

The time is the age of the oldest entry that the follower lacks. Both figures are cheap: they come from the log's index
and from the ends of the log that the node notes once a second. A forecast starts again with each term.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from cluster.replication.lag.forecast import WINDOW_MS, Forecast, Kept, LagSample, forecast
from cluster.replication.lag.log_times import LogTimes
from cluster.runtime.service_lifecycle import Part
from raftlog.core.raw_node import RawNode
from raftlog.core.status import PeerStatus
from raftlog.errors import DamagedLogError
from raftlog.types import NodeId, Role

if TYPE_CHECKING:
    from cluster.config.storage_sections import RetentionSection
    from raftlog.storage.log.segmented_log import SegmentedLog

EVERY_MS: Final = 1_000
FETCHES: Final = "SNAPSHOT"
"""The state of replication to a follower that fetches a snapshot: no forecast can be made from the log alone."""


class Lag(NamedTuple):
    """The part of the leader's log that a follower's disk lacks."""

    size_bytes: int
    age_ms: int
    """Milliseconds since the oldest entry that the follower lacks was written; 0 if it lacks none. If the entry is
    older than the leader's present run, this is a lower bound."""


def end_of(log: SegmentedLog, index: int) -> int:
    """Returns the position behind the entry `index`. If the log no longer has the entry, or its position was lost with
    a damaged segment, returns the position where the log begins."""
    if index >= log.tail.index:
        return log.tail.end_position
    if index + 1 < max(log.first_index, 1):
        return log.first_position
    try:
        return log.position_of(index + 1)
    except DamagedLogError:
        return log.first_position


class FollowerLag:
    """Measures the lag of the followers of one node. Event loop only."""

    def __init__(self, raw: RawNode, log: SegmentedLog, rules: RetentionSection) -> None:
        self._raw = raw
        self._log = log
        self._rules = rules
        self._times = LogTimes()
        self._due_ms = 0
        self._term = -1
        self._samples: dict[NodeId, deque[LagSample]] = {}
        self._forecasts: dict[NodeId, Forecast | None] = {}
        """Node -> its forecast, for those that were asked for since the last sample."""

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="follower lag", tick=self.tick, reload=lambda config: self.reload(config.retention))

    def reload(self, rules: RetentionSection) -> None:
        """Applies new rules for what the log keeps."""
        self._rules = rules

    def tick(self, now_ms: int) -> None:
        """Records where the log ends and, on the leader, how far each follower is behind it. Called periodically."""
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + EVERY_MS
        self._times.note(now_ms, self._log.tail.index)
        self._forecasts = {}
        if self._raw.role is not Role.LEADER or self._raw.term != self._term:
            self._samples, self._term = {}, self._raw.term
        if self._raw.role is Role.LEADER:
            peers = [peer for peer in self._raw.status().peers if peer.state != FETCHES]
            self._samples = {peer.node_id: self._sampled(peer, now_ms) for peer in peers}

    def _sampled(self, peer: PeerStatus, now_ms: int) -> deque[LagSample]:
        samples = self._samples.get(peer.node_id) or deque(maxlen=WINDOW_MS // EVERY_MS + 1)
        samples.append(LagSample(now_ms, *self.of(peer, now_ms)))
        # Samples are older than the window only if the node stood still. They say nothing about the present rate.
        while now_ms - samples[0].at_ms > WINDOW_MS:
            samples.popleft()
        return samples

    def forecast_of(self, peer: NodeId) -> Forecast | None:
        """Returns the forecast for a follower of this leader; None if it is too early for one, or while the follower
        fetches a snapshot."""
        if peer not in self._forecasts:
            samples = self._samples.get(peer)
            self._forecasts[peer] = None if samples is None else forecast(samples, self._kept())
        return self._forecasts[peer]

    def _kept(self) -> Kept:
        """Returns the part of the log that the retention rules keep. Whole segments are deleted for size, so the log
        may be left with up to one segment less than `bytes_max`."""
        most = self._rules.bytes_max
        return Kept(max(most - self._log.segment_size, most // 2), self._rules.keep_ms)

    def of(self, peer: PeerStatus, now_ms: int) -> Lag:
        """Returns the lag of a follower of this leader."""
        tail = self._log.tail
        size_bytes = max(0, tail.end_position - end_of(self._log, peer.match_index))
        return Lag(size_bytes, self._times.age_ms(peer.match_index + 1, tail.index, now_ms))

"""Puts together the parts of a node that its `modes` configure: early answers, reports of writes, staleness, and their
metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from cluster.replication.acks.ack_levels import Ack, default_level, name_of
from cluster.replication.acks.write_reports import WrittenRelay
from cluster.replication.follower_reads import FollowerReads
from cluster.runtime.peer_frames import Kind, PeerLinks
from cluster.runtime.service_lifecycle import Closing, Part
from raftlog.errors import RaftLogError
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.types import NodeId

if TYPE_CHECKING:
    from cluster.config.config import Config
    from cluster.replication.acks.degradation import Degradation
    from cluster.replication.acks.early_answer_file import Ledger
    from cluster.replication.acks.early_answers import EarlyAnswers
    from cluster.replication.metrics import ModeMetrics
    from cluster.runtime.context import NodeContext
    from statemachine.broker_state import BrokerState

KINDS = frozenset((Kind.WANT_WRITTEN, Kind.WRITTEN))

SURVIVES = {
    "quorum+fsync": "what is acknowledged survives the loss of any minority of nodes, disks included",
    "quorum": "what is acknowledged survives the end of every process; power lost by a majority at once may take it",
    "leader": "what is acknowledged may be lost with the leader",
}


class ModesView(msgspec.Struct, frozen=True, kw_only=True):
    """The status of the modes: how sends are acknowledged when this node leads, and the number of messages that may be
    lost."""

    level: str
    """The acknowledgement level of messages whose topic and properties specify none: leader, quorum or quorum+fsync.
    While the node degrades, leader."""
    degrade: str
    """The level at which sends of the default level are acknowledged while the majority is slow (replication.degrade);
    off if they never are."""
    degraded: bool
    """True while this node leads and acknowledges sends early because the majority is slow."""
    degraded_why: str
    """The figures, for people, because of which `degraded` is True; "" if it is False."""
    flush_disk_type: str
    broker_role: str
    transient_store_pool_enable: bool
    slave_read_enable: bool
    promise: str
    loss_window_entries_max: int
    """The most log entries that may be acknowledged early and undecided at a time (limits.batches_inflight_max)."""
    loss_window_bytes_max: int
    loss_window_messages: int
    """The number of messages acknowledged early and undecided now."""
    loss_window_messages_seen: int
    """The highest number of messages acknowledged early and undecided at one time since the start."""
    lost_messages: int
    """The number of messages acknowledged early and replaced by another leader's entry, since the data directory was
    created."""
    lost_entries: int


class Modes:
    """The parts of the node that the modes configure. Started with the node; a timer of the node calls `tick`."""

    def __init__(
        self,
        context: NodeContext,
        early: EarlyAnswers,
        log: SegmentedLog,
        transport: PeerLinks,
        state: BrokerState,
        metrics: ModeMetrics,
        degradation: Degradation,
    ) -> None:
        config, raw = context.config, context.raw
        self._config = config
        self._early = early
        assert early.ledger is not None
        self._ledger: Ledger = early.ledger
        self._metrics = metrics
        self._degradation = degradation
        self.relay = WrittenRelay(config.node_id, raw, early, log, transport, context.loop, context.wake)
        self.reads = FollowerReads(config, raw, state, context.clock.monotonic_ms, context.environment.memory_bytes)

        def term_at(index: int) -> int | None:
            try:
                return raw.raft.log.term_at(index)
            except RaftLogError:
                return None

        early.on_start(raw.applied_index, term_at)

    def tick(self, now_ms: int) -> None:
        """Advances reports of writes, degradation and staleness, and updates the metrics. Called on a timer."""
        self._degradation.tick(now_ms)
        self.relay.tick(now_ms)
        self.reads.staleness.tick(now_ms)
        self._metrics.window.set(self._early.window_messages)

    def part(self) -> Part:
        """Returns the modes as a Part of the node: its name, callbacks and frames."""
        return Part(
            name="modes",
            close=self.close,
            closes=Closing.FILES,
            tick=self.tick,
            role=lambda _: self._degradation.on_role(),
            frames=dict.fromkeys(KINDS, lambda peer, kind, header, _: self.on_frame(peer, kind, header)),
            reload=self.reload,
            metrics=(self._metrics,),
        )

    def reload(self, config: Config) -> None:
        """Applies a changed configuration; `EarlyAnswers` gets it from `Proposals`."""
        self._config = config
        self._ledger.resize(config.limits.batches_inflight_max)
        self.reads.reload(config.modes)
        self._degradation.reload(config)

    def on_frame(self, peer: NodeId, kind: int, header: list[Any]) -> None:
        """Handles a frame of one of the KINDS from a peer. Raises WireError if it is malformed."""
        self.relay.on_frame(peer, kind, header)

    def close(self) -> None:
        """Closes the file DATA/EARLY."""
        self._ledger.close()

    def view(self) -> ModesView:
        """Returns the modes and the loss window for the status."""
        modes, limits, why = self._config.modes, self._config.limits, self._degradation.why
        level = name_of(Ack.LEADER if why else default_level(modes))
        return ModesView(
            level=level,
            degrade=self._config.replication.degrade,
            degraded=bool(why),
            degraded_why=why,
            flush_disk_type=modes.flush_disk_type,
            broker_role=modes.broker_role,
            transient_store_pool_enable=modes.transient_store_pool_enable,
            slave_read_enable=modes.slave_read_enable,
            promise=SURVIVES[level],
            loss_window_entries_max=self._ledger.room,
            loss_window_bytes_max=self._ledger.room * (limits.batch_bytes_max + limits.message_bytes_max),
            loss_window_messages=self._early.window_messages,
            loss_window_messages_seen=self._early.window_messages_max,
            lost_messages=self._ledger.lost.messages,
            lost_entries=self._ledger.lost.entries,
        )

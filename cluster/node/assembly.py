"""Makes the services of a node, in the order in which they depend on each other. Each is complete when its constructor
returns.

`cluster.node.node` starts and closes them. Two services that need each other share a
`cluster.runtime.listeners.Signal`, which is made before both.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cluster.broker.reads.entry_reads import EntryReads
from cluster.config.config import Config
from cluster.config.reload import ReloadView
from cluster.members.config_activation import LayeredConfig, Reloading
from cluster.node.cluster_config import ClusterConfig
from cluster.node.event_watch import EventWatch
from cluster.node.integrity import Integrity
from cluster.node.keeping import Keeping
from cluster.node.lanes import NodeLanes
from cluster.node.meters import Meters
from cluster.node.node_view import NodeView
from cluster.node.peers import Peers
from cluster.node.serving import Serving
from cluster.peer.admission import Implausible
from cluster.peer.sync_times import SyncTimes
from cluster.replication.append_lane import Persisted
from cluster.replication.append_runner import AppendRunner
from cluster.replication.raft_driver import DriverInbox, DriverLanes, Proposer, RaftDriver
from cluster.replication.thrifty_sender import ThriftySender
from cluster.runtime.alarms import Alarms
from cluster.runtime.context import NodeContext
from cluster.runtime.environment import Environment
from cluster.runtime.events import EventLog
from cluster.runtime.failpoints.failpoints import FailpointSet, FailpointTransport, SendsMessages
from cluster.runtime.figures.stage_times import StageTimes
from cluster.runtime.leader_handover import Succession
from cluster.runtime.listeners import Signal
from cluster.runtime.read_leases import Leases
from cluster.runtime.turns.work import Paused, Turns
from cluster.state.node_storage import NodeStorage
from raftlog.core.held_appends import HeldAppends, Outside

if TYPE_CHECKING:
    from statemachine.broker_state import BrokerState


class Assembly:
    """The services of one node. Event loop only."""

    def __init__(self, config: Config, environment: Environment, proposer: Proposer) -> None:
        """Opens the data directory, which blocks, and makes the services. Must be called on the event loop that will
        run the node. Raises IdentityError if the directory belongs to another node, cluster or format, StorageError if
        the log cannot be opened, KVError if the rows cannot, and ConfigError if the configuration cannot be used."""
        self.environment = environment
        self.node_id = config.node_id
        self.failpoints = FailpointSet(config.failpoints.enabled)
        self.failure: BaseException | None = None
        self._clock = environment.clock
        self.alarms = Alarms(self._clock.wall_ms)
        self.leases = Leases(self._clock.monotonic_ms)
        self.started_ms = self._clock.monotonic_ms()
        self.storage = NodeStorage(config, self.failpoints, environment, self.alarms)
        self.state: BrokerState = self.storage.state
        self.storage.refuse_retired()
        self.meters = Meters(
            self.state, lambda ha: self.view.show_ha(ha), lambda: self.serving.broker.deliveries.messages_given
        )
        try:
            self._build(config, proposer)
        except BaseException:
            self.storage.close(clean=False)
            raise

    def _build(self, config: Config, proposer: Proposer) -> None:
        environment, storage = self.environment, self.storage
        self.layers = LayeredConfig(config, self.state.settings, environment)
        config = self.layers.in_force()
        kept_in = storage.directory.path if environment.serves_admin else None
        self.events = EventLog(self.node_id, self._clock.wall_ms, kept_in)
        self.stopping = False
        """True while the node stops and directs its clients to other nodes (`cluster.node.orderly_stop`)."""
        self.hurried = False
        """True after a second request to stop. The node then stops without waiting for anything."""
        self.failed: Signal[[BaseException]] = Signal()
        """Sent with the error after which the node must not go on: an error of its storage, or a state that should be
        impossible."""
        self.again: Signal[[str]] = Signal()
        """Sent with the reason, when the process must close the node and open it again."""
        self.raw = storage.raw_node(config, environment.random(), environment.send_bytes)
        self.inbox = DriverInbox(asyncio.get_running_loop())
        syncs = SyncTimes(config.node_id, self._clock, self.meters.appends.syncs, config.ha.send_heartbeat_interval_ms)
        self.succession = Succession(self.raw, self.inbox.wake, syncs.is_slower)
        self.context = context = self._context_of(config, self.inbox)
        self.peers = peers = Peers(context, storage, syncs, lambda level: self.serving.groups_below(level))
        self.reloading = Reloading(config, self.layers, environment, peers.secret, peers.tls)
        self.integrity = Integrity(context, storage, peers, self.leases, self.again)
        entries = EntryReads(context, storage.directory.log.entry_at)
        self.serving = Serving(
            context,
            storage,
            self.inbox,
            peers,
            self.integrity,
            self.meters,
            entries=entries,
            current_config=lambda: self.config,
            started_ms=self.started_ms,
        )
        self.keeping = Keeping(context, storage, self.serving, self.leases)
        self.view = NodeView(
            context,
            storage,
            peers,
            self.integrity,
            self.serving,
            config=lambda: self.config,
            failure=lambda: self.failure,
            stopping=lambda: self.stopping,
            started_ms=self.started_ms,
        )
        self._lanes = NodeLanes(
            context,
            storage,
            entries,
            reserved=self.serving.disk.reserved,
            groups_here=lambda: self.serving.other_groups.groups_here,
            on_persisted=self._on_persisted,
            on_applied=self.inbox.on_applied,
            on_inline=self.meters.appends.inline,
            on_committed=self.serving.proposals.on_committed,
        )
        self.serving.disk.retry.add(self._lanes.retry_append)
        self._build_driver(proposer)

    def _context_of(self, config: Config, inbox: DriverInbox) -> NodeContext:
        loop = asyncio.get_running_loop()
        paused = Paused(loop, lambda: self.driver.turns)
        return NodeContext(
            config,
            self.environment,
            loop,
            self.raw,
            self.alarms,
            inbox.wake,
            StageTimes(),
            self.failed,
            Turns(loop.call_soon, self.environment.turn_share, patient=paused),
            self.events,
            self.failpoints,
            self.succession,
        )

    def _build_driver(self, proposer: Proposer) -> None:
        """Makes the driver, which needs all other services, and then the services that only observe."""
        context, loop, transport = self.context, self.context.loop, self.peers.transport
        self.storage.corrupted.add(lambda error: loop.call_soon_threadsafe(self.failed, error))
        sender = FailpointTransport(transport, self.failpoints, loop) if self.failpoints.enabled else transport
        self.thrift = thrift = self._thrift(sender) if self.config.replication.thrifty == "on" else None
        self.driver = driver = RaftDriver(
            self.raw,
            self.node_id,
            self.inbox,
            loop=loop,
            clock=self._clock,
            tick_ms=self.config.raft.tick_ms,
            transport=thrift or sender,
            proposer=proposer,
            flush=thrift.flush if thrift else self.serving.proposals.flush,
            lanes=DriverLanes(
                self._lanes.append, self._lanes.apply, self.environment.apply_bytes, self._lanes.catch_up
            ),
            stages=context.stages,
            on_install=self.integrity.installs.offered,
        )
        self.failed.add(driver.fail)
        driver.implausible.add(Implausible(transport, self.alarms, self.config.cluster.group).note)
        self._event_watch = EventWatch(
            self.events,
            self.node_id,
            self.storage,
            transport,
            self.peers.membership,
            self.integrity.installs,
            group=self.config.cluster.group,
        )
        self._cluster_config = ClusterConfig(
            context,
            self.state,
            self.peers.changes,
            self.peers.membership,
            self.serving.services,
            self.reloading,
            self.peers.levels,
        )

    def _thrift(self, sender: SendsMessages) -> ThriftySender:
        """Returns the object that holds back appends to slower followers. It does so only while the log is written on
        the event loop, because the disk is then fast."""
        proposals, append, changes = self.serving.proposals, self._lanes.append, self.peers.changes
        outside = Outside(
            plain=proposals.is_plain,
            in_haste=(lambda: not append.at_once or bool(proposals.early.waiting))
            if isinstance(append, AppendRunner)
            else (lambda: True),
            slow=self.peers.links.slow_turns.is_slow,
            preferred=lambda: changes.preferred,
        )
        appends = HeldAppends(self.raw.raft, outside)
        return ThriftySender(sender, appends, self.context.loop, self._clock, self.inbox.receive, proposals.flush)

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self.reloading.config

    def reload(self) -> ReloadView:
        """Reads the configuration again, and puts it in force. Raises ConfigError if it cannot be used; nothing is
        changed then."""
        view = self.reloading.reload()
        self._event_watch.reloaded(view)
        return view

    def _on_persisted(self, persisted: Persisted) -> None:
        if persisted.bytes_written:
            self.meters.appends.written(persisted.bytes_written, persisted.seconds, persisted.sync_seconds)
            if not self.serving.proposals.open:
                self.meters.traffic.ha.received(persisted.bytes_written)
        self.inbox.on_persisted(persisted)
        self.serving.disk.on_persisted(persisted)

"""The services of a node, each complete when its constructor returns, in the order in which they depend on each other.
`cluster.node.node` starts and closes them.

Two services that need each other share a `cluster.runtime.listeners.Signal`, which is made before both.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from cluster.backup.service import Backups
from cluster.broker.assembly import Broker, SendIntake
from cluster.broker.reads.entry_reads import EntryReads
from cluster.broker.reads.log_reads import read_intact
from cluster.broker.sends.closed_connections import ClosedConnections
from cluster.broker.sends.send_outcomes import SendOutcomes
from cluster.config.config import Config, split_address
from cluster.config.loading import own_address
from cluster.config.reload import ReloadView
from cluster.flow.gate import Gate
from cluster.flow.quota_shares import QuotaShares
from cluster.members.changes import MemberChanges
from cluster.members.cluster_level import Levels
from cluster.members.config_activation import LayeredConfig, Reloading
from cluster.members.service import MembersService
from cluster.node.cluster_config import ClusterConfig
from cluster.node.event_watch import EventWatch
from cluster.node.services import NodeServices
from cluster.peer import secret
from cluster.peer.admission import Implausible
from cluster.peer.confirmed_index import ConfirmedIndex
from cluster.peer.group_links import GroupLinks
from cluster.peer.links import links_of
from cluster.peer.secret import SecretKeeper
from cluster.peer.sync_times import SyncTimes
from cluster.placement.groups_file import GroupsFile
from cluster.placement.known_groups import KnownGroups, own_record
from cluster.placement.quota_exchange import QuotaExchange
from cluster.placement.route_map import BrokerGroup, RouteMap
from cluster.remoting.assembly import Remoting, SendAnswers, Trust
from cluster.remoting.connection.frame import Frame
from cluster.remoting.connection.reply_path import pack_host
from cluster.remoting.handlers.broker_stats import NodeFigures
from cluster.remoting.handlers.send_reply import SendReplyWriter
from cluster.repair.consistency import Consistency
from cluster.repair.install_service import InstallService
from cluster.repair.repair_service import Repairs, moves_of, transport_of
from cluster.replication.acks.degradation import Degradation
from cluster.replication.acks.early_answer_file import Ledger
from cluster.replication.append_lane import RETRY, AppendLane, Persisted, PersistJob, PrepareLane
from cluster.replication.append_runner import AppendRunner
from cluster.replication.apply_lane import Applied, ApplyLane, ApplyRunner
from cluster.replication.lag.follower_lag import FollowerLag
from cluster.replication.metrics import AppendMetrics, HaMetrics
from cluster.replication.mode_assembly import Modes
from cluster.replication.proposals import Proposals
from cluster.replication.raft_driver import DriverInbox, Proposer, RaftDriver
from cluster.replication.send_identity import RetryMemory
from cluster.replication.thrifty_sender import ThriftySender
from cluster.replication.traffic_metrics import TrafficMetrics
from cluster.requests.request_metrics import RequestMetrics
from cluster.retention.assembly import disk_of, retention_of
from cluster.runtime.alarms import Alarms
from cluster.runtime.context import NodeContext
from cluster.runtime.environment import Environment
from cluster.runtime.events import EventLog
from cluster.runtime.failpoints.failpoints import FailpointLane, FailpointSet, FailpointTransport, SendsMessages
from cluster.runtime.figures.counters import Rates, Totals
from cluster.runtime.figures.stage_times import StageTimes
from cluster.runtime.lanes import Lane, LaneRunner
from cluster.runtime.leader_handover import Succession
from cluster.runtime.listeners import Signal
from cluster.runtime.periodic_tasks import Every
from cluster.runtime.read_leases import Leases
from cluster.runtime.tls.tls_maintenance import TlsMaintenance
from cluster.runtime.turns.turn_watch import LoopLagSampler
from cluster.runtime.turns.work import Paused, Turns
from cluster.state.node_storage import NodeStorage
from cluster.state.scrub import Scrubber
from cluster.state.suspect_state import give_up
from cluster.tier.tier_assembly import access_of, expiry_of, index_files_of, scrubs_of, tier_of
from cluster.truth.assembly import truth_of
from raftlog.core.held_appends import HeldAppends, Outside
from raftlog.types import FIRST_GROUP, Entry, NodeId

if TYPE_CHECKING:
    from cluster.runtime.context import NodeContext
    from cluster.runtime.failpoints.failpoints import FailpointSet
    from cluster.state.node_storage import NodeStorage
    from statemachine.broker_state import BrokerState


FLUSH_EVERY_MS = 1000
"""Milliseconds between two syncs of RocksDB's WAL while entries are applied. After a power loss, a restart replays what
was applied since the last sync."""


class NodeLanes:
    """The lanes of one node, each with its own thread. The methods here run on the event loop only."""

    def __init__(
        self,
        context: NodeContext,
        storage: NodeStorage,
        failpoints: FailpointSet,
        *,
        reserved: Callable[[], str],
        groups_here: Callable[[], int],
        on_persisted: Callable[[Persisted], None],
        on_applied: Callable[[Applied], None],
        on_inline: Callable[[bool], object],
        on_committed: Callable[[list[Entry]], object],
    ) -> None:
        """`reserved` returns the reason why messages may not be written, "" if they may; `groups_here` the number of
        groups of brokers whose nodes share the disk. Any thread may call them. `on_inline` is explained at
        `AppendRunner`, `on_committed` at `ApplyLane.begins`."""
        log, clock, loop, fail = storage.directory.log, context.clock, context.loop, context.fail
        hard_state_store, idle_mark_ms = storage.directory.hard_state_store, context.config.log.idle_mark_ms
        append_lane = AppendLane(log, hard_state_store, idle_mark_ms, reserved, clock.monotonic_s, log.synced_s)
        log.time_syncs(clock.monotonic_s)
        if (cached_bytes := context.config.log.page_cache_bytes_max) > 0:
            log.limit_page_cache(cached_bytes)
        apply_lane: Lane[list[Entry], Applied] = ApplyLane(storage.state, context.environment.apply_bytes, on_committed)
        runner = append_runner = apply_runner = context.environment.runner
        if failpoints.enabled:  # a point that holds a lane must hold a thread, not the loop
            apply_lane = FailpointLane(apply_lane, failpoints, "apply.batch")
        else:
            append_runner = context.environment.append_runner or partial(AppendRunner, on_inline=on_inline)
            apply_runner = context.environment.apply_runner or ApplyRunner
        prepare_lane = PrepareLane(log, clock.monotonic_s, reserved, groups_here)
        self.append: LaneRunner[PersistJob] = append_runner("append", append_lane, loop, on_persisted, fail)
        self.apply: LaneRunner[list[Entry]] = apply_runner("apply", apply_lane, loop, on_applied, fail)
        self._flush: LaneRunner[object] = runner("flush", storage.checkpointer, loop, _ignore, fail)
        self._prepare: LaneRunner[object] = runner("prepare", prepare_lane, loop, _ignore, fail)
        self.entries = EntryReads(context, log.entry_at)
        self._loop = loop
        self._raw = context.raw
        self._checkpointer = storage.checkpointer
        self._flush_index = storage.state.applied.index
        self.flushes = Every(FLUSH_EVERY_MS, self._flush_state)
        """Starts the sync of RocksDB's WAL when it is due."""

    def retry_append(self) -> None:
        """Makes the append lane try again what it has put aside."""
        self.append.submit(RETRY)

    def prepare(self) -> None:
        """Starts the preparation of the next segment."""
        self._prepare.submit(True)

    def _flush_state(self) -> bool:
        applied = self._raw.applied_index
        if applied <= self._flush_index and not self._checkpointer.due:
            return False
        self._flush_index = applied
        self._flush.submit(True)
        return True

    async def close(self) -> None:
        """Ends the lanes one after the other; each finishes its queued jobs first."""
        for lane in (self.append, self.apply, self._prepare, self._flush, self.entries):
            await self._loop.run_in_executor(None, lane.close)


def _ignore(done: object) -> None:
    """Ignores the results of a lane for which nothing waits."""


logger = logging.getLogger(__name__)


class Assembly:
    """The services of one node. Event loop only."""

    def __init__(self, config: Config, environment: Environment, proposer: Proposer) -> None:
        """Opens the data directory (blocking). Must be called on the loop that will run the node. Raises IdentityError,
        StorageError, KVError, ConfigError."""
        self.environment = environment
        self.node_id = config.node_id
        self.failpoints = FailpointSet(config.failpoints.enabled)
        self.appends = AppendMetrics()
        self.loop_lag = LoopLagSampler(asyncio.get_running_loop())
        self.failure: BaseException | None = None
        self._clock = environment.clock
        self.alarms = Alarms(self._clock.wall_ms)
        self.leases = Leases(self._clock.monotonic_ms)
        self.started_ms = self._clock.monotonic_ms()
        self.storage = NodeStorage(config, self.failpoints, environment, self.alarms)
        self.state: BrokerState = self.storage.state
        self.storage.refuse_retired()
        self.requests = RequestMetrics()
        self.traffic = TrafficMetrics(self.state, self.requests, HaMetrics(self._show_ha))
        self.rates = Rates(lambda: Totals(self.traffic.messages_taken, self.broker.deliveries.messages_given))
        try:
            self._build(config, proposer)
        except BaseException:
            self.storage.close(clean=False)
            raise

    def _build(self, config: Config, proposer: Proposer) -> None:
        environment = self.environment
        self.layers = LayeredConfig(config, self.state.settings, environment)
        config = self.layers.in_force()
        identity = self.storage.directory.identity
        self.backups = Backups(
            config, identity, self.storage.kv, self.alarms, self._clock.wall_ms, self.leases, self._confirm_applied
        )
        kept_in = self.storage.directory.path if environment.serves_admin else None
        self.events = EventLog(self.node_id, self._clock.wall_ms, kept_in)
        self.stopping = False
        """True while the node stops and directs its clients to other nodes (`cluster.node.orderly_stop`)."""
        self.hurried = False
        """True after a second request to stop: the node no longer waits for anything."""
        self.failed: Signal[[BaseException]] = Signal()
        """Sent with a storage error, or an impossible state, after which the node must not go on."""
        self.again: Signal[[str]] = Signal()
        """Sent with the reason when the process must close the node and open it again."""
        self._build_consensus(config, asyncio.get_running_loop())
        self._build_repair()
        self._build_requests()
        self._build_lanes()
        self._build_driver(proposer)

    def _build_consensus(self, config: Config, loop: asyncio.AbstractEventLoop) -> None:
        """Makes the Raft core and its driver, the membership, and the connections to the other members."""
        storage = self.storage
        self.raw = raw = storage.raw_node(config, self.environment.random(), self.environment.send_bytes)
        self.inbox = inbox = DriverInbox(loop)
        self.syncs = syncs = SyncTimes(
            config.node_id, self._clock, self.appends.syncs, config.ha.send_heartbeat_interval_ms
        )
        self.succession = Succession(raw, inbox.wake, syncs.is_slower)
        share, paused = self.environment.turn_share, Paused(loop, lambda: self.driver.turns)
        turns = Turns(loop.call_soon, share, patient=paused)
        self._context = context = NodeContext(
            config,
            self.environment,
            loop,
            raw,
            self.alarms,
            inbox.wake,
            StageTimes(),
            self.failed,
            turns,
            self.events,
            self.failpoints,
            self.succession,
        )
        log, identity = storage.directory.log, storage.directory.identity
        levels: dict[NodeId, int] = {}
        self.membership = members = MembersService(
            context, identity, (voter.id for voter in log.genesis.voters), levels
        )
        self.tls = TlsMaintenance(config, self.alarms, context.clock.wall_ms)
        keyring = secret.load(context.fs, config)
        self.transport = transport = transport_of(
            context, members, keyring, levels, self.tls, lambda: storage.state.level
        )
        self.levels = Levels(context, storage.state, members, transport, self._groups_below)
        self.secret = SecretKeeper(config, context.fs, self.alarms, lambda: members.in_force.node_uuids, transport)
        self.reloading = Reloading(config, self.layers, self.environment, self.secret, self.tls)
        transfer = self.succession.transfer
        self.links = links_of(context, transport, transfer, syncs)
        self.lag = FollowerLag(raw, log, config.retention)
        self.changes = MemberChanges(context, members, transfer=transfer, slow_turns=self.links.slow_turns)

    def _build_repair(self) -> None:
        """Makes the services that repair, install, compare and scrub the log and the state."""
        context, storage = self._context, self.storage
        self.repairs = Repairs(context, storage.directory, self.transport)
        self.moves = moves_of(self.membership, self.transport, self.repairs, self.tls.http_dialling())
        self.installs = InstallService(context, storage, self.repairs, self.leases, restart=self.again)
        self.consistency = Consistency(context, self.state, self.repairs, mark_suspect=self._mark_suspect)
        self.scrubber = Scrubber(
            self.node_id,
            storage.directory.path,
            config=self.config.consistency,
            wall_ms=self._clock.wall_ms,
            report=self.repairs.report,
            on_bad_rows=self.consistency.bad_checkpoint,
        )

    def _build_requests(self) -> None:
        """Makes the services that take requests, propose their commands, and answer them."""
        context, config, state, requests = self._context, self.config, self.state, self.requests
        modes = self.traffic.modes
        incarnation = self.environment.entropy(8)
        store_host = pack_host(*split_address(own_address(config)))
        self.retries = retries = RetryMemory()
        self.group_links = group_links = GroupLinks(self.transport, lambda group: self.other_groups.leader(group))
        routes = RouteMap(self._own_group(), lambda: self.other_groups.others())
        self.other_groups = KnownGroups(
            context,
            group_links,
            self._groups_file(),
            lambda: own_record(self.raw, self.membership, routes.own.name, self.links.unreached, state.level),
            lambda: state.broker_groups.by_number,
            lambda: context.fail(self.storage.retired()),
        )
        replies = SendReplyWriter(store_host, routes.own.name, requests)
        closings = ClosedConnections(context.loop.call_soon)
        outcomes = SendOutcomes(self._clock, state, retries, replies, closings)
        self.proposals = proposals = Proposals(
            context,
            state,
            Gate(config, requests.refused, requests.quota_refused),
            store_host=store_host,
            replies=outcomes,
            before_open=self.consistency.before_open,
            metrics=self.traffic,
            ledger=Ledger(context.fs, self.storage.directory.path, config.limits.batches_inflight_max),
            sync_ms=lambda: self.syncs.of_majority(self.raw.membership.voter_ids),
        )
        degradation = Degradation(context, proposals, lambda: self.syncs.own_ms, self.inbox.read_index, modes)
        self.modes = Modes(
            context, proposals.early, self.storage.directory.log, self.transport, state, modes, degradation
        )
        self.services = services = NodeServices(
            context, self.storage, self.inbox, proposals, self.membership, self.consistency, self.repairs, routes
        )
        self.truth = truth_of(context, state, services, proposals, group_links)
        self.tier_access = access_of(context, self.storage, services)
        path, others = self.storage.directory.path, self.other_groups
        self.disk = disk_of(context, path, proposals, lambda: others.groups_here)
        arrived = Signal[[Frame]]()
        self.broker = broker = Broker(
            context,
            services,
            proposals,
            retries,
            intake=SendIntake(incarnation, arrived, replies.refuse),
            reads=self.modes.reads,
            evicted=self.tier_access,
            transport=self.transport,
            unreached=self.links.unreached,
            keyed=self._keyed,
            denied=lambda enforced: requests.denied(enforced=enforced),
        )
        broker.other_members.serve(group_links)
        self.confirmed = ConfirmedIndex(
            self.transport,
            services,
            context.turns,
            leader=routes.own.leader,
            applied=lambda: self.raw.applied_index,
            level=lambda: state.level,
        )
        paced, pulls = proposals.flow.paced, broker.pulls.paced
        shares = QuotaShares((paced.buckets, pulls.buckets))
        paced.buckets.share_with(self._groups_there)
        pulls.buckets.share_with(lambda: self._groups_there() * max(1, len(self.membership.in_force.voter_ids)))
        shares.count_waiting(paced.waiting)
        shares.count_waiting(pulls.waiting)
        self.quota_exchange = QuotaExchange(
            shares,
            self.transport,
            group_links,
            context.turns,
            group=self.config.cluster.group,
            leader=routes.own.leader,
            leads=services.writes_open,
            monotonic_ms=services.monotonic_ms,
        )
        disk = self.disk
        figures = NodeFigures(services, self._clock, lambda: disk.view().used_percent, self.rates, self.started_ms)
        self.remoting = remoting = Remoting(
            context,
            broker,
            proposals,
            self.transport,
            arrived=arrived,
            answers=SendAnswers(replies, closings, outcomes),
            figures=figures.by_name,
            read_entries=lambda positions, told: self._lanes.entries.ask(positions, told),
            log_begins=self.installs.log_begins,
            trust=Trust(self.unheard, self.confirmed, self._keyed),
            security=self.tls.security,
            metrics=requests,
        )
        self.forwarder, self.router, self.admission = remoting.forwarder, remoting.router, remoting.admission
        self.clients, self.pulls = broker.members, broker.pulls
        self.membership.removed.add(self.router.clients.drop)

    def _groups_file(self) -> GroupsFile:
        identity = self.storage.directory.identity
        directory = self.storage.directory.path
        return GroupsFile(self._context.fs, directory, str(identity.cluster_uuid), identity.group_id)

    def _groups_below(self, level: int) -> list[str]:
        """Returns the groups that are raised before this one and are not known to have that level: all others, if this
        is the first one. What it decides is copied into their logs."""
        if self.config.cluster.group != FIRST_GROUP:
            return []
        return self.other_groups.below(level)

    def _groups_there(self) -> int:
        return 1 + len(self.other_groups.others())

    def _own_group(self) -> BrokerGroup:
        members = self.membership
        return BrokerGroup(
            lambda: self.config,
            leader=lambda: self.raw.leader_id,
            advertised=members.broker_addresses,
            stand_ins=self.links.stand_ins,
            http=members.http_address,
            slots=self._slots,
        )

    def _slots(self) -> int:
        """Returns the number of aliases of each group: the names under which a route lists its nodes. It is fixed when
        a cluster gets its second group; 0 before, when each node has one name."""
        rows = self.state.broker_groups.by_number
        return next(iter(rows.values())).aliases if rows else 0

    def _confirm_applied(self, done: Callable[[bool], None]) -> None:
        """Calls `done(True)` once this node has applied what was acknowledged before, whoever leads; `done(False)` if
        no leader confirms that, or the cluster's level has no word for the question."""
        if self.services.writes_open() or self.confirmed.is_possible:
            self.confirmed.ask(done)
        else:
            done(False)

    def _keyed(self) -> bool:
        return self.transport.keyring.demanded

    def unheard(self) -> str:
        """Returns the reason why this node may have missed changes of users and rules; "" if it cannot have."""
        if self.services.writes_open():
            return self.truth.why_stale()
        heard_ms = self.raw.raft.heard_ms
        if heard_ms is None:
            return "no leader was heard since this node started"
        silent_ms = self._clock.monotonic_ms() - heard_ms
        if silent_ms <= self.config.auth.stale_ms_max:
            return self.truth.why_stale()
        return f"no leader was heard for {silent_ms} ms, auth.stale_ms_max is {self.config.auth.stale_ms_max}"

    def _build_lanes(self) -> None:
        """Makes the services that write, apply, flush and trim, each on its own lane."""
        context, storage = self._context, self.storage
        self.retention = retention_of(
            context,
            storage,
            self.proposals,
            self.leases,
            writes_open=self.services.writes_open,
            read_intact=read_intact,
            report_damage=self.services.report_damage,
            tier_known=lambda: self.tier.known,
        )
        self.index_files = index_files = index_files_of(context, storage)
        access = self.tier_access
        expiry = expiry_of(self.retention, storage.state, access)
        self.tier = tier_of(context, storage, self.services, self.leases, index_files, access, expiry)
        self.tier_scrubs = scrubs_of(context, storage, self.services, access, self.tier)
        self._lanes = NodeLanes(
            context,
            storage,
            self.failpoints,
            reserved=self.disk.reserved,
            groups_here=lambda: self.other_groups.groups_here,
            on_persisted=self._on_persisted,
            on_applied=self.inbox.on_applied,
            on_inline=self.appends.inline,
            on_committed=self.proposals.on_committed,
        )
        self.disk.retry.add(self._lanes.retry_append)

    def _build_driver(self, proposer: Proposer) -> None:
        """Makes the driver, which needs all other services, and then those that only observe."""
        context, loop, transport = self._context, self._context.loop, self.transport
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
            on_stop=self._on_failure,
            transport=thrift or sender,
            proposer=proposer,
            flush=thrift.flush if thrift else self.proposals.flush,
            append=self._lanes.append,
            apply=self._lanes.apply,
            stages=context.stages,
            on_install=self.installs.offered,
            apply_bytes=self.environment.apply_bytes,
        )
        self.failed.add(driver.fail)
        driver.implausible.add(Implausible(transport, self.alarms, self.config.cluster.group).note)
        self._event_watch = EventWatch(
            self.events,
            self.node_id,
            self.storage,
            transport,
            self.membership,
            self.installs,
            group=self.config.cluster.group,
        )
        self._cluster_config = ClusterConfig(
            context, self.state, self.changes, self.membership, self.services, self.reloading, self.levels
        )

    def _thrift(self, sender: SendsMessages) -> ThriftySender:
        """Makes what holds appends back. It does so while the log is written on the event loop: then the disk is quick,
        and nothing waits on the lane."""
        proposals, append, changes = self.proposals, self._lanes.append, self.changes
        outside = Outside(
            plain=proposals.is_plain,
            in_haste=(lambda: not append.at_once or bool(proposals.early.waiting))
            if isinstance(append, AppendRunner)
            else (lambda: True),
            slow=self.links.slow_turns.is_slow,
            preferred=lambda: changes.preferred,
        )
        appends = HeldAppends(self.raw.raft, outside)
        return ThriftySender(sender, appends, self._context.loop, self._clock, self.inbox.receive, proposals.flush)

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self.reloading.config

    def reload(self) -> ReloadView:
        """Reads the configuration again. Raises ConfigError, having changed nothing."""
        view = self.reloading.reload()
        self._event_watch.reloaded(view)
        return view

    def _on_failure(self, error: BaseException) -> None:
        raise NotImplementedError

    def _show_ha(self, metrics: HaMetrics) -> None:
        raise NotImplementedError

    def _on_persisted(self, persisted: Persisted) -> None:
        if persisted.bytes_written:
            self.appends.written(persisted.bytes_written, persisted.seconds, persisted.sync_seconds)
            if not self.proposals.open:
                self.traffic.ha.received(persisted.bytes_written)
        self.inbox.on_persisted(persisted)
        self.disk.on_persisted(persisted)

    def _mark_suspect(self, why: str, sound_index: int) -> None:
        storage = self.storage
        moved = give_up(
            self.environment.fs, storage.directory.path, storage.checkpointer, why, sound_index, self._clock.wall_ms()
        )
        logger.error("the state is discarded, and so are the checkpoints %s", ", ".join(moved) or "(none)")

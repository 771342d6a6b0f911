"""A running node: puts its services together, and is what handlers and the HTTP API see of each other.

Fail-stop: a storage error or an impossible state ends the process with exit code 1 and the reason in its log. The peers
notice the closed connections at once and continue.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from cluster.backup.service import Backups
from cluster.broker import client_relay
from cluster.broker.check_back import CheckBack
from cluster.broker.client_relay import ClientRelay
from cluster.broker.closings import Closings
from cluster.broker.command_levels import propose_bounded
from cluster.broker.early_routes import EarlyRoutes
from cluster.broker.group_members import Members
from cluster.broker.offset_resets import OffsetResets
from cluster.broker.pulls import Pulls
from cluster.broker.queue_locks import QueueLocks
from cluster.broker.recalls import Recalls
from cluster.broker.send_back import SendBacks
from cluster.broker.send_fates import SendFates
from cluster.broker.sends import DEFAULT_TOPICS, Sends
from cluster.broker.transactions import Transactions
from cluster.config.config import Config, split_address
from cluster.config.reload import ReloadView
from cluster.members.changes import MemberChanges
from cluster.members.events import watch_event
from cluster.members.service import MembersService
from cluster.node import node_view
from cluster.node.admin_wiring import admin_of, port_of
from cluster.node.cluster_config import ClusterConfig
from cluster.node.delivery_wiring import staged_of, timers_of
from cluster.node.disk_wiring import disk_of, retention_of
from cluster.node.event_watch import EventWatch
from cluster.node.failpoint_seams import FailpointTransport
from cluster.node.layered_config import LayeredConfig
from cluster.node.listening import own_address
from cluster.node.metrics import LoopLagSampler, NodeMetrics
from cluster.node.node_lanes import NodeLanes
from cluster.node.peer_wiring import moves_of, transport_of
from cluster.node.rates import Rates, Totals
from cluster.node.reloading import reload
from cluster.node.retirement import retire
from cluster.node.services import NodeServices
from cluster.node.tier_wiring import access_of, connect, index_files_of, scrubs_of, tier_of
from cluster.peer import links
from cluster.peer.links import links_of
from cluster.peer.secret import SecretKeeper
from cluster.peer.transport import Handlers
from cluster.peer.wire import Kind
from cluster.remoting.consumer_requests import ConsumerRequests
from cluster.remoting.forward import Forwarder
from cluster.remoting.frame import Frame
from cluster.remoting.handlers import handlers_of
from cluster.remoting.intake import make_intake
from cluster.remoting.listeners import Listeners
from cluster.remoting.pull import PullRequests
from cluster.remoting.refused import RefusedCodes
from cluster.remoting.replies import Replies
from cluster.remoting.reply_path import pack_host
from cluster.remoting.router import Router
from cluster.remoting.send import SendHandler
from cluster.remoting.send_reply import SendReplyWriter
from cluster.remoting.transactions import TransactionRequests, ask_producer
from cluster.repair.consistency import Consistency
from cluster.repair.installs import Installs
from cluster.repair.repairs import Repairs
from cluster.replication import modes
from cluster.replication.append_lane import Persisted
from cluster.replication.apply_lane import Applied
from cluster.replication.early_ledger import Ledger
from cluster.replication.identity import RetryMemory
from cluster.replication.modes import Modes
from cluster.replication.proposals import Proposals
from cluster.replication.raft_driver import RaftDriver
from cluster.retention.leases import Leases
from cluster.runtime.alarms import Alarms
from cluster.runtime.chores import Chores, DiskLag, Every
from cluster.runtime.contained import contain_each
from cluster.runtime.context import NodeContext
from cluster.runtime.environment import Environment
from cluster.runtime.events import EventLog
from cluster.runtime.failpoints import FailpointSet
from cluster.runtime.turn_watch import LongTurn, TurnWatch
from cluster.runtime.work import Turns
from cluster.state.node_storage import NodeStorage
from cluster.state.scrub import Scrubber
from cluster.state.suspect import give_up
from raftlog.core.raw_node import RawNode
from raftlog.types import NodeId
from statemachine.commands import EXPIRE

if TYPE_CHECKING:
    from cluster.admin.server import AdminServer
    from cluster.broker.staged_writes import StagedWriteRequests
    from cluster.remoting.request import Handler
    from statemachine.broker_state import BrokerState

logger = logging.getLogger(__name__)

EXPIRE_EVERY_MS = 600_000


class Node:
    """Implements `raft_driver.Proposer`, and composes what the HTTP API sees (`admin.port.AdminPort`)."""

    def __init__(self, config: Config, environment: Environment | None = None) -> None:
        """Opens the data directory (blocking). Raises IdentityError, StorageError, KVError."""
        self.environment = environment or Environment()
        self.node_id = config.node_id
        self.failpoints = FailpointSet(config.failpoints.enabled)
        self.metrics = NodeMetrics()
        self.rates = Rates(lambda: Totals(self.metrics.messages_taken, self.metrics.messages_given))
        self.failure: BaseException | None = None
        self.finished: asyncio.Future[None] | None = None
        self.restarting = ""
        """Why the process is to open this node again after it has closed; "" if it is not."""
        self._clock = self.environment.clock
        self.alarms = Alarms(self._clock.wall_ms)
        self.leases = Leases(self._clock.monotonic_ms)
        self.started_ms = self._clock.monotonic_ms()
        self.storage = NodeStorage(config, self.failpoints, self.environment, self.alarms)
        self.state: BrokerState = self.storage.state
        self.layers = LayeredConfig(config, self.state.settings, self.environment)
        self.config = config = self.layers.in_force()
        """What is in force."""
        identity = self.storage.directory.identity
        self.backups = Backups(config, identity, self.storage.kv, self.alarms, self._clock.wall_ms, self.leases)
        kept_in = self.storage.directory.path if self.environment.serves_admin else None
        self.events = EventLog(self.node_id, self._clock.wall_ms, kept_in)
        self._admin: AdminServer | None = None
        self.stopping = False
        """It is stopping, and directs its clients to other nodes (`cluster.node.retirement`)."""
        self.hurried = False
        """It was asked again to stop: it does not wait any longer."""
        self._closing = False
        self._turn_watch: TurnWatch | None = None

    # --- start and stop ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Joins the group and opens the ports. Raises OSError or ConfigError if a port cannot be bound."""
        loop = asyncio.get_running_loop()
        self.finished = loop.create_future()
        self._build_consensus(loop)
        self._build_repair()
        self._build_broker()
        self._build_lanes()
        self._connect()
        self.repairs.start()
        self.retention.start()
        self.index_files.start()
        if self.tier_access is not None:
            await self.tier_access.reading.open()
        self.tier.start()
        self.installs.start()
        await self.transport.start(
            Handlers(self.driver.receive, self._on_peer_closed, self._on_frame, self.membership.refused)
        )
        await self.listeners.open()
        self.driver.start()
        self._lanes.prepare()
        self._chores = self._build_chores()
        self._chores.start()
        self._lag = LoopLagSampler(loop, self.metrics)
        self._lag.start()
        if self.environment.watches_turns:
            self._turn_watch = TurnWatch(loop, self._on_long_turn)
            self._turn_watch.start()
        self._event_watch.started()
        if not self.environment.serves_admin:
            return
        self.backups.start()
        recovery = self.storage.recovery.status(self.storage.checkpointer.run)
        self.scrubber.plan(self._clock.monotonic_ms(), clean=recovery.clean)
        self._admin = await admin_of(port_of(self))
        await self._admin.start()

    def _build_consensus(self, loop: asyncio.AbstractEventLoop) -> None:
        """The core and its driver; who belongs to the cluster, and the connections to them."""
        storage, config, metrics = self.storage, self.config, self.metrics
        self.raw = raw = storage.raw_node(config, self.environment.random(), self.environment.send_bytes)
        self.driver = driver = RaftDriver(
            raw,
            self.node_id,
            loop=loop,
            clock=self._clock,
            tick_ms=config.raft.tick_ms,
            on_stop=self._on_failure,
            apply_bytes=self.environment.apply_bytes,
        )
        turns = Turns(loop.call_soon, self.environment.turn_share)
        self._context = context = NodeContext(
            config, self.environment, loop, raw, self.alarms, driver.wake, driver.stages, driver.fail, turns
        )
        log, identity = storage.directory.log, storage.directory.identity
        self.membership = members = MembersService(
            context, identity, metrics.members, (voter.id for voter in log.genesis.voters)
        )
        self.secret = SecretKeeper(config, context.fs, self.alarms, lambda: members.in_force.node_uuids)
        self.changes = MemberChanges(context, members, transfer=driver.transfer)
        self.transport = transport_of(context, members, self.secret, driver)
        self.links = links_of(context, self.transport, metrics.links, driver.transfer)
        self.changes.watch_slow_turns(self.links.slow_turns)

    def _build_repair(self) -> None:
        """What mends, compares and trims the log and the state."""
        context, storage, metrics = self._context, self.storage, self.metrics
        self.repairs = Repairs(
            context, storage.directory, self.transport, metrics=metrics.repair, transfer=self.driver.transfer
        )
        self.moves = moves_of(self.membership, self.transport, self.repairs)
        self.installs = Installs(
            context, storage, self.repairs, self.leases, metrics=metrics.install, restart=self.restart
        )
        self.consistency = Consistency(context, self.state, self.repairs, mark_suspect=self._mark_suspect)
        self.scrubber = Scrubber(
            self.node_id,
            storage.directory.path,
            config=self.config.consistency,
            wall_ms=self._clock.wall_ms,
            report=self.repairs.report,
            on_bad_rows=self.consistency.bad_checkpoint,
            done=metrics.repair.scrubbed,
        )

    def _build_broker(self) -> None:
        """What takes requests, proposes what they ask for, and answers them."""
        context, config, state, metrics = self._context, self.config, self.state, self.metrics
        incarnation = self.environment.entropy(8)
        store_host = pack_host(*split_address(own_address(config)))
        self._retries = retries = RetryMemory()
        replies = SendReplyWriter(store_host, config.cluster.broker_name, metrics)
        closings = Closings(context.loop.call_soon)
        fates = SendFates(self._clock, state, retries, incarnation, replies, closings)
        self.proposals = proposals = Proposals(
            context,
            state,
            store_host=store_host,
            replies=fates,
            before_open=self.consistency.before_open,
            metrics=metrics,
            ledger=Ledger(context.fs, self.storage.directory.path, config.limits.batches_inflight_max),
        )
        self.modes = Modes(context, proposals.early, self.storage.directory.log, self.transport, state, metrics.modes)
        self.services = services = NodeServices(
            context, self.storage, self.driver, proposals, self.membership, self.consistency, self.repairs
        )
        self.tier_access = access_of(context, self.storage, services, metrics.tier_reads)
        self.router = router = Router(
            config,
            state,
            proposals,
            known_topic=lambda topic: topic in state.topics or topic in DEFAULT_TOPICS,
            soon=context.loop.call_soon,
            closings=closings,
            turns=context.turns,
            fenced=services.fenced,
            log_begins=self.installs.log_begins,
            refuse=RefusedCodes(services, metrics).refuse,
        )
        self.sends = sends = Sends[Frame](
            services,
            self._clock,
            proposals,
            retries,
            incarnation,
            route=router.on_request,
            refuse=replies.refuse,
        )
        send_handler = SendHandler(sends, replies, partial(make_intake, proposals, sends, retries), config.limits)
        self.forwarder = self._build_forwarder(send_handler)
        self.staged, writes = staged_of(context, services, proposals, sends)
        handlers = self._build_handlers(writes)
        router.attach(send_handler, replies, fates, self.forwarder, handlers, self.clients, self.pulls.long_polls.has)
        self.listeners = Listeners(config, router)

    def _build_handlers(self, writes: StagedWriteRequests) -> dict[int, Handler]:
        """What clients' requests but sends are answered by: request code -> handler."""
        services, router = self.services, self.router
        self.clients = members = Members(services)
        self.early_routes = EarlyRoutes(services, members, self.links.unreached)
        self.relay = ClientRelay(services, members, self.transport, self.metrics.relay)
        self._old_bounds = None if self.tier_access is None else self.tier_access.bounds
        self.resets = OffsetResets(services, self._old_bounds)
        old, levels = (None, None) if self.tier_access is None else self.tier_access.for_pulls
        self.pulls = Pulls(services, members, self.resets, self.modes.reads, old, levels)
        pulls = PullRequests(self.pulls, router.elsewhere, router.to_leader, self.metrics)
        consumers = ConsumerRequests(services, self.resets, self.relay, self.events.note_change)
        replies = Replies(services, self.relay, own_address(self.config))
        locks = QueueLocks(services, self.environment.lock_ttl_ms)
        ends = self._build_transactions()
        self.send_backs = SendBacks(services, self.proposals)
        return handlers_of(
            services,
            members,
            locks,
            pulls,
            consumers,
            replies,
            self.send_backs,
            self._build_timers(),
            writes,
            self.links.unreached,
            self.early_routes,
            ends,
            lambda: node_view.figures(self),
            lambda positions, told: self._lanes.entries.ask(positions, told),
            self.events.note_change,
            self.metrics,
            None if self.tier_access is None else self.tier_access.keys,
            self._old_bounds,
        )

    def _build_timers(self) -> Recalls:
        """What delivers messages that wait for their time, and what takes them back."""
        self.timers = timers_of(self._context, self.services, self.proposals)
        return Recalls(self.services, self.proposals, self.timers)

    def _build_forwarder(self, names: SendHandler) -> Forwarder:
        """What passes on requests that only the leader can answer."""
        return Forwarder(
            self.config,
            self._clock,
            self.transport,
            leader=self.services.leader_id,
            leads=self.services.writes_open,
            term=lambda: self.raw.term,
            local=self.router.as_leader,
            names=names,
            room=self.router.rooms.unsent,
            closings=self.router.closings,
        )

    def _build_transactions(self) -> TransactionRequests:
        """What ends half messages, and what asks their producers."""
        self.transactions = transactions = Transactions(self.services, self.proposals, self.metrics.transactions)
        ask = partial(ask_producer, self.relay, self.config.cluster)
        self.check_back = CheckBack(self.services, transactions, ask)
        return TransactionRequests(self.services, transactions, self.forwarder.forward)

    def _build_lanes(self) -> None:
        """Makes the services that write, apply, flush and trim, each on its own lane."""
        context, storage = self._context, self.storage
        self.disk = disk_of(context, storage.directory.path, self.proposals, self.metrics.modes)
        self.retention = retention_of(
            context, storage, self.services, self.proposals, self.leases, self.metrics.retention
        )
        self.index_files = index_files = index_files_of(context, storage, self.metrics.index_files)
        access, metrics, points = self.tier_access, self.metrics.tier, self.failpoints
        self.tier = tier_of(context, storage, self.services, self.leases, metrics, points, index_files, access)
        connect(self.tier, self.retention, storage.state, access)
        self.tier_scrubs = scrubs_of(context, storage, self.services, access, self.tier)
        self._lanes = NodeLanes(
            context,
            storage,
            self.failpoints,
            reserved=self.disk.reserved,
            on_persisted=self._on_persisted,
            on_applied=self.driver.on_applied,
            on_inline=self.metrics.appended_inline,
        )

    def _connect(self) -> None:
        """Connects services below to those above that they call, each once."""
        loop, transport = self._context.loop, self.transport
        self._event_watch = EventWatch(self, self.events)
        self._cluster_config = ClusterConfig(self)
        self.membership.watch_removal(self.router.drop_clients)
        self.proposals.watch_leadership(on_open=self._on_open, on_unproposed=self.router.reroute)
        self.disk.attach(self._lanes.retry_append)
        self.storage.watch(self._clock.wall_ms, lambda error: loop.call_soon_threadsafe(self.driver.fail, error))
        self.driver.attach(
            FailpointTransport(transport, self.failpoints, loop) if self.failpoints.enabled else transport,
            self,
            self._lanes.append,
            self._lanes.apply,
            on_install=self.installs.offered,
        )

    async def close(self) -> None:
        """Stops in order: leadership transferred, clients redirected, lanes drained, files closed and marked clean."""
        if self._closing:
            return
        self._closing = True
        self.stopping = self.failure is None
        await retire(self)
        self._chores.stop()
        self._lag.stop()
        if self._turn_watch is not None:
            self._turn_watch.stop()
        await self.backups.close()
        if self._admin is not None:
            await self._admin.close()
        self.listeners.close()
        self.driver.stop()
        for connection in list(self.router.connections):
            connection.abort()
        for mending in (self.scrubber, self.consistency, self.installs, self.repairs):
            await mending.close()
        for reading in (self.tier_access, self.tier_scrubs):
            if reading is not None:
                await reading.close()
        await self.tier.close()
        await self.retention.close()
        await self.index_files.close()
        for delivery in (self.timers, self.staged):
            await self._context.loop.run_in_executor(None, delivery.close)
        await self.transport.close()
        self.failpoints.clear()
        await self._lanes.close()
        self.modes.close()
        await self._event_watch.close()
        await self._context.loop.run_in_executor(None, self.storage.close, self.failure is None)

    def stop(self) -> None:
        """Makes the process close the node; on a second call, without waiting."""
        self.hurried = self.finished is not None and self.finished.done()
        if self.finished is not None and not self.finished.done():
            self.finished.set_result(None)

    def restart(self, why: str) -> None:
        """Makes the process close the node and open it again."""
        if self.finished is not None and not self.finished.done():
            self.restarting = why
            self.stop()

    def opened(self) -> None:
        """What its process had to do before it serves anybody is done."""
        if self._turn_watch is not None:
            self._turn_watch.pass_over()

    def _on_late_chores(self, late_ms: float) -> None:
        """The loop stood still; where turns are watched, `_on_long_turn` knows more of it."""
        if self._turn_watch is None:
            self.links.slow_turns.note(late_ms)

    def _on_long_turn(self, turn: LongTurn) -> None:
        self.links.slow_turns.note(turn.wall_ms, worked=turn.worked, what=turn.what)
        self.metrics.turns.note(turn)
        self._event_watch.long_turn(turn)

    def _on_failure(self, error: BaseException) -> None:
        self.failure = error
        self.stop()

    # --- what the driver calls (Proposer) ----------------------------------------------------------------------------

    def flush(self, raw: RawNode) -> None:
        """Proposes the queued requests."""
        self.proposals.flush(raw)

    def on_applied_run(self, applied: Applied) -> None:
        """Settles waiters, then wakes pulls that wait for messages."""
        self.metrics.applied(len(applied.entries), applied.seconds)
        self.storage.recovery.applied(self.state.applied.index)
        self.proposals.on_applied(applied)
        self.changes.on_applied(applied.entries)
        self._cluster_config.on_applied()
        self.consistency.on_applied(applied.entries)
        self.retention.on_applied(applied.entries)
        grown = applied.run.grown
        if grown:
            contain_each("waking those who wait for messages", self.services.watchers, grown)
        if self.storage.directory.log.needs_next():
            self._lanes.prepare()

    def _on_open(self) -> None:
        """This node takes writes from now on."""
        self._context.loop.call_soon(self.forwarder.pump)
        self.timers.writes_opened()
        self.staged.writes_opened()
        self.transactions.writes_opened()
        self.send_backs.writes_opened()

    def on_role(self, raw: RawNode) -> None:
        """Role or leader changed."""
        role = raw.role.name.lower()
        logger.info("term %d: %s, leader %s: %s", raw.term, role, raw.leader_id or "unknown", raw.why)
        self._event_watch.on_role(raw)
        self.proposals.on_role(raw)
        self.forwarder.pump()
        node_view.note_raft(self.metrics, raw.status())

    def on_members(self, raw: RawNode) -> None:
        """The members in force changed."""
        self.membership.on_members()

    def _on_persisted(self, persisted: Persisted) -> None:
        if persisted.bytes_written:
            self.metrics.persisted(persisted.bytes_written, persisted.seconds, persisted.sync_seconds)
            if not self.proposals.open:
                self.metrics.ha.received(persisted.bytes_written)
        self.driver.on_persisted(persisted)
        self.disk.on_persisted(persisted)

    def _on_peer_closed(self, peer: NodeId) -> None:
        self.driver.peer_closed(peer)
        self.forwarder.peer_closed(peer)
        self.relay.peer_closed(peer)
        self.repairs.peer_closed(peer)

    def _on_frame(self, peer: NodeId, kind: int, header: list[Any], payload: bytes) -> None:
        if kind in modes.KINDS or kind in links.KINDS:
            (self.modes if kind in modes.KINDS else self.links).on_frame(peer, kind, header)
            return
        if kind in client_relay.KINDS:
            self.relay.on_frame(peer, kind, header, payload)
            return
        handler = self.repairs if kind in (Kind.FETCH, Kind.FETCHED) else self.forwarder
        handler.on_frame(peer, kind, header, payload)

    def _build_chores(self) -> Chores:
        """The periodic tasks, every TIMER_MS, in this order."""
        expiry = Every(EXPIRE_EVERY_MS, self._expire_sessions, self._clock.monotonic_ms() + EXPIRE_EVERY_MS)
        return Chores(
            self._context.loop,
            self._clock,
            self._on_late_chores,
            self.services.awake.tick,
            lambda _: self.proposals.expire(),
            lambda _: self.forwarder.expire(),
            self.check_back.tick,
            self._retries.expire,
            self.router.patience.tick,
            self.router.idle.tick,
            lambda _: watch_event(self.state, self.alarms),
            self.repairs.tick,
            self.consistency.tick,
            self.scrubber.tick,
            self.membership.tick,
            self.secret.tick,
            self.changes.tick,
            DiskLag(self.raw, self.driver.transfer).tick,
            self.links.slow_turns.tick,
            self.disk.tick,
            self.modes.tick,
            self.links.tick,
            self.early_routes.tick,
            self.rates.tick,
            self.retention.tick,
            self.index_files.tick,
            self.tier.tick,
            self._cluster_config.tick,
            lambda now_ms: None if self.tier_scrubs is None else self.tier_scrubs.tick(now_ms),
            self.timers.tick,
            self.staged.tick,
            self._event_watch.tick,
            self._lanes.flushes.tick,
            expiry.tick,
            lambda _: self.failpoints.stall("loop.turn"),
        )

    def _expire_sessions(self) -> bool:
        if self.proposals.open:
            before = self.raw.log_time_ms() - self.config.dedup.session_hours * 3_600_000
            propose_bounded(self.services, [EXPIRE, before], lambda _: None)
        return True

    def _mark_suspect(self, why: str, sound_index: int) -> None:
        storage = self.storage
        moved = give_up(
            self.environment.fs, storage.directory.path, storage.checkpointer, why, sound_index, self._clock.wall_ms()
        )
        logger.error("the state is discarded, and so are the checkpoints %s", ", ".join(moved) or "(none)")

    # --- for operators ----------------------------------------------------------------------------------------------

    def reconfigure(self, config: Config) -> None:
        """This is in force from now on. For `cluster.node.reloading`."""
        self.config = config
        self.services.reconfigure(config)

    def reload(self) -> ReloadView:
        """Reads the configuration again. Raises ConfigError, having changed nothing."""
        view = reload(self)
        self._event_watch.reloaded(view)
        return view

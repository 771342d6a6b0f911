"""A running node: puts the parts together, and is what handlers and the HTTP API see of each other.

Fail-stop: a storage error or an impossible state ends the process with exit code 1 and the reason in its log; the peers
notice the closed connections at once and go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cluster.admin.port import MemberView, NodeStatus
from cluster.backup.service import Backups
from cluster.broker.group_members import Members
from cluster.config.config import Config, split_address
from cluster.config.reload import ReloadView
from cluster.members.changes import MemberChanges
from cluster.members.events import watch_event
from cluster.members.service import MembersService
from cluster.node import node_view
from cluster.node.admin_wiring import admin_of
from cluster.node.failpoint_seams import FailpointLane, FailpointTransport
from cluster.node.listening import addresses_behind, own_address
from cluster.node.metrics import LoopLagSampler, NodeMetrics
from cluster.node.modes_wiring import disk_of, modes_of
from cluster.node.peer_wiring import transport_of
from cluster.node.reloading import reload
from cluster.node.retirement import retire
from cluster.peer import links
from cluster.peer.links import links_of
from cluster.peer.secret import SecretKeeper
from cluster.peer.transport import Handlers
from cluster.peer.wire import Kind
from cluster.remoting.forward import Forwarder
from cluster.remoting.handlers import handlers_of
from cluster.remoting.listeners import Listeners
from cluster.remoting.pull import Pulls
from cluster.remoting.refused import RefusedCodes
from cluster.remoting.reply_path import pack_host
from cluster.remoting.router import Router
from cluster.remoting.send import DEFAULT_TOPICS, SendHandler
from cluster.remoting.send_reply import SendReplyWriter
from cluster.repair.consistency import Consistency
from cluster.repair.installs import Installs
from cluster.repair.repairs import Repairs
from cluster.replication import modes
from cluster.replication.append_lane import RETRY, AppendLane, Persisted, PersistJob, PrepareLane
from cluster.replication.apply_lane import Applied, ApplyLane
from cluster.replication.apply_runner import ApplyRunner
from cluster.replication.early_ledger import Ledger
from cluster.replication.identity import RetryMemory
from cluster.replication.outcome import CommitSession, Done
from cluster.replication.proposals import Proposals
from cluster.replication.raft_driver import RaftDriver, Transport
from cluster.retention.leases import Leases
from cluster.retention.service import Retention
from cluster.runtime.alarms import Alarms
from cluster.runtime.chores import Chores, DiskLag, Every
from cluster.runtime.contained import contain_each
from cluster.runtime.environment import Environment
from cluster.runtime.failpoints import FailpointSet
from cluster.runtime.lanes import Lane, LaneRunner
from cluster.state.data_directory import Parts
from cluster.state.scrub import Scrubber
from cluster.state.suspect import give_up
from raftlog.core.raw_node import RawNode
from raftlog.types import Entry, NodeId
from statemachine.commands import EXPIRE, Command

if TYPE_CHECKING:
    from cluster.admin.server import AdminServer
    from statemachine.broker_state import BrokerState

logger = logging.getLogger(__name__)

EXPIRE_EVERY_MS = 600_000
FLUSH_EVERY_MS = 1000
"""RocksDB's WAL is synced this often while entries are applied: what a power loss makes a restart replay."""


class Node:
    """Implements `services.Services`, `admin.port.AdminPort` and `raft_driver.Proposer`."""

    def __init__(self, config: Config, environment: Environment | None = None) -> None:
        """Opens the data directory (blocking). Raises IdentityError, StorageError, KVError."""
        self.config = config
        self.environment = environment or Environment()
        self.node_id = config.node_id
        self.failpoints = FailpointSet(config.failpoints.enabled)
        self.metrics = NodeMetrics()
        self.failure: BaseException | None = None
        self.finished: asyncio.Future[None] | None = None
        self.restarting = ""
        """Why the process is to open this node again once it has closed; "" if it is not."""
        self._clock = self.environment.clock
        self.alarms = Alarms(self._clock.wall_ms)
        self.leases = Leases(self._clock.monotonic_ms)
        self.started_ms = self._clock.monotonic_ms()
        self.parts = Parts(config, self.failpoints, self.environment, self.alarms)
        self.state: BrokerState = self.parts.state
        identity = self.parts.directory.identity
        self.backups = Backups(config, identity, self.parts.kv, self.alarms, self._clock.wall_ms, self.leases)
        self._on_applied: list[Callable[[set[tuple[int, int]]], None]] = []
        self._admin: AdminServer | None = None
        self.stopping = False
        """It is told to stop, and sends its clients away (`cluster.node.retirement`)."""
        self.hurried = False
        """It was told again: it waits for nobody any more."""
        self._closing = False
        self._flush_index = self.state.applied.index

    # --- start and stop ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Joins the group and opens the ports. Raises OSError or ConfigError if a port cannot be had."""
        self._loop = loop = asyncio.get_running_loop()
        self.finished = loop.create_future()
        self._build_consensus()
        self._build_repair()
        self._build_services()
        self.parts.watch(self._clock.wall_ms, lambda e: loop.call_soon_threadsafe(self.driver.fail, e))
        self._build_lanes()
        await self.transport.start(
            Handlers(self.driver.receive, self._on_peer_closed, self._on_frame, self.membership.refused)
        )
        self.listeners = Listeners(self.config, self.router)
        await self.listeners.open()
        self.driver.start()
        self._prepare.submit(True)
        self._chores = self._build_chores()
        self._chores.start()
        self._lag = LoopLagSampler(loop, self.metrics)
        self._lag.start()
        if not self.environment.serves_admin:
            return
        self.backups.start()
        self.scrubber.plan(self._clock.monotonic_ms(), clean=self.status().recovery.clean)
        self._admin = await admin_of(self)
        await self._admin.start()

    def _build_consensus(self) -> None:
        parts, config = self.parts, self.config
        self.raw = raw = parts.raw_node(config, self.environment.random())
        self.driver = RaftDriver(
            raw, self.node_id, loop=self._loop, clock=self._clock, tick_ms=config.raft.tick_ms, on_stop=self._on_failure
        )
        self.membership = members = MembersService(
            config,
            parts.directory.identity,
            raw,
            self.alarms,
            self.driver.wake,
            self.metrics.members,
            (voter.id for voter in parts.directory.log.genesis.voters),
        )
        self.secret = SecretKeeper(config, self.environment.fs, self.alarms, lambda: members.in_force.node_uuids)
        self.changes = MemberChanges(raw, members, config.raft, wake=self.driver.wake, transfer=self.transfer)
        self.transport = transport_of(config, self.environment, members, self.secret, self.driver, self.alarms)
        self.links = links_of(config, self.transport, raw, self._clock, self.metrics.links, self.driver.wake)

    def _build_repair(self) -> None:
        parts, config, raw = self.parts, self.config, self.raw
        self.repairs = Repairs(
            raw,
            parts.directory,
            self.environment.fs,
            self.transport,
            self._loop,
            bytes_per_second=config.repair.bytes_per_second,
            alarms=self.alarms,
            metrics=self.metrics.repair,
            wake=self.driver.wake,
            transfer=self.transfer,
        )
        self.installs = Installs(
            raw,
            parts,
            self.environment,
            self.repairs,
            self.leases,
            self._loop,
            alarms=self.alarms,
            metrics=self.metrics.install,
            wake=self.driver.wake,
            restart=self.restart,
        )
        self.consistency = Consistency(
            raw,
            self.state,
            self.repairs,
            self.alarms,
            digest_every_ms=config.consistency.digest_every_ms,
            wake=self.driver.wake,
            mark_suspect=self._mark_suspect,
        )
        self.scrubber = Scrubber(
            self.node_id,
            parts.directory.path,
            config=config.consistency,
            wall_ms=self._clock.wall_ms,
            report=self.repairs.report,
            on_bad_rows=self.consistency.bad_checkpoint,
            done=self.metrics.repair.scrubbed,
        )

    def _build_lanes(self) -> None:
        """What writes, applies, flushes and trims, each on its own lane."""
        parts, config, loop = self.parts, self.config, self._loop
        log = parts.directory.log
        self.disk = disk_of(self, retry=lambda: self._append.submit(RETRY))
        self.modes = modes_of(self, loop, self._clock)
        append_lane = AppendLane(
            log, parts.directory.hard_state_store, config.log.idle_mark_ms, self.disk.reserved, self._clock.monotonic_s
        )
        self.retention = Retention(
            config.retention,
            self.raw,
            self.state,
            log,
            parts.keeper,
            fs=self.environment.fs,
            directory=parts.directory.path,
            clock=self._clock,
            leases=self.leases,
            alarms=self.alarms,
            metrics=self.metrics.retention,
            writes_open=self.writes_open,
            wake=self.driver.wake,
        )
        runner, fail = self.environment.runner, self.driver.fail
        self._append: LaneRunner[PersistJob] = runner("append", append_lane, loop, self._on_persisted, fail)
        apply_lane: Lane[list[Entry], Applied] = ApplyLane(self.state)
        transport: Transport = self.transport
        if self.failpoints.enabled:
            apply_lane = FailpointLane(apply_lane, self.failpoints, "apply.batch")
            transport = FailpointTransport(transport, self.failpoints, loop)
        # A point that holds apply must hold a thread, not the loop.
        apply_runner = runner if self.failpoints.enabled else self.environment.apply_runner or ApplyRunner
        self._apply: LaneRunner[list[Entry]] = apply_runner("apply", apply_lane, loop, self.driver.on_applied, fail)
        self._flush: LaneRunner[object] = runner("flush", parts.keeper, loop, lambda _: None, fail)
        self._prepare: LaneRunner[object] = runner(
            "prepare", PrepareLane(log, self._clock.monotonic_s, self.disk.reserved), loop, lambda _: None, fail
        )
        self.driver.attach(transport, self, self._append, self._apply, on_install=self.installs.offered)
        self.repairs.start(runner, fail)
        self.retention.start(runner, fail)
        self.installs.start()

    def _build_services(self) -> None:
        config = self.config
        incarnation = self.environment.entropy(8)
        store_host = pack_host(*split_address(own_address(config)))
        self._retries = retries = RetryMemory()
        replies = SendReplyWriter(self._clock, self.state, store_host, retries, incarnation, self.metrics)
        self.proposals = Proposals(
            config,
            self.raw,
            self.state,
            self._clock,
            store_host=store_host,
            wake=self.driver.wake,
            replies=replies,
            before_open=self.consistency.before_open,
            metrics=self.metrics,
            ledger=Ledger(self.environment.fs, self.parts.directory.path, config.limits.batches_inflight_max),
        )
        soon = self._loop.call_soon
        self.router = Router(config, self.state, self.proposals, known_topic=self._known_topic, soon=soon)
        sends = SendHandler(
            config, self.state, self._clock, self.proposals, replies, retries, incarnation, self.router.on_request
        )
        self.forwarder = Forwarder(
            config,
            self._clock,
            self.transport,
            leader=self.leader_id,
            leads=self.writes_open,
            term=lambda: self.raw.term,
            local=self.router.as_leader,
            names=sends,
            room=self.router.rooms.unsent,
        )
        self.proposals.watch_leadership(on_open=lambda: soon(self.forwarder.pump), on_unproposed=self.router.reroute)
        self.membership.watch_removal(self.router.drop_clients)
        self.router.fenced = self.fenced
        self.router.log_begins = self.installs.log_begins
        self.router.refuse = RefusedCodes(self, self.metrics).refuse
        self._members = Members(self)
        self.pulls = Pulls(self, self._members, self.metrics)
        handlers = handlers_of(self, self._members, self.pulls, self.proposals, self.links.unreached, self.metrics)
        self.pulls.elsewhere = self.router.elsewhere
        self.router.attach(sends, replies, self.forwarder, handlers)

    async def close(self) -> None:
        """Stops in order: leadership handed over, clients sent away, lanes drained, files closed and marked clean."""
        if self._closing:
            return
        self._closing = True
        self.stopping = self.failure is None
        await retire(self)
        self._chores.stop()
        self._lag.stop()
        await self.backups.close()
        if self._admin is not None:
            await self._admin.close()
        self.listeners.close()
        self.driver.stop()
        for connection in list(self.router.connections):
            connection.abort()
        await self.scrubber.close()
        await self.consistency.close()
        await self.installs.close()
        await self.repairs.close()
        await self.retention.close()
        await self.transport.close()
        self.failpoints.clear()
        loop = asyncio.get_running_loop()
        for lane in (self._append, self._apply, self._prepare, self._flush):
            await loop.run_in_executor(None, lane.close)
        self.modes.close()
        await loop.run_in_executor(None, self.parts.close, self.failure is None)

    def stop(self) -> None:
        """Has the node's process close it; asked again, without waiting for anybody."""
        self.hurried = self.finished is not None and self.finished.done()
        if self.finished is not None and not self.finished.done():
            self.finished.set_result(None)

    def restart(self, why: str) -> None:
        """Has the process close it and open it again."""
        if self.finished is not None and not self.finished.done():
            self.restarting = why
            self.stop()

    def _on_failure(self, error: BaseException) -> None:
        self.failure = error
        self.stop()

    # --- what the driver calls (Proposer) ----------------------------------------------------------------------------

    def flush(self, raw: RawNode) -> None:
        """Proposes what has gathered."""
        self.proposals.flush(raw)

    def on_applied_run(self, applied: Applied) -> None:
        """Settles waiters, then wakes whoever waits for messages."""
        self.metrics.applied(len(applied.entries), applied.seconds)
        self.parts.recovery.applied(self.state.applied.index)
        self.proposals.on_applied(applied)
        self.changes.on_applied(applied.entries)
        self.consistency.on_applied(applied.entries)
        self.retention.on_applied(applied.entries)
        grown = applied.run.grown
        if grown:
            contain_each("waking those who wait for messages", self._on_applied, grown)
        if self.parts.directory.log.needs_next():
            self._prepare.submit(True)

    def on_role(self, raw: RawNode) -> None:
        """Role or leader changed."""
        role = raw.role.name.lower()
        logger.info("term %d: %s, leader %s: %s", raw.term, role, raw.leader_id or "unknown", raw.why)
        self.proposals.on_role(raw)
        self.forwarder.pump()
        node_view.note_raft(self.metrics, raw.status())

    def on_members(self, raw: RawNode) -> None:
        """Other members are in force."""
        self.membership.on_members()

    def _on_persisted(self, persisted: Persisted) -> None:
        if persisted.bytes_written:
            self.metrics.persisted(persisted.bytes_written, persisted.seconds)
        self.driver.on_persisted(persisted)
        self.disk.on_persisted(persisted)

    def _on_peer_closed(self, peer: NodeId) -> None:
        self.driver.peer_closed(peer)
        self.forwarder.peer_closed(peer)
        self.repairs.peer_closed(peer)

    def _on_frame(self, peer: NodeId, kind: int, header: list[Any], payload: bytes) -> None:
        if kind in modes.KINDS or kind in links.KINDS:
            (self.modes if kind in modes.KINDS else self.links).on_frame(peer, kind, header)
            return
        handler = self.repairs if kind in (Kind.FETCH, Kind.FETCHED) else self.forwarder
        handler.on_frame(peer, kind, header, payload)

    def _build_chores(self) -> Chores:
        """What is looked after every TIMER_MS, in this order."""
        expiry = Every(EXPIRE_EVERY_MS, self._expire_sessions, self._clock.monotonic_ms() + EXPIRE_EVERY_MS)
        return Chores(
            self._loop,
            self._clock,
            lambda _: self.proposals.expire(),
            lambda _: self.forwarder.expire(),
            self._retries.expire,
            self.router.patience.tick,
            lambda _: watch_event(self.state, self.alarms),
            self.repairs.tick,
            self.consistency.tick,
            self.scrubber.tick,
            self.membership.tick,
            self.secret.tick,
            self.changes.tick,
            DiskLag(self.raw, self.transfer).tick,
            self.disk.tick,
            self.modes.tick,
            self.links.tick,
            self.retention.tick,
            Every(FLUSH_EVERY_MS, self._flush_state).tick,
            expiry.tick,
        )

    def _flush_state(self) -> bool:
        applied = self.raw.applied_index
        if applied <= self._flush_index and not self.parts.keeper.due:
            return False
        self._flush_index = applied
        self._flush.submit(True)
        return True

    def _expire_sessions(self) -> bool:
        if self.proposals.open:
            before = self.raw.log_time_ms() - self.config.dedup.session_hours * 3_600_000
            self.proposals.submit_commands([[EXPIRE, before]], lambda _: None)
        return True

    # --- Services ----------------------------------------------------------------------------------------------------

    def writes_open(self) -> bool:
        """See Services."""
        return self.proposals.open

    def leader_id(self) -> NodeId:
        """See Services."""
        return self.raw.leader_id

    def propose(self, commands: list[Command], done: Done, session: CommitSession | None = None) -> None:
        """See Services."""
        self.proposals.submit_commands(commands, done, session)

    def read_index(self, done: Callable[[bool], None]) -> None:
        """See Services."""
        self.driver.read_index(done)

    def commit_offset_later(self, group: str, topic_id: int, queue_id: int, offset: int) -> None:
        """See Services."""
        self.proposals.offsets.commit_later(group, topic_id, queue_id, offset)

    def settle_offsets(self, group: str, done: Callable[[], None]) -> None:
        """See Services."""
        self.proposals.offsets.settle(group, done)

    def knows_group(self, group: str) -> bool:
        """See Services."""
        return self.proposals.offsets.knows_group(group)

    def read_log(self, position: int, size: int) -> bytes:
        """See Services."""
        return self.parts.directory.log.read_at(position, size)

    def _mark_suspect(self, why: str, sound_index: int) -> None:
        parts = self.parts
        moved = give_up(
            self.environment.fs, parts.directory.path, parts.keeper, why, sound_index, self._clock.wall_ms()
        )
        logger.error("the state is discarded, and so are the checkpoints %s", ", ".join(moved) or "(none)")

    def fenced(self) -> bool:
        """See Services."""
        return self.consistency.fenced or self.membership.is_removed

    def report_damage(self, position: int, size: int) -> None:
        """See Services."""
        self.repairs.report(position, size)

    def cluster_uuids(self) -> tuple[str, ...]:
        """See Services."""
        identity = self.parts.directory.identity
        return (str(identity.cluster_uuid), *(str(each.cluster_uuid) for each in reversed(identity.origin)))

    def broker_addresses(self, listener: str) -> dict[NodeId, str]:
        """See Services."""
        return addresses_behind(listener, self.membership.broker_addresses)

    def monotonic_ms(self) -> int:
        """See Services."""
        return self._clock.monotonic_ms()

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        """See Services."""
        return self._loop.call_later(delay_ms / 1000, callback).cancel

    def on_applied(self, callback: Callable[[set[tuple[int, int]]], None]) -> None:
        """See Services."""
        self._on_applied.append(callback)

    def _known_topic(self, topic: str) -> bool:
        return topic in self.state.topics or topic in DEFAULT_TOPICS

    # --- AdminPort ---------------------------------------------------------------------------------------------------

    def connected(self, node: NodeId) -> bool:
        """See AdminPort."""
        return self.transport.connected(node)

    def genesis_payload(self) -> bytes:
        """See AdminPort."""
        return self.parts.directory.log.genesis.entry().payload

    def transfer(self, to: NodeId) -> None:
        """See AdminPort."""
        self.raw.transfer_leadership(to)
        self.driver.wake()

    def reconfigure(self, config: Config) -> None:
        """This configuration is in force from now on."""
        self.config = config

    def reload(self) -> ReloadView:
        """See AdminPort."""
        return reload(self)

    def members(self, group: str) -> list[MemberView]:
        """See AdminPort."""
        return node_view.members(self._members, group, self.monotonic_ms())

    def status(self) -> NodeStatus:
        """See AdminPort."""
        return node_view.status(self)

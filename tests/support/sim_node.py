"""A node of the simulator: the real driver, lanes, proposals, send path and state machine over memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster.config.config import Config
from cluster.peer.memory import MemoryNetwork, MemoryTransport
from cluster.peer.transport import Handlers
from cluster.remoting import heartbeat, offsets, topics_admin
from cluster.remoting.forward import Forwarder
from cluster.remoting.group_members import Members
from cluster.remoting.reply_path import ReplyPath, pack_host
from cluster.remoting.router import Router
from cluster.remoting.send import SendHandler
from cluster.remoting.send_reply import SendReplyWriter
from cluster.replication.append_lane import AppendLane, Persisted, PersistJob, PrepareLane
from cluster.replication.apply_lane import Applied, ApplyLane
from cluster.replication.early_ledger import Ledger
from cluster.replication.identity import RetryMemory
from cluster.replication.message_batch import Send
from cluster.replication.modes import KINDS
from cluster.replication.outcome import ProposeResult
from cluster.replication.proposals import Proposals
from cluster.replication.raft_driver import RaftDriver
from cluster.replication.written import WrittenRelay
from cluster.wire.codec import decode_header
from cluster.wire.message_format import decode_message
from raftlog.core.config import RaftConfig
from raftlog.core.raw_node import RawNode
from raftlog.membership import of_genesis
from raftlog.storage.memory_fs import MemoryFileSystem
from raftlog.storage.node_dir import open_node_dir
from raftlog.types import Entry, NodeId
from statemachine.broker_state import BrokerState
from statemachine.commands import Command
from statemachine.digest import digest
from statemachine.memory_kv import MemoryKV
from statemachine.payload import SessionRows
from tests.support.virtual_loop import StepLaneRunner, VirtualClock, VirtualLoop

DATA = Path("/data")
TIMER_S = 0.05
DISK_S = (0.0005, 0.004)
APPLY_S = (0.0001, 0.001)
FLUSH_S = 1.0


class ClientPath(ReplyPath):
    """A client's connection: requests go in as frames, replies come out as (code, remark, ext)."""

    def __init__(self, node: SimNode) -> None:
        super().__init__(("10.0.0.9", 4000), "broker", node.router.rooms.unsent)
        self.node = node
        self.replies: dict[int, list[tuple[int, str, bytes]]] = {}
        self.on_reply: Callable[[int, int, str], None] | None = None

    def ask(self, frame: bytes) -> None:
        """One whole frame. Lost if the node is down."""
        if self.closed:
            return
        end = 8 + int.from_bytes(frame[5:8], "big")
        header = decode_header(frame[4], frame[8:end])
        self.node.router.on_request(self, frame[4], header, frame[8:end], frame[end:])

    def write(self, data: bytes) -> None:
        end = 8 + int.from_bytes(data[5:8], "big")
        header = decode_header(data[4], data[8:end])
        assert len(data) == 4 + int.from_bytes(data[:4], "big"), "one frame per reply"
        if self.closed:
            return
        self.replies.setdefault(header.opaque, []).append((header.code, header.remark or "", bytes(header.extFields)))
        if self.on_reply is not None:
            self.on_reply(header.opaque, header.code, header.remark or "")

    def close(self) -> None:
        """The client goes away."""
        if not self.closed:
            self.closed = True
            if self.node.up:
                self.node.router.on_close(self)  # type: ignore[arg-type]


class SyncLane:
    """Syncs the rows; the lane of a whole node does more (cluster.state.keeper)."""

    idle_after_s: float | None = None

    def __init__(self, kv: MemoryKV) -> None:
        self._kv = kv

    def drain(self, batch: object) -> None:
        self._kv.flush_wal()

    def idle(self) -> None:
        pass


class SimNode:
    """Starts from its disk, may be killed at any time. Implements `raft_driver.Proposer`."""

    def __init__(
        self,
        node_id: NodeId,
        config: Config,
        fs: MemoryFileSystem,
        loop: VirtualLoop,
        rng: random.Random,
        network: MemoryNetwork,
    ) -> None:
        self.node_id, self.config, self.fs, self.loop, self.rng, self.network = node_id, config, fs, loop, rng, network
        self.kv = MemoryKV(model_crash=True)
        self.clock = VirtualClock(loop, skew_ms=rng.randint(-200, 200))
        self.up = False
        self.failure: BaseException | None = None
        self.starts = 0
        self.paths: list[ClientPath] = []
        self.applied_terms: list[tuple[int, int]] = []

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Recovers from the disk and joins the group."""
        assert not self.up
        self.starts += 1
        self.directory = open_node_dir(self.fs, DATA)
        self.state = BrokerState(self.kv)
        genesis = self.directory.log.genesis
        self.raw = RawNode(
            RaftConfig(
                node_id=self.node_id,
                group_id=genesis.group_id,
                election_ticks=self.config.raft.election_ticks,
                heartbeat_ticks=self.config.raft.heartbeat_ticks,
                segment_size=genesis.segment_size,
            ),
            hard_state=self.directory.hard_state_store.load(),
            log=self.directory.log,
            members=[of_genesis(genesis)],
            applied_index=self.state.applied.index,
            rng=random.Random(self.rng.random()),
        )
        self.driver = RaftDriver(
            self.raw,
            self.node_id,
            loop=self.loop,
            clock=self.clock,
            tick_ms=self.config.raft.tick_ms,
            on_stop=self._on_failure,
        )
        self.transport = MemoryTransport(self.network, self.node_id)
        self._build_services()
        self._build_lanes()
        self.driver.attach(self.transport, self, self.append, self.apply)
        self.up = True
        self.transport.listen(Handlers(self.driver.receive, self._on_peer_closed, self._on_frame))
        self.driver.start()
        self.timer = self.loop.call_later(TIMER_S, self._on_timer)

    def _build_services(self) -> None:
        incarnation = self.rng.randbytes(8)
        host = pack_host("127.0.0.1", 10911)
        retries = RetryMemory()
        self.replies = SendReplyWriter(self.clock, self.state, host, retries, incarnation)
        self.proposals = Proposals(
            self.config,
            self.raw,
            self.state,
            self.clock,
            store_host=host,
            wake=self.driver.wake,
            replies=self.replies,
            ledger=Ledger(self.fs, DATA, self.config.limits.batches_inflight_max),
        )
        self.proposals.on_contained = lambda what, error: self.loop.call_exception_handler(
            {"message": what, "exception": error}
        )
        self.early = self.proposals.early
        self.relay = WrittenRelay(
            self.node_id, self.raw, self.early, self.directory.log, self.transport, self.loop, self.driver.wake
        )
        self.early.on_start(self.raw.applied_index, self.raw.raft.log.term_at)
        known = self.state
        self.router = Router(
            self.config,
            self.state,
            self.proposals,
            known_topic=lambda name: name in known.topics,
            soon=self.loop.call_soon,
        )
        self.sends = SendHandler(
            self.config,
            self.state,
            self.clock,
            self.proposals,
            self.replies,
            retries,
            incarnation,
            self.router.on_request,
        )
        self.forwarder = Forwarder(
            self.config,
            self.clock,
            self.transport,  # type: ignore[arg-type]
            leader=lambda: self.raw.leader_id,
            leads=lambda: self.proposals.open,
            term=lambda: self.raw.term,
            local=self.router.as_leader,
            names=self.sends,
            room=self.router.rooms.unsent,
        )
        self.proposals.watch_leadership(
            on_open=lambda: self.loop.call_soon(self.forwarder.pump), on_unproposed=self._on_unproposed
        )
        services: Any = self
        handlers = {
            **offsets.handlers(services),
            **topics_admin.handlers(services),
            **heartbeat.handlers(services, Members(services)),
        }
        self.router.attach(self.sends, self.replies, self.forwarder, handlers)

    def _build_lanes(self) -> None:
        append = AppendLane(self.directory.log, self.directory.hard_state_store, self.config.log.idle_mark_ms)
        self.append = StepLaneRunner[PersistJob, Persisted](
            append, self.loop, self.rng, self.driver.on_persisted, self.driver.fail, DISK_S
        )
        self.apply = StepLaneRunner[list[Entry], Applied](
            ApplyLane(self.state), self.loop, self.rng, self.driver.on_applied, self.driver.fail, APPLY_S
        )
        self.prepare = StepLaneRunner[object, None](
            PrepareLane(self.directory.log), self.loop, self.rng, lambda _: None, self.driver.fail, DISK_S
        )

        self.flushes = StepLaneRunner[object, None](
            SyncLane(self.kv), self.loop, self.rng, lambda _: None, self.driver.fail, DISK_S
        )
        self.flush_due_s = self.loop.now + FLUSH_S

    def kill(self, *, power: bool) -> None:
        """The process dies; with `power` its machine does: what was not synced is gone, or torn."""
        assert self.up
        self.up = False
        self.driver.stop()
        self.timer.cancel()
        for lane in (self.append, self.apply, self.prepare, self.flushes):
            lane.close()
        self.transport.drop()
        for path in self.paths:
            path.closed = True
        self.paths.clear()
        if power:
            self.fs.crash(self.rng.randrange(1 << 30))
            self.kv = self.kv.crash(self.rng.randint(0, self.kv.unsynced))
        else:
            self.fs.restart()
            self.kv = self.kv.crash(self.kv.unsynced)

    def connect(self) -> ClientPath:
        """A new client connection."""
        path = ClientPath(self)
        path.closed = not self.up
        if self.up:
            self.paths.append(path)
        return path

    # --- Proposer ----------------------------------------------------------------------------------------------------

    def flush(self, raw: RawNode) -> None:
        self.proposals.flush(raw)

    def on_applied_run(self, applied: Applied) -> None:
        self.applied_terms += [(entry.index, entry.term) for entry in applied.entries]
        self.proposals.on_applied(applied)
        if self.directory.log.needs_next():
            self.prepare.submit(True)

    def on_role(self, raw: RawNode) -> None:
        self.proposals.on_role(raw)
        self.forwarder.pump()

    def on_members(self, raw: RawNode) -> None:
        """The members of this group do not change."""

    def _on_failure(self, error: BaseException) -> None:
        self.failure = error
        raise error

    def _on_peer_closed(self, peer: NodeId) -> None:
        self.driver.peer_closed(peer)
        self.forwarder.peer_closed(peer)

    def _on_frame(self, peer: NodeId, kind: int, header: list[Any], payload: bytes) -> None:
        if kind in KINDS:
            self.relay.on_frame(peer, kind, header)
        else:
            self.forwarder.on_frame(peer, kind, header, payload)

    def _on_unproposed(self, sends: list[Send]) -> None:
        self.router.reroute(sends)

    def _on_timer(self) -> None:
        self.timer = self.loop.call_later(TIMER_S, self._on_timer)
        self.proposals.expire()
        self.relay.tick(self.clock.monotonic_ms())
        self.forwarder.expire()
        if self.loop.now >= self.flush_due_s:
            self.flush_due_s += FLUSH_S
            self.flushes.submit(True)

    # --- Services, as far as the handlers here ask -------------------------------------------------------------------

    def monotonic_ms(self) -> int:
        return self.clock.monotonic_ms()

    def writes_open(self) -> bool:
        return self.proposals.open

    def propose(
        self, run: list[Command], done: Callable[[ProposeResult], None], session: SessionRows | None = None
    ) -> None:
        self.proposals.submit_commands(run, done, session)

    def read_index(self, done: Callable[[bool], None]) -> None:
        self.driver.read_index(done)

    def commit_offset_later(self, group: str, topic_id: int, queue_id: int, offset: int) -> None:
        self.proposals.offsets.commit_later(group, topic_id, queue_id, offset)

    def settle_offsets(self, group: str, done: Callable[[], None]) -> None:
        self.proposals.offsets.settle(group, done)

    def knows_group(self, group: str) -> bool:
        return self.proposals.offsets.knows_group(group)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        return self.loop.call_later(delay_ms / 1000, callback).cancel

    # --- what is checked ---------------------------------------------------------------------------------------------

    def bodies(self, topic: str) -> list[bytes]:
        """Every message of the topic as this node would serve it, read back from its own log."""
        config = self.state.topics.get(topic)
        found: list[bytes] = []
        if config is None:
            return found
        for queue_id in range(config.queues):
            end = self.state.max_offset(config.id, queue_id)
            items = self.state.fetch(config.id, queue_id, 0, end)
            assert len(items) == end, f"node {self.node_id}: {len(items)} of {end} rows in queue {queue_id}"
            for offset, item in enumerate(items):
                message, _ = decode_message(self.directory.log.read_at(item.position, item.size))
                assert (message.queue_id, message.queue_offset) == (queue_id, offset)
                found.append(message.body)
        return found

    def sums(self) -> dict[str, int]:
        return digest(self.kv)

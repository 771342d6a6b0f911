"""A simulated machine with a node on it: disk, database, clock, power, and a process that is started again when it
ends."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from cluster.broker.reads.tier_read_policy import LEVELS
from cluster.config.config import Config
from cluster.config.node_sections import (
    AuthSection,
    ClusterSection,
    HaSection,
    Listener,
    NodeSection,
    PeerNode,
    PeerSection,
    RaftSection,
)
from cluster.config.service_sections import (
    FlowSection,
    LimitsSection,
    ModesSection,
    OffsetsSection,
    ReplicationSection,
    SendSection,
    TimerSection,
    TopicsSection,
    TransactionSection,
)
from cluster.config.storage_sections import LogSection, RepairSection, RetentionSection, TierSection
from cluster.node.node import Node
from cluster.node.node_runs import NodeRuns
from cluster.peer.keyring import encode
from cluster.peer.secret import MARK, SECRET, mark_of
from cluster.replication.append_lane import Persisted, PersistJob
from cluster.replication.append_runner import AppendRunner
from cluster.replication.apply_lane import INLINE_BYTES_MAX
from cluster.runtime.environment import APPLY_BYTES, PAGE_SEGMENTS, Environment
from cluster.runtime.figures.row_count import CountedRows, counted
from cluster.runtime.lanes import Lane
from cluster.state.state_opening import StateLostError
from jepsen_like.fakes.memory_fs import PowerCut
from jepsen_like.fakes.memory_kv import CURRENT_FILE, MemoryKV
from jepsen_like.sim.machines.clock import START_WALL_MS, SimClock
from jepsen_like.sim.machines.disk import DigestKV, FaultyFileSystem, PowerLoss, lost_rows
from jepsen_like.sim.machines.lanes import DiskSpeed, SimApplyLane, SimLane, SimPace, WatchedAppends
from jepsen_like.sim.machines.loop import Process, SimLoop
from jepsen_like.sim.machines.network import Network
from jepsen_like.sim.machines.turn_bounds import SEND_BYTES, TURN_SHARE
from jepsen_like.sim.options import Options, stream
from raftlog.errors import IdentityError, RaftLogError
from raftlog.storage.files import layout
from raftlog.storage.files.fs import read_file, write_file
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.files.identity import Identity
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.node_dir import create_joining_dir, create_node_dir
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE, newest_mark
from raftlog.types import FIRST_GROUP, Entry, NodeId
from statemachine.cluster_wide.broker_groups import usual_name
from statemachine.levels import LEVEL
from statemachine.rows.kv import KVCorruptError

DATA = Path("/data")
LIVE_ROWS = b"live"
"""Content of the state directory's file CURRENT while its rows are in `Machine.kv`. An installed checkpoint has another
content there."""
GROUP_ID = FIRST_GROUP
CLUSTER = UUID(int=7)
SWEEP_ROWS = 8
"""Rows that one slice of a sweep handles: few, so that faults hit sweeps in the middle."""
FINALIZED = f"the state database has level {LEVEL}"
"""Start of the error with which an older version refuses a directory that has been finalized at the newest level."""
LOCK_TTL_MS = 4000
"""Time to live of queue locks in milliseconds: short, so that locks expire in runs of some seconds. Half of it is more
than the clocks differ by."""
ROUTE_AGE_MS = 2000
"""Milliseconds for which clients may send by an old route: short, so that a topic leaves a group within a run."""
MEMORY_SEGMENTS = 5
"""Memory of a simulated machine, in log segments. With the default of `modes.access_message_in_memory_max_ratio`, a
consumer that is two segments behind the end no longer reads what is in memory."""
DELAY_LEVELS_S = 1, 2, 1, 2, 3
"""Delay in seconds of each level of timer.delay_levels."""
CLUSTER_KEY = b"the secret of simulated clusters"
USER_KEY = b"the key of the simulated secrets"
KEY_FILE = "/etc/raftmq/auth.key"
PEER_PORT, BROKER_PORT, NAMESRV_PORT, REGISTRY_PEER_PORT = 10912, 10911, 9876, 10920
REGISTRY = (1, 2, 3)
"""Numbers of the registry's processes."""
LISTENERS = {"broker": BROKER_PORT, "namesrv": NAMESRV_PORT}


def host_of(node_id: int, group: int = GROUP_ID) -> str:
    """Returns the IP address of a node's machine."""
    return f"10.0.{0 if group == GROUP_ID else 100 + group}.{node_id}"


def uuid_of(node_id: int, group: int = GROUP_ID) -> UUID:
    """Returns the UUID that a node with this id has in every run."""
    return UUID(int=(group - GROUP_ID << 16) + node_id)


def registry_host(number: int) -> str:
    """Returns the IP address of the machine with that process of the registry."""
    return f"10.0.2.{number}"


def registry_addresses(port: int) -> tuple[str, ...]:
    """Returns the "host:port" of each process of the registry."""
    return tuple(f"{registry_host(number)}:{port}" for number in REGISTRY)


def peer_of(node_id: int, group: int = GROUP_ID) -> PeerNode:
    """Returns a node's entry in `peers`: its id and its addresses."""
    host = host_of(node_id, group)
    return PeerNode(
        id=node_id, host=host, port=PEER_PORT, listeners={name: f"{host}:{port}" for name, port in LISTENERS.items()}
    )


class MachineWatcher(Protocol):
    """Observer of the machines. `jepsen_like.sim.checks.monitor.Monitor` is the one of a run."""

    def opened(self, machine: Machine) -> None:
        """Called when a node has opened its data directory; no part of it runs yet."""

    def started(self, machine: Machine) -> None:
        """Called when a node has recovered from its disk."""

    def closed(self, machine: Machine, node: Node) -> None:
        """Called when a node has closed, by an orderly stop or because it failed; its process runs on for a moment."""

    def draining(self, machine: Machine, lane: str, batch: Sequence[Any]) -> None:
        """Called when a lane is about to work on these jobs."""

    def drained(self, machine: Machine, lane: str, batch: Sequence[Any], done: Any) -> None:
        """Called when a lane has done its work, before the node gets the result."""

    def worked(self, machine: Machine, lane: str, batch: Sequence[Any], units: int) -> None:
        """Called when a lane's work is done, with the units that it charged the meter."""

    def reported(self, machine: Machine, lane: str, batch: Sequence[Any], done: Any) -> None:
        """Called when the node has received the result of a lane's work."""

    def ended(self, machine: Machine, how: str) -> None:
        """Called when the process has ended. `how` is "kill", "power", "stopped" for an orderly stop, or "failed: "
        with the reason."""

    def retired(self, machine: Machine) -> None:
        """Called when a machine was switched off for good, and its disk is lost."""

    def broken(self, what: str, error: BaseException) -> None:
        """Called when a node ended or failed to start although nothing that the run did to it explains that."""


class Machine:
    """A machine that runs one node. `node` is None while no process runs. The nemesis and the world start, stop and
    damage the node through the machine's methods."""

    def __init__(
        self,
        node_id: NodeId,
        options: Options,
        loop: SimLoop,
        network: Network,
        watcher: MachineWatcher,
        config: Config | None = None,
        group: int = GROUP_ID,
    ) -> None:
        """`config`: the node's configuration, if it differs from the one that follows from `options`. `group`: the
        number of the node's Raft group."""
        self.node_id, self.group = node_id, group
        self.host = host_of(node_id, group)
        self.options, self.loop, self.network, self.watcher = options, loop, network, watcher
        self.fs = FaultyFileSystem()
        self.kv = DigestKV()
        self.rng = stream(options.seed, f"machine {node_id}")
        self.clock = SimClock(loop, self.rng.randint(-options.skew_ms, options.skew_ms))
        self.disk_factor = 1.0
        self.apply_factor = 1.0
        """Factor by which the apply lane is slower. The larger of this and `disk_factor` counts for that lane."""
        self.node: Node | None = None
        self._is_closed = False
        self.process: Process | None = None
        self.life: NodeRuns | None = None
        self.processes: list[Process] = []
        self.nodes: list[Node] = []
        """Every node object that was ever started on this machine."""
        self.applied_lost = False
        """True if the last crash lost rows that had been applied."""
        self.was_installing = False
        """True if, since the last start, the node began to install a snapshot in place of its log."""
        self.backfilling = False
        """True from a start at which the node lacked older segments until it has them."""
        self._lanes: list[SimLane] = []
        """The lanes of the current process."""
        self.boots = 0
        self.spoiled = False
        self.held = 0
        """Number of faults that keep this machine down; it starts only when this is 0."""
        self.rotten: set[int] = set()
        """Indexes of the entries that the nemesis damaged on this disk."""
        self.loss: PowerLoss | None = None
        """Data lost at the next power failure in the middle of a write; None if chance decides."""
        self.level = options.older if options.levels else LEVEL
        """Highest feature level that this machine's node knows, from the next start on
        (`statemachine.levels.LEVEL`)."""
        self.began_s = 0.0
        self.final_since: float | None = None
        """Virtual time in seconds at which the newest level came into the log; None if it is not there."""
        self.retired = False
        """True once the machine was switched off for good."""
        self.has_retired = False
        """True once the node has ended at its start, because its group of brokers has retired."""
        self.open_store: Callable[[str], object] | None = None
        """Function that opens the object store of tier.url as this machine reaches it; None without tiered storage."""
        self.config = config or config_of(node_id, options, group)
        voters = tuple(Voter(NodeId(i), uuid_of(i, group)) for i in range(1, options.nodes + 1))
        self.genesis = genesis = Genesis(CLUSTER, group, options.segment_size, START_WALL_MS, voters)
        identity = Identity(CLUSTER, group, node_id, uuid_of(node_id, group), START_WALL_MS)
        create = create_node_dir if node_id <= options.nodes else create_joining_dir
        create(self.fs, DATA, identity, genesis)
        write_file(self.fs, DATA / SECRET, encode((CLUSTER_KEY,), str(CLUSTER)))
        write_file(self.fs, DATA / MARK, mark_of(CLUSTER_KEY))

    @property
    def up(self) -> bool:
        """True if a process runs here, also while it opens its directory, fetches its state, or is paused."""
        return self.process is not None and self.process.alive

    @property
    def readable(self) -> Node | None:
        """The node whose rows may be read; None if none runs, or it is closed and its process waits to open it again
        (seed 780000039)."""
        return None if self._is_closed else self.node

    # --- life --------------------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Ends the hold of one fault on the machine (see `held`), and starts the machine if no other fault keeps it
        down."""
        self.held = max(0, self.held - 1)
        self.start()

    def hand_over(self, to: NodeId) -> bool:
        """Tells the node to transfer leadership to `to`. Returns False if no node runs here, if it is paused or
        stalled, or if it refuses because it does not lead or `to` cannot lead.
        """
        if self.node is None or self.process is None or self.process.paused or self.process.stalls:
            return False
        try:
            self.process.run(self.node.driver.transfer, to)
        except (RaftLogError, ValueError):
            return False
        return True

    def start(self) -> None:
        """Starts the node's process, and restarts it whenever it ends by itself, as an init system does. Does nothing
        while the process runs, a fault keeps the machine down, or the machine is retired."""
        if self.up or self.held or self.retired:
            return
        if self.host in self.network.links.down:
            self.network.links.down.discard(self.host)
            self.network.retry()
        process = self.process = Process(f"node{self.node_id}", self.host)
        self.began_s = self.loop.now
        self.processes.append(process)
        environment = Environment(
            fs=self.fs,
            open_kv=self.open_kv,
            open_rows=self._open_rows,
            count_rows=self._count_rows,
            clock=self.clock,
            runner=self._lane,
            apply_runner=self._lane,
            append_runner=self._append_runner if self.options.append_inline else self._lane,
            serves_admin=False,
            watches_turns=False,
            level=self.level,
            gives_config=self.options.gives_config,
            entropy=self.rng.randbytes,
            boot_id=lambda: self.boots.to_bytes(16),
            pid=lambda: len(self.processes),
            checkpoint_every_ms=self.options.checkpoint_every_ms,
            lock_ttl_ms=LOCK_TTL_MS,
            route_age_ms=ROUTE_AGE_MS,
            sweep_rows=SWEEP_ROWS,
            turn_share=TURN_SHARE,
            send_bytes=SEND_BYTES,
            apply_bytes=self.options.apply_bytes,
            memory_bytes=lambda: MEMORY_SEGMENTS * self.options.segment_size,
            page_segments=self.options.tier_page or PAGE_SEGMENTS,
            open_store=self.open_store,
            read_key_file=(lambda _: (USER_KEY,)) if self.options.users else None,
        )
        self._look_for_install()
        life = NodeRuns(self.config, environment, self._started, self._opened, self._closed)
        self.life = life
        process.on_power_cut = self._power_cut
        process.run(self.loop.create_task, self._live(process, life))

    async def _live(self, process: Process, life: NodeRuns) -> None:
        failure: BaseException | None = None
        try:
            node = await life.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, a node that does not start is a finding
            failure = error
        else:
            failure = node.failure if node is not None else None
        if self.process is not process or not process.alive:
            return
        if isinstance(failure, PowerCut):  # the failure came in a write on the event loop itself (seed 959600026)
            self._power_cut()
            return
        expected = bool(self.fs.failed) or self.fs.space_left < 1 << 30 or isinstance(failure, StateLostError)
        if self.level < LEVEL and self._is_too_old(str(failure)):
            expected, self.level = True, LEVEL  # an operator reads the error and installs the newer version
        if isinstance(failure, IdentityError) and "has retired" in str(failure):
            expected = self.has_retired = True
            self.held += 1
        reason = "; ".join(self.fs.failed) or str(failure)
        reboots = self.rng.random() < 0.5
        self._end("stopped" if failure is None and not self.fs.failed else f"failed: {reason}", power=reboots)
        if not expected and failure is not None:
            self.watcher.broken(f"node {self.node_id} stopped", failure)
        self.loop.call_outside(self.rng.uniform(0.1, 0.6), self.start)

    def _is_too_old(self, failure: str) -> bool:
        """Returns True if a node of an older version failed for a right reason: it found its directory finalized at the
        newest level, or the entry with that level came while it ran. A node that starts after that entry is refused by
        its peers and never gets the entry."""
        if f"the log has level {LEVEL}" in failure:
            return self.final_since is None or self.began_s < self.final_since
        return failure.startswith(FINALIZED)

    def _opened(self, node: Node) -> None:
        self.watcher.opened(self)
        self.was_installing = self.was_installing or node.storage.directory.installed is not None
        self.node, self._is_closed = node, False
        self.nodes.append(node)

    def _closed(self, node: Node) -> None:
        self._look_for_install()
        self.watcher.closed(self, node)
        self._is_closed = True
        self.kv = self.kv.crash(self.kv.unsynced)  # the next process opens this store

    def _look_for_install(self) -> None:
        self.was_installing = self.was_installing or self.fs.exists(DATA / layout.INSTALL)

    def _started(self, node: Node) -> None:
        self.watcher.started(self)

    def _power_cut(self) -> None:
        loss, self.loss = self.loss, None
        self.kill(power=True, loss=loss)

    def kill(self, *, power: bool, loss: PowerLoss | None = None) -> None:
        """Kills the process as kill -9 does or, with `power`, cuts the power: unsynced data is lost or torn, by chance
        or as `loss` says."""
        if self.up:
            self._end("power" if power else "kill", power=power, loss=loss)

    def stop(self) -> None:
        """Sends the process SIGTERM: it stops in order, and then the init system starts it again."""
        if self.process is not None and self.process.alive and self.life is not None:
            self.process.run(self.life.stop)

    def retire(self) -> None:
        """Switches the machine off for good: its disk is never read again."""
        self.kill(power=True)
        self.retired = True
        self.watcher.retired(self)

    def _end(self, how: str, *, power: bool, loss: PowerLoss | None = None) -> None:
        process = self.process
        assert process is not None
        self.watcher.ended(self, how)
        self.node = None
        process.alive = process.paused = False
        self.abandon()
        self.network.process_ended(process, politely=not power)
        if power:
            self.boots += 1
            self.network.links.down.add(self.host)
            if loss is None:
                self.fs.crash(self.rng.randrange(1 << 30))
            else:
                self.fs.crash_leaving(loss.left)
            unsynced = self.kv.unsynced
            self.kv, kept = lost_rows(self.kv, self.rng, loss)
            self.applied_lost = kept < unsynced
        else:
            self.fs.restart()
            self.kv = self.kv.crash(self.kv.unsynced)

    def abandon(self) -> None:
        """Abandons the drains that lanes have begun: they never continue."""
        for lane in self._lanes:
            lane.abandon()
        self._lanes.clear()

    def open_kv(self, path: str) -> DigestKV:
        """Opens the state database. The rows outlive the process in `kv`, and the file CURRENT tells whether those rows
        belong to this directory. Raises KVCorruptError if they do and the nemesis has damaged them (`spoil`)."""
        current = Path(path) / CURRENT_FILE
        if not self.fs.exists(current):
            self.kv = DigestKV(MemoryKV(model_crash=True, fs=self.fs))
            self.fs.mkdir(Path(path))
        elif read_file(self.fs, current) != LIVE_ROWS:
            self.kv = DigestKV(MemoryKV.load(self.fs, Path(path)))
        elif self.spoiled:
            raise KVCorruptError("a block fails its checksum")
        else:
            if self.kv.closed:  # by an earlier attempt of this process to start, which lacked data
                self.kv = self.kv.crash(self.kv.unsynced)
            return self.kv
        self.spoiled = False
        write_file(self.fs, current, LIVE_ROWS)
        return self.kv

    def _open_rows(self, path: Path) -> AbstractContextManager[MemoryKV]:
        return nullcontext(MemoryKV.load(self.fs, path))

    def _count_rows(self, path: Path) -> CountedRows:
        with self._open_rows(path) as rows:
            return counted(rows)

    def spoil(self) -> None:
        """Damages the state database: the next start cannot open it and must replace it."""
        self.spoiled = self.applied_lost = True

    def bytes_of(self, entry: Entry, log: SegmentedLog) -> bytes:
        """Returns the bytes on the disk where `log` keeps this entry."""
        segment = log.state.segment_of(entry.index)
        size = len(entry.header) + len(entry.payload)
        return self.fs.open(segment.path).pread(size, segment.file_offset(entry.position))

    def is_marked(self, entry: Entry, log: SegmentedLog) -> bool:
        """Returns True if a sync mark on the disk covers the entry. A start takes a flipped bit above the last mark for
        a torn write and cuts the log there, although the entry was durable. No log can tell the two apart before the
        next mark is written.
        """
        segment = log.state.segment_of(entry.index)
        if segment is not log.state.segments[-1]:
            return True
        mark = newest_mark(self.fs.durable(segment.path, LOCAL_HEADER_SIZE, 0))
        return mark is not None and entry.index < mark.next_index

    def rot(self, entry: Entry, log: SegmentedLog) -> None:
        """Flips one bit of the entry on the disk: in its payload if it has one, otherwise in its header."""
        segment = log.state.segment_of(entry.index)
        at = segment.file_offset(entry.position) + len(entry.header) + len(entry.payload) // 2 - (not entry.payload)
        (byte,) = self.fs.open(segment.path).pread(1, at)
        self.fs.damage(segment.path, at, bytes([byte ^ 1]))
        self.rotten.add(entry.index)

    def pause(self) -> None:
        """Pauses the process (SIGSTOP)."""
        if self.process is not None and self.up:
            self.process.paused = True

    def resume(self) -> None:
        """Continues the paused process (SIGCONT)."""
        if self.process is not None and self.process.paused:
            self.loop.resume(self.process)

    def stall(self, seconds: float) -> None:
        """Makes one turn of the node's event loop take `seconds`: what is sent to the node waits in its sockets."""
        if self.process is not None and self.up:
            self.loop.stall(self.process)
            self.loop.call_outside(seconds, self.loop.end_stall, self.process)

    # --- lanes -------------------------------------------------------------------------------------------------------

    def _lane(
        self,
        name: str,
        lane: Lane[Any, Any],
        loop: Any,
        on_done: Callable[[Any], None],
        on_failure: Callable[[BaseException], None],
    ) -> SimLane:
        options = self.options
        drain = options.apply_s if name == "apply" else options.disk_s
        speed = DiskSpeed(drain, (0.0, drain[0]))
        assert self.process is not None
        watcher = LaneEvents(self, self.process)
        rng = random.Random(self.rng.random())
        kind = self.lane_kind(name)
        made = kind(name, lane, loop, rng, speed, partial(self._factor, name), watcher, on_done, on_failure)
        if isinstance(made, SimApplyLane):
            made.inline = options.apply_inline
            made.inline_bytes = options.apply_bytes * INLINE_BYTES_MAX // APPLY_BYTES
            made.held = lambda: self.apply_factor > 1
        made.stepped, made.holds_lock = options.stepped, self._holds_lock
        self._lanes.append(made)
        return made

    def _append_runner(
        self,
        name: str,
        lane: Lane[PersistJob, Persisted],
        loop: Any,
        on_done: Callable[[Persisted], None],
        on_failure: Callable[[BaseException], None],
    ) -> AppendRunner:
        """Returns the product's append runner, with a SimLane in place of its thread."""
        process = self.process
        assert process is not None
        rng = random.Random(self.rng.random())
        speed = DiskSpeed(self.options.disk_s, (0.0, 0.0))
        pace = SimPace(rng, self.options.append_inline, speed, partial(self._factor, name), self._stall)
        inline = WatchedAppends(lane, LaneEvents(self, process), lambda: process.alive)

        def done(persisted: Persisted) -> None:
            on_done(persisted)
            inline.reported(persisted)

        return AppendRunner(name, lane, loop, done, on_failure, thread=self._lane, pace=pace, inline=inline.drain)

    def _stall(self, seconds: float) -> None:
        """Pauses the process for `seconds`, as in a system call that does not return."""
        process = self.process
        if process is not None and not process.paused:
            process.paused = True
            self.loop.call_outside(seconds, self._go_on, process)

    def _go_on(self, process: Process) -> None:
        if process.alive and process.paused:
            self.loop.resume(process)

    def lane_kind(self, name: str) -> type[SimLane]:
        """Returns the class that simulates the lane of that name."""
        return SimApplyLane if name == "apply" else SimLane

    def _holds_lock(self) -> bool:
        """Returns True if a drain may not stop here, because a lock of the log is held or no node is open."""
        if self.node is None:
            return True
        log = self.node.storage.directory.log
        state = log.state
        locks = (state.filing, state.cutting, state.publishing, state.damage._lock, log._preparer.preparing)
        return any(lock.locked() for lock in locks)

    def _factor(self, lane: str) -> float:
        # Takes the larger factor, not their product. With the product a job would take minutes, and the cluster could
        # make no progress after the heal.
        return max(self.disk_factor, self.apply_factor) if lane == "apply" else self.disk_factor


class LaneEvents:
    """Passes the events of one process's lanes on to the machine's watcher, as long as the process lives."""

    def __init__(self, machine: Machine, process: Process) -> None:
        self._machine, self._process = machine, process

    def on_draining(self, lane: str, batch: Sequence[Any]) -> None:
        """Reports to the machine's watcher that a drain begins."""
        if self._process.alive:
            self._machine.watcher.draining(self._machine, lane, batch)

    def on_drained(self, lane: str, batch: Sequence[Any], done: Any) -> None:
        """Reports to the machine's watcher that a drain is done, before the node gets the result."""
        if self._process.alive:
            self._machine.watcher.drained(self._machine, lane, batch, done)

    def on_worked(self, lane: str, batch: Sequence[Any], units: int) -> None:
        """Reports to the machine's watcher how many units a drain charged the meter."""
        if self._process.alive:
            self._machine.watcher.worked(self._machine, lane, batch, units)

    def on_reported(self, lane: str, batch: Sequence[Any], done: Any) -> None:
        """Reports to the machine's watcher that the node has received the result of a drain."""
        if self._process.alive:
            self._machine.watcher.reported(self._machine, lane, batch, done)

    def on_power_cut(self) -> None:
        """Reports to the process that the power failed in the middle of a drain."""
        if self._process.alive:
            self._process.on_power_cut()


def config_of(node_id: int, options: Options, group: int = GROUP_ID) -> Config:
    """Returns a node's configuration with the settings that the seed drew. It skips the validation for operators, which
    forbids limits as small as these."""
    host = host_of(node_id, group)
    peers = tuple(peer_of(i, group) for i in sorted({*range(1, options.nodes + 1), node_id}))
    listeners = tuple(
        Listener(name=name, bind=host, port=port, advertised=f"{host}:{port}") for name, port in LISTENERS.items()
    )
    return Config(
        node=NodeSection(id=node_id, data_dir=str(DATA)),
        cluster=cluster_of(group, options),
        peers=peers,
        listeners=listeners,
        peer=PeerSection(bind=host, port=PEER_PORT),
        auth=AuthSection(key_file=KEY_FILE if options.users else ""),
        raft=RaftSection(
            tick_ms=options.tick_ms, election_ticks=options.election_ticks, append_bytes_max=options.append_bytes_max
        ),
        ha=HaSection(catch_up_bytes_per_second=options.catch_up_bytes_per_second),
        log=LogSection(idle_mark_ms=options.idle_mark_ms),
        limits=LimitsSection(
            message_bytes_max=4096,
            batch_bytes_max=options.batch_bytes_max,
            node_inflight_bytes_max=options.node_inflight_bytes_max,
            batch_messages_max=options.batch_messages_max,
            batches_inflight_max=options.batches_inflight_max,
            connection_unsent_bytes_max=options.unsent_bytes,
            node_unsent_bytes_max=4 * options.unsent_bytes,
            stalled_ms=2_000 if options.hostile else 10_000,
        ),
        flow=FlowSection(house_bytes_min=max(16 << 10, 4 * options.batch_bytes_max) if options.surges else 512 << 10),
        send=SendSection(deadline_ms=options.deadline_ms, leader_wait_ms=options.leader_wait_ms),
        modes=ModesSection(
            flush_disk_type="ASYNC_FLUSH" if options.flush_async else "SYNC_FLUSH",
            transient_store_pool_enable=bool(options.memory_pool),
        ),
        replication=ReplicationSection(thrifty="on" if options.thrifty else "off"),
        timer=TimerSection(delay_levels=" ".join(f"{seconds}s" for seconds in DELAY_LEVELS_S)),
        # A late send must not create a deleted topic again.
        topics=TopicsSection(auto_create=not (options.remakes or options.legacies)),
        offsets=OffsetsSection(flush_ms=options.offsets_flush_ms),
        transaction=TransactionSection(timeout_ms=1500, check_interval_ms=1000, check_max=1000),
        repair=RepairSection(bytes_per_second=options.fetch_bytes_per_second),
        retention=RetentionSection(
            hours=0,
            ms=options.retained_ms,
            bytes_max=options.retained_bytes,
            delete_when="",
            delete_gap_ms=20,
            every_ms=200 if options.retained_bytes or options.retained_ms else 10_000,
        ),
        tier=TierSection(
            url="sim:" if options.tier else "",
            seal_after_ms=options.tier_seal_ms,
            evict=options.tier == 2,
            read=LEVELS[options.tier_read],
            bytes_max=options.tier_bytes,
            delete_delay_ms=2000,
            state_every_ms=0
            if options.tier_bytes
            else 3_600_000,  # an idle node makes no backup, and deletions wait for one
        ),
    )


def cluster_of(group: int, options: Options) -> ClusterSection:
    """Returns the section `cluster` of the configuration of a group's nodes. Those of a further group learn of the
    other groups from the first members of group 1, some of which may be gone by then."""
    registry = registry_addresses(REGISTRY_PEER_PORT) if options.registry else ()
    if group == GROUP_ID:
        return ClusterSection(registry=registry)
    first = tuple(f"{host_of(node_id)}:{PEER_PORT}" for node_id in (1, 2, 3))
    return ClusterSection(group=group, broker_name=name_of(group), first_group=first, registry=registry)


def name_of(group: int) -> str:
    """Returns the broker name of a group."""
    first = ClusterSection().broker_name
    return first if group == GROUP_ID else usual_name(first, group)

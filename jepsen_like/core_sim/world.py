"""The simulation's event loop: a heap of (time, number, event), virtual microseconds, no wall clock. It moves members,
network, disks and clients."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Any

from jepsen_like.core_sim.clients import CoreClient, CoreHistory
from jepsen_like.core_sim.disk import SimDisk
from jepsen_like.core_sim.machine import CoreMachine, members_of
from jepsen_like.core_sim.monitor import FULL_EVERY, LOG_TIME_SLACK_MS, CoreMonitor
from jepsen_like.core_sim.network import Link, SimNetwork
from jepsen_like.core_sim.run_options import TICK_US, Knobs
from jepsen_like.core_sim.thrift import Thrift
from jepsen_like.core_sim.violation import PromiseBroken
from raftlog.core.state.config import RaftConfig
from raftlog.errors import ProposalDroppedError
from raftlog.membership import Membership
from raftlog.messages import AppendEntries, AppendEntriesReply, InstallSnapshot, Message
from raftlog.types import Entry, EntryType, NodeId, Role, SoftState

EVENT_BUDGET = 60_000
"""The most events of a run; a run that needs more is a finding (livelock, amplified messages), not a timeout."""
EVENTS_UNSEEN = 300_000
"""The most events of a black-box run, which is judged only by what clients see. Clients do not see events, so a run
that needs more ends there, without a finding.
"""
MID_APPEND = "fault between append and ack"
WALL_START_MS = 1_000_000

EventHandler = Callable[..., None]


class CoreWorld:
    """The members, clients, network and time of one run. It calls its hooks (`on_send`, `on_role`, `on_receive`) when a
    message is sent, a role changes or a message was received, so that triggers can inject faults there.
    """

    def __init__(self, seed: int, knobs: Knobs, *, black_box: bool = False, keep_trace: bool = False) -> None:
        self.seed = seed
        self.knobs = knobs
        self.rng = random.Random(f"{seed}/world")
        self.seen: Counter[str] = Counter()
        self.now = 0
        self.events = 0
        self._heap: list[tuple[int, int, EventHandler, tuple[Any, ...]]] = []
        self._number = 0
        self._trace = array("q")
        self._digest = blake2b(digest_size=8)
        self.lines: list[str] | None = [] if keep_trace else None
        voters = tuple(NodeId(node) for node in range(1, knobs.nodes + 1))
        self.disks = {node: SimDisk() for node in voters}
        self.monitor: CoreMonitor | None = None if black_box else CoreMonitor(self.disks, self.seen)
        self.first_members = self.newest = members_of(voters)
        """The members of GENESIS, and those of the newest entry that any member applied."""
        self.thrift = Thrift(self, on=knobs.thrifty)
        self.machines = {node: self._make(node) for node in voters}
        self.network = SimNetwork(
            random.Random(f"{seed}/network"), fifo=True, link_us=knobs.link_us, jitter_us=knobs.jitter_us
        )
        self.disk_us = dict.fromkeys(voters, knobs.disk_us)
        self.clock_offset_ms = dict.fromkeys(voters, 0)
        self.tick_us = {node: int(TICK_US * self.rng.choice([1, 1, 1, 0.8, 1.25])) for node in voters}
        self.history = CoreHistory(self.seen)
        self.clients = [CoreClient(number) for number in range(1, knobs.clients + 1)]
        self.backlog_max = 2 * knobs.clients * knobs.burst
        """The number of uncommitted entries above which a leader accepts no more; otherwise clients that retry would
        pile up copies."""
        self.quiet_from = 0
        """The time by which the last message sent before the heal has arrived."""
        self.writing = True
        """True while clients write."""
        self.pending: dict[NodeId, dict[int, tuple[int, int, CoreClient]]] = {node: {} for node in voters}
        """Member -> index -> (term, operation, client), for the proposals whose clients this member will answer."""
        self.reads: dict[int, int] = {}
        """Read -> the known length of the list when the read began."""
        self.confirmed: dict[NodeId, list[tuple[int, int]]] = {node: [] for node in voters}
        self._contexts = 0
        self.leader_terms: set[int] = set()
        self.on_send: list[Callable[[CoreMachine, Message], None]] = []
        self.on_role: list[Callable[[CoreMachine, SoftState], None]] = []
        self.on_receive: list[Callable[[CoreMachine, Message], None]] = []
        self.on_offer: Callable[[CoreMachine, InstallSnapshot], None] = lambda machine, offer: None
        self.on_change: Callable[[Entry, Membership], None] = lambda entry, members: None
        """Called when a change of the members is applied for the first time."""
        self.watch: Callable[[], None] | None = None
        """A function of the play that is being staged; called after every event."""
        self.hold: Callable[[Message], bool] | None = None
        """Returns True for a message that the staged play keeps from its receiver."""
        for machine in self.machines.values():
            self._boot(machine)
            self.at(int(self.rng.random() * TICK_US), self._tick, machine, machine.starts)
        for client in self.clients:
            self._wake(client, TICK_US)

    # -- time

    def at(self, delay: int, event: EventHandler, *arguments: Any) -> None:
        """Schedules `event` after `delay` microseconds."""
        self._number += 1
        heappush(self._heap, (self.now + delay, self._number, event, arguments))

    def run_until(self, done: Callable[[], bool], deadline: int) -> bool:
        """Runs events until `done` returns True or no event is left, and returns True. Returns False if the next event
        comes after `deadline`, in microseconds of virtual time. Raises PromiseBroken.
        """
        heap = self._heap
        while heap and not done():
            if heap[0][0] > deadline:
                return False
            self.now, _, event, arguments = heappop(heap)
            event(*arguments)
            if self.watch is not None:
                self.watch()
            self.events += 1
            if self.events % FULL_EVERY == 0:
                self._full()
        return True

    def _full(self) -> None:
        if self.monitor is not None:
            self.monitor.full(list(self.machines.values()))
        self._digest.update(self._trace.tobytes())
        del self._trace[:]
        if self.events > (EVENTS_UNSEEN if self.monitor is None else EVENT_BUDGET):
            raise PromiseBroken("event-budget", f"{self.events} events, {len(self._heap)} waiting, at {self.now} us")

    def _note(self, kind: int, machine: CoreMachine, detail: int) -> None:
        self.thrift.look(machine)
        raft = machine.raw.raft
        log = raft.log
        facts = (self.now, kind, machine.id, detail, raft.term, raft.role, log.tail.index, log.commit_index)
        self._trace.extend(facts)
        if self.lines is not None:
            self.lines.append(" ".join(map(str, facts)))

    def tell(self, text: str) -> None:
        """Adds a line to the replay of this run."""
        if self.lines is not None:
            self.lines.append(f"{self.now} {text}")

    def trace_hash(self) -> str:
        """Returns a hash of the trace: equal hashes mean the same run, event by event."""
        self._digest.update(self._trace.tobytes())
        del self._trace[:]
        return self._digest.copy().hexdigest()

    # -- members

    def _make(self, node: NodeId) -> CoreMachine:
        return CoreMachine(
            RaftConfig(node, **self.knobs.raft), self.first_members, self.disks[node], self.monitor, self
        )

    def join(self) -> CoreMachine:
        """Makes and starts a new node, which has only GENESIS in its log and is not yet a member."""
        node = NodeId(len(self.machines) + 1)
        self.disks[node] = SimDisk()
        machine = self.machines[node] = self._make(node)
        self.disk_us[node], self.clock_offset_ms[node] = self.knobs.disk_us, 0
        self.tick_us[node] = int(TICK_US * self.rng.choice([1, 1, 1, 0.8, 1.25]))
        self.pending[node], self.confirmed[node] = {}, []
        self.start(machine)
        return machine

    def _boot(self, machine: CoreMachine) -> None:
        machine.start(random.Random(f"{self.seed}/node/{machine.id}/{machine.starts}"))

    def start(self, machine: CoreMachine) -> None:
        """Restarts a member that is down, unless it was stopped for good or has halted on an assertion."""
        if not (machine.up or machine.halted or machine.left):
            self._boot(machine)
            if self.machines[machine.id].up:  # not halted again
                self.tell(f"start {machine.id}")
                self.at(int(self.rng.random() * TICK_US), self._tick, machine, machine.starts)

    def crash(self, machine: CoreMachine) -> None:
        """Crashes `machine` with a power failure; its clients get no answer."""
        if machine.up:
            self.tell(f"crash {machine.id}")
            if machine.disk.holds_unsynced_entries or self._waits_for_ack(machine):
                self.seen[MID_APPEND] += 1
            if machine.crash(self.rng):
                self.seen["write lost"] += 1
            self._forget(machine)

    def _waits_for_ack(self, machine: CoreMachine) -> bool:
        raft = machine.raw.raft
        return raft.role is Role.LEADER and raft.log.tail.index > raft.log.commit_index

    def _forget(self, machine: CoreMachine) -> None:
        """Forgets the operations and reads that wait at `machine`, which answers them no more; their clients look for
        another leader."""
        pending = self.pending[machine.id]
        self.pending[machine.id] = {}
        self.confirmed[machine.id].clear()
        for _, _, client in pending.values():
            client.target = NodeId(0)
            self._wake(client, TICK_US)

    def pause(self, machine: CoreMachine) -> None:
        """Pauses `machine` as SIGSTOP does: messages to it queue up while time passes."""
        machine.paused = machine.up

    def resume(self, machine: CoreMachine) -> None:
        """Resumes `machine` as SIGCONT does: all queued messages arrive at once."""
        if not machine.paused:
            return
        machine.paused = False
        inbox, machine.inbox = machine.inbox, []
        for message in inbox:
            if machine.up:
                self._step(machine, message)

    def _tick(self, machine: CoreMachine, starts: int) -> None:
        if not machine.up or machine.starts != starts:
            return
        self.at(self.tick_us[machine.id], self._tick, machine, starts)
        if machine.paused:
            return
        self._set_clock(machine)
        machine.act(machine.raw.tick)
        self._note(1, machine, 0)

    def _set_clock(self, machine: CoreMachine) -> None:
        now_ms = self.now // 1000
        machine.raw.set_clock(WALL_START_MS + now_ms + self.clock_offset_ms[machine.id], now_ms)
        if self.monitor is not None:
            self.monitor.sane_clock_ms = WALL_START_MS + now_ms

    # -- Surroundings: what members cause

    def send(self, machine: CoreMachine, message: Message) -> None:
        """Sends the message, unless the member holds it back."""
        for leaving in self.thrift.leave(machine, message):
            self.dispatch(machine, leaving)

    def dispatch(self, machine: CoreMachine, message: Message) -> None:
        """Sends the message over the network."""
        for hook in self.on_send:
            hook(machine, message)
        if type(message) is AppendEntriesReply and message.rejected:
            self.seen["append refused"] += 1
        if self.hold is None or not self.hold(message):
            self.post(message, 0)

    def post(self, message: Message, delay: int) -> None:
        """Sends `message` after `delay` microseconds."""
        for arrival in self.network.arrivals((message.from_id, message.to_id), self.now + delay):
            self.at(arrival - self.now, self._deliver, message)

    def _deliver(self, message: Message) -> None:
        machine = self.machines[message.to_id]
        if not machine.up or (message.from_id, message.to_id) in self.network.cuts:
            return
        if machine.paused:
            machine.inbox.append(message)
            return
        self._step(machine, message)

    def hand_over(self, message: Message) -> None:
        """Delivers `message` now, whatever the state of its link, as if it had been in flight for long. Drops it if its
        receiver is down or paused.
        """
        machine = self.machines[message.to_id]
        if machine.up and not machine.paused:
            self._step(machine, message)

    def _step(self, machine: CoreMachine, message: Message) -> None:
        self._set_clock(machine)  # as a driver does first in each turn; after a pause the machine's clock is old
        self.thrift.replied(machine, message)
        machine.act(machine.raw.step, message)
        self._note(2, machine, message.term)
        for hook in self.on_receive:
            hook(machine, message)

    def wrote(self, machine: CoreMachine) -> None:
        """Starts a sync of the machine's pending writes if its disk is idle."""
        if not machine.disk.writing:
            self._start_sync(machine)

    def _start_sync(self, machine: CoreMachine) -> None:
        disk = machine.disk
        if disk.queued:
            disk.writing, disk.queued = disk.queued, []
            delay = self.disk_us[machine.id]
            self.at(delay + int(self.rng.random() * delay), self._synced, machine, machine.starts)
        # This fdatasync covers all Readys queued so far. Later ones wait for the next fdatasync.

    def _synced(self, machine: CoreMachine, starts: int) -> None:
        if not machine.up or machine.starts != starts:
            return
        if machine.paused:
            self.at(TICK_US, self._synced, machine, starts)
            return
        self._set_clock(machine)
        machine.synced(last_only=self.knobs.ack_last_only)
        if machine.up and not machine.disk.writing:
            self._start_sync(machine)
        self._note(3, machine, 0)

    def role_changed(self, machine: CoreMachine, soft: SoftState) -> None:
        """Handles a change of role. A leader that steps down forgets its waiting clients; a new leader gets a read."""
        raft = machine.raw.raft
        if soft.role is Role.LEADER:
            self.leader_terms.add(raft.term)
            self.at(int(self.rng.random() * 3 * TICK_US), self.visit, machine, machine.starts)
        elif self.pending[machine.id] or self.confirmed[machine.id]:
            self._forget(machine)
            self.seen["leader deposed with proposals"] += 1
        for hook in self.on_role:
            hook(machine, soft)

    def members_changed(self, machine: CoreMachine, undone: bool) -> None:
        """Counts changes that were undone, which are rare."""
        self.seen["change undone"] += undone

    def offered(self, machine: CoreMachine, offer: InstallSnapshot) -> None:
        """Passes the offer on to `on_offer`."""
        self.on_offer(machine, offer)

    def visit(self, machine: CoreMachine, starts: int) -> None:
        """Begins a read at a member that still leads: one that was just elected, before its term's first commit, or one
        that was deposed without knowing it."""
        if machine.up and machine.starts == starts and machine.raw.role is Role.LEADER and not machine.paused:
            if machine.raw.commit_index < machine.raw.term_start_index:
                self.seen["read before the term's first commit"] += 1
            self.ask_read(machine)

    # -- clients

    def ask_read(self, machine: CoreMachine) -> int:
        """Begins a read at `machine`, a leader; returns the read's number."""
        self._contexts += 1
        context = self._contexts
        self.reads[context] = self.history.known_length
        self._set_clock(machine)
        machine.act(machine.raw.read_index, context)
        return context

    def read_confirmed(self, machine: CoreMachine, context: int, index: int) -> None:
        """Answers the read once the member has applied the entries up to `index`."""
        if machine.state.applied_index >= index:
            self._answer_read(machine, context)
        else:
            self.confirmed[machine.id].append((context, index))

    def _answer_read(self, machine: CoreMachine, context: int) -> None:
        floor = self.reads.pop(context, None)
        if floor is not None:
            self.history.read(machine.id, machine.state.values, floor)

    def applied(self, machine: CoreMachine, entry: Entry, position: int) -> None:
        """Answers the operation and the reads that wait for `entry` at this member."""
        if entry.type == EntryType.MEMBERSHIP and entry.index > self.newest.index:
            self.newest = machine.state.members[-1]
            self.on_change(entry, self.newest)
        confirmed = self.confirmed[machine.id]
        if confirmed:
            ready = [context for context, index in confirmed if index <= entry.index]
            confirmed[:] = [pair for pair in confirmed if pair[1] > entry.index]
            for context in ready:
                self._answer_read(machine, context)
        waiting = self.pending[machine.id].pop(entry.index, None)
        if waiting is not None:
            self._answer(waiting, entry, position)

    def _answer(self, waiting: tuple[int, int, CoreClient], entry: Entry, position: int) -> None:
        term, operation, client = waiting
        if term != entry.term:
            return  # replaced by another leader's entry: the outcome is unknown, the client asks again
        self.history.ack(operation, position)
        clocks = WALL_START_MS + self.now // 1000
        if entry.timestamp_ms > clocks + LOG_TIME_SLACK_MS:
            raise PromiseBroken("log-time", f"{operation} is stamped {entry.timestamp_ms}, clocks say {clocks}")
        if client.open.pop(operation, 0) is None and not client.open:
            client.patience = 0
            self._wake(client, self.knobs.think_us)

    def _wake(self, client: CoreClient, within: int) -> None:
        """Schedules the client's next attempt; any other attempt scheduled for it becomes void."""
        client.round += 1
        self.at(int(self.rng.random() * within), self._client, client, client.round)

    def _client(self, client: CoreClient, attempt: int) -> None:
        if not self.writing or client.round != attempt:
            return
        machine = self._find_leader(client)
        if machine is None:
            self._wake(client, 2 * TICK_US)
            return
        if self.rng.random() < self.knobs.reads:
            self.ask_read(machine)
        if not client.open or self.rng.random() < 0.1:  # the client gives up: the outcome stays unknown
            client.fresh(self.knobs.burst)
        elif len(client.open) < len(client.batch):
            self.seen["part of a batch asked for again"] += 1
        client.round += 1
        client.patience = min(client.patience + 1, 8)
        self.at(client.patience * self.knobs.timeout_us, self._timed_out, client, client.round)
        self._set_clock(machine)
        machine.act(self.propose, machine, client)
        self.thrift.look(machine)

    def _find_leader(self, client: CoreClient) -> CoreMachine | None:
        """Returns the leader that the client knows if it still leads, else any member that believes that it leads; None
        if there is none.
        """
        known = self.machines.get(client.target)
        if known is not None and known.up and not known.paused and known.raw.role is Role.LEADER:
            return known
        leaders = [m for m in self.machines.values() if m.up and not m.paused and m.raw.role is Role.LEADER]
        if not leaders:
            return None
        machine = leaders[int(self.rng.random() * len(leaders))]
        client.target = machine.id
        return machine

    def propose(self, machine: CoreMachine, client: CoreClient) -> None:
        """Proposes the client's open operations at `machine`. Does nothing unless it leads and has few uncommitted
        entries (`backlog_max`). Stops at the first proposal that the core drops.
        """
        raw = machine.raw
        if raw.role is not Role.LEADER or raw.last_index - raw.commit_index > self.backlog_max:
            return
        pending = self.pending[machine.id]
        padding = bytes(self.knobs.payload)
        for operation in client.open:
            self.history.invoke(operation)
            handing_over = raw.raft.transferee
            try:
                entry = raw.propose(EntryType.MESSAGES, operation.to_bytes(4, "big") + padding, raw.log_time_ms())
            except ProposalDroppedError:
                self.seen["proposal dropped"] += 1
                return
            if handing_over and self.monitor is not None:
                raise PromiseBroken("handover", f"leader {machine.id} takes {entry.id} handing over to {handing_over}")
            pending[entry.index] = (entry.term, operation, client)

    def _timed_out(self, client: CoreClient, attempt: int) -> None:
        if client.round == attempt:
            client.target = NodeId(0)
            self._client(client, attempt)

    # -- views

    def up(self) -> list[CoreMachine]:
        """Returns the members that run."""
        return [machine for machine in self.machines.values() if machine.up]

    def leader(self) -> CoreMachine | None:
        """Returns the leader of the highest term; None if there is none."""
        leaders = [machine for machine in self.up() if machine.raw.role is Role.LEADER]
        return max(leaders, key=lambda machine: machine.raw.term, default=None)

    def group(self) -> list[CoreMachine]:
        """Returns the members that the newest applied MEMBERSHIP entry names, including learners."""
        return [self.machines[node] for node in self.newest.node_uuids]

    def voters(self) -> list[CoreMachine]:
        """Returns the voters among the members."""
        return [self.machines[node] for node in self.newest.voter_ids]

    def links_of(self, inside: list[NodeId]) -> list[Link]:
        """Returns the links in both directions between `inside` and the rest."""
        outside = [node for node in self.machines if node not in inside]
        return [link for a in inside for b in outside for link in ((a, b), (b, a))]


def entries_in(message: Message) -> int:
    """Returns the number of entries that the message carries."""
    return len(message.entries) if isinstance(message, AppendEntries) else 0

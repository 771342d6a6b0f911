"""The monitor of a simulated run, which sees all nodes at once: checks Raft's invariants after every driver turn,
compares the nodes' digests, and counts how often rare states occurred."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol
from zlib import crc32

from cluster.node.node import Node
from cluster.replication.append_lane import Persisted, PersistJob
from cluster.state.opening_cases import StateCase
from jepsen_like.invariants.held_appends import HeldCheck
from jepsen_like.invariants.raft_group import Before, GroupInvariants, check_state
from jepsen_like.sim.checks.allowed_losses import Excuses
from jepsen_like.sim.checks.expected_disk import DurableLog
from jepsen_like.sim.checks.handovers import Reigns
from jepsen_like.sim.checks.orderly_stops import OrderlyStops
from jepsen_like.sim.checks.refused_sends import Refusals
from jepsen_like.sim.checks.removal_check import RemovalCheck
from jepsen_like.sim.checks.tier_check import TierCheck
from jepsen_like.sim.checks.trim_check import TrimCheck
from jepsen_like.sim.machines.clock import START_WALL_MS
from jepsen_like.sim.machines.loop import Process, SimLoop
from jepsen_like.sim.machines.machine import PEER_PORT, SWEEP_ROWS, Machine
from jepsen_like.sim.machines.network import Endpoint
from jepsen_like.sim.machines.turn_bounds import drain_bound, name_of, turn_bound, unmetered
from raftlog.core.raft import Raft
from raftlog.errors import ImplausibleMessageError, InvariantViolationError
from raftlog.messages import RequestVoteReply
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.types import FLAG_ROLL, Entry, EntryId, NodeId, Role
from statemachine.rows.running_digest import count as sums_of

LOST_ROWS = f"state_{StateCase.LOST_ROWS.name.lower()}"
FULL_EVERY = 50
"""Number of driver turns of all nodes between two checks of every member's whole state."""
SOMETIMES = (
    "crash between append and ack", "vote granted, then crash", "leader died before its no-op committed",
    "leader isolated with an uncommitted suffix", "leader deposed with an uncommitted suffix", "suffix truncated",
    "torn tail cut", "fdatasync failed", "disk full", "power failure of a majority", "database lost applied rows",
    "entries replayed at a start", "restart with nothing above the sync mark", "unknown send found stored",
    "retry answered by an earlier copy", "leadership transferred", "segment rolled", "leader paused and deposed",
    "election without a killed leader", "request forwarded", "clock jumped on a leader", "group restarted as a whole",
    "rotten entry mended", "restart in the process", "snapshot installed", "log trimmed", "backfill finished",
    "learner added", "learner promoted", "member removed", "leader removed", "leader died during a change of members",
    "emptied disk replaced", "leader stopped in order", "leadership handed over whole",
    "connections forgotten by the network", "acknowledgements alone lost", "weak acknowledgement",
    "weakly acknowledged message lost", "apply held back on a leader", "refusal of a former leader late",
    "attacked in calm", "power lost right after a sync of rows", "leader killed before others applied",
    "turn of a loop took long", "turn of a loop took long in calm", "stalled just before a campaign",
    "send refused for now",
)  # fmt: skip
"""Rare states that a search over seeds must reach now and then; a state that is never reached is a blind spot."""


SEEN_BY_CLIENTS = frozenset(
    (
        "log",
        "foreign",
        "consumer",
        "register",
        "liveness",
        "protocol",
        "order",
        "topics",
        "answers",
        "honest",
        "locks",
        "transactions",
        "delayed",
        "failures",
        "resets",
        "queues",
        "legacies",
        "writes",
        "apart",
        "send order",
        "quotas",
    )
)
"""Names of the checkers that use nothing but operations of clients, as a black-box test would."""


def _judged_silence(why: str) -> bool:
    """Returns True if the reason for a change of role (`raftlog.core.role_change_reasons`) is that no message of a node
    came in time."""
    return "was silent" in why or "answered within" in why or "did not hear" in why


class Violation(NamedTuple):
    """A broken promise: the checker that found it, a description, and the virtual time in seconds and the number of the
    event at which it was found."""

    checker: str
    what: str
    at_s: float
    event: int


class AppliedUsers(Protocol):
    """A check that follows what nodes apply, such as that of users (`jepsen_like.sim.users.access_check`)."""

    def started(self, machine: Machine) -> None:
        """Called when a node has recovered, or has installed a snapshot."""

    def applied(self, machine: Machine, batch: Sequence[list[Entry]]) -> None:
        """Called when a node has applied entries."""

    def heard(self, machine: Machine) -> None:
        """Called when a node has learned that its apply lane is done."""


class AppliedTruth(Protocol):
    """A check of what groups of brokers have in common (`jepsen_like.sim.checks.truth_check`)."""

    def applied(self, machine: Machine) -> None:
        """Called when a node has applied entries."""


class Monitor:
    """The `MachineWatcher` of a run. It raises nothing into the nodes: its findings are in `violations`."""

    def __init__(self, loop: SimLoop, voters: Sequence[NodeId], *, black_box: bool = False) -> None:
        """`black_box`: the monitor looks at nothing inside the nodes, and only the checkers in `SEEN_BY_CLIENTS` may
        report."""
        self.loop = loop
        self.black_box = black_box
        self.machines: dict[NodeId, Machine] = {}
        self.violations: list[Violation] = []
        self.sometimes: Counter[str] = Counter(dict.fromkeys(SOMETIMES, 0))
        self.leaders: dict[int, NodeId] = {}
        """Term -> the node that led it."""
        self.followed: set[NodeId] = set()
        """Ids of the nodes that some member took for the leader after a turn of its driver, itself included; 0 stands
        for no leader. A leader that died in the turn of its election is among them only because other nodes followed it
        (seed 995000596).
        """
        self.log_time_off_ms = 0
        """Largest difference in milliseconds between log time and true time at the start of any leader's term. Two
        voters, one of which has a wrong clock, may elect a leader; when the node with that clock is away, log time
        jumps back to the true time."""
        self.on_turn: Callable[[Machine, Raft], None] = lambda machine, raft: None
        """Function that is called after each driver turn. The nemesis sets it for faults that wait for a state."""
        self.on_drained: Callable[[Machine, str, Sequence[Any], Any], None] = lambda machine, lane, batch, done: None
        """Function that is called after a lane's work, before the node gets the result."""
        self.on_reported: Callable[[Machine, str, Sequence[Any], Any], None] = lambda machine, lane, batch, done: None
        """Function that is called after the node has received the result of a lane's work."""
        self.on_ending: Callable[[], None] = lambda: None
        """Function that is called when a process ends, while its node can still be read."""
        self.log: Callable[[str], None] = lambda line: None
        self.hash = 0
        self._group = GroupInvariants()
        self._disks: dict[NodeId, DurableLog] = {}
        self.held: dict[NodeId, HeldCheck] = {}
        """Node -> the check of the appends that the node holds back as leader (`raftlog.core.held_appends`)."""
        self._turns: dict[NodeId, int] = {}
        self._before: dict[NodeId, Before] = {}
        self._process: dict[Process, Machine] = {}
        self._sums: dict[int, tuple[NodeId, dict[str, int]]] = {}
        self._checks = 0
        self._trims = TrimCheck(self.report)
        self._removals = RemovalCheck(self.report, SWEEP_ROWS)
        self.refusals: Refusals | None = None
        self.users: AppliedUsers | None = None
        """Check of users and access rules; None in runs without users."""
        self.levels: AppliedUsers | None = None
        """Check of the cluster's feature level; None unless nodes of two versions run."""
        self.truth: AppliedTruth | None = None
        """Check of copies of the truth (topics, users and all else that groups of brokers have in common); None unless
        a second group is added."""
        self.tier: TierCheck | None = None
        """Check of tiered storage; None in runs without it."""
        self.reigns = Reigns(self.report)
        self.excuses = Excuses(self.reigns, lambda: loop.now)
        self._orderly = OrderlyStops(self.report)
        self._writing: dict[NodeId, list[PersistJob]] = {}
        """Node -> jobs that its append lane is in the middle of, or was when its process ended, or has put aside."""

    def add(self, machine: Machine) -> None:
        """Registers a machine whose node is a member of the Raft group."""
        self.machines[machine.node_id] = machine
        self._disks[machine.node_id] = DurableLog(machine.genesis.entry())
        self.held[machine.node_id] = HeldCheck()

    def report(self, checker: str, what: str) -> None:
        """Records a violation and stops the loop, which ends the run."""
        if self.black_box and checker not in SEEN_BY_CLIENTS:
            return
        self.violations.append(Violation(checker, what, round(self.loop.now, 6), self.loop.events))
        self.log(f"VIOLATION {checker}: {what}")
        self.loop.stop()

    def _note(self, what: str) -> None:
        """Adds a line to the hash of the run's trace."""
        self.hash = crc32(f"{self.loop.now:.9f} {what}".encode(), self.hash)

    # --- work --------------------------------------------------------------------------------------------------------

    def long_turn(self, process: Process, callback: object, units: int) -> None:
        """Reports a node's callback that charged the meter more units than its bound."""
        machine = self._process.get(process)
        name = name_of(callback)
        if machine is not None and units > turn_bound(name):
            self.report(
                "work", f"node {machine.node_id}: one turn of {units} units, at most {turn_bound(name)}: {name}"
            )

    def worked(self, machine: Machine, lane: str, batch: Sequence[Any], units: int) -> None:
        """Reports a drain that charged more units than its bound: it would hold the GIL for long, on whichever thread
        it runs."""
        if units > drain_bound(lane):
            what = f"one drain of {units} units, at most {drain_bound(lane)}: lane {lane}, {len(batch)} jobs"
            self.report("work", f"node {machine.node_id}: {what}")

    # --- after each event --------------------------------------------------------------------------------------------

    def after_event(self, process: Process) -> None:
        """Checks a member after a callback of its process, if its driver has run a turn since the last check."""
        machine = self._process.get(process)
        if machine is None or machine.node is None or machine.process is not process:
            return
        turns = machine.node.driver.turns
        if turns == self._turns[machine.node_id]:
            return
        self._turns[machine.node_id] = turns
        raft = machine.node.raw.raft
        self.sometimes["request forwarded"] += machine.node.serving.remoting.forwarder.gate.forwarded.bytes > 0
        try:
            self._check(machine.node_id, raft)
            self._check_held(machine.node, raft)
        except InvariantViolationError as error:
            self.report("invariant", str(error))
            return
        self.on_turn(machine, raft)

    def _check(self, node_id: NodeId, raft: Raft) -> None:
        before = self._before[node_id]
        self.reigns.turn(node_id, raft, self.loop.now)
        self.sometimes["leadership handed over whole"] = self.reigns.handovers
        if not self.black_box:
            before.check(raft)
            self._group.observe(raft, self._disks)
            self._checks += 1
            if self._checks % FULL_EVERY == 0:
                self.check_all()
        self.followed.add(raft.leader_id)
        if raft.role is Role.LEADER and raft.term not in self.leaders:
            self._new_leader(node_id, raft)
            missing = self._node(node_id).integrity.installs.missing_bytes
            _require_whole(raft, 0 if self.black_box else missing)
        if raft.role is not before.role and _judged_silence(raft.why) and self._unread(node_id):
            self.report("silence", f"node {node_id}, whose peers' messages lie in its sockets, says: {raft.why}")
        if before.role is Role.LEADER and raft.role is not Role.LEADER:
            if raft.log.commit_index < before.tail.index:
                self.sometimes["leader deposed with an uncommitted suffix"] += 1
            self.log(f"node {node_id} no longer leads (term {raft.term})")
        self._before[node_id] = Before.of(raft)

    def _check_held(self, node: Node, raft: Raft) -> None:
        thrift = node.thrift
        if thrift is not None and not self.black_box and not node.inbox.turn_queued:
            looks_ms = None if thrift.timer is None else 1000 * thrift.timer.when()
            self.held[raft.id].look(thrift.appends, raft, 1000 * self.loop.now, looks_ms)
            _require_plain(node)

    def _unread(self, node_id: NodeId) -> bool:
        """Returns True if this node has just had a long turn, and its loop has not yet read the bytes that peers sent
        meanwhile.
        """
        process = self.machines[node_id].process
        assert process is not None
        sources = [getattr(handle._callback, "__self__", None) for handle in process.unread]  # type: ignore[attr-defined]
        return any(isinstance(one, Endpoint) and one.own[1] == PEER_PORT and not one.ended for one in sources)

    def _node(self, node_id: NodeId) -> Node:
        node = self.machines[node_id].node
        assert node is not None
        return node

    def _new_leader(self, node_id: NodeId, raft: Raft) -> None:
        previous = self.leaders.get(max(self.leaders, default=-1))
        if previous is not None and previous != node_id and self.machines[previous].up:
            self.sometimes["election without a killed leader"] += 1
        self.leaders[raft.term] = node_id
        off_ms = self._node(node_id).raw.log_time_ms() - START_WALL_MS - int(self.loop.now * 1000)
        self.log_time_off_ms = max(self.log_time_off_ms, abs(off_ms))
        self.log(f"node {node_id} leads term {raft.term}")
        self._note(f"leader {node_id} {raft.term}")

    def check_all(self) -> None:
        """Checks all of the state of every running member, and that no two members could win elections with disjoint
        majorities.

        Raises InvariantViolationError.
        """
        rafts = [machine.node.raw.raft for machine in self._process.values() if machine.node is not None]
        for raft in rafts:
            check_state(raft)
        self._group.check_elections(rafts)

    # --- Watcher -----------------------------------------------------------------------------------------------------

    def opened(self, machine: Machine) -> None:
        """Records that a process has opened its node's directory. If the same process ran a node before, that node is
        no longer watched."""
        assert machine.process is not None
        if self._process.pop(machine.process, None) is not None:
            self.sometimes["restart in the process"] += 1
            self.excuses.happened(machine.node_id, "end")
            self.reigns.gone(machine.node_id, self.loop.now)

    @unmetered
    def started(self, machine: Machine) -> None:
        """Checks a node that has recovered: everything that was reported durable to it must still be there."""
        node, node_id = machine.node, machine.node_id
        assert node is not None
        assert machine.process is not None
        log = node.storage.directory.log
        known = self._disks[node_id]
        for job in self._writing.pop(node_id, ()):
            known.forget_conflict(job.entries)
        if not self.black_box:
            self._compare(machine, known, log)
            self._orderly.started(machine)
            self._rows_as_told(machine, node)
            machine.kv.wrote = self._removals.wrote
        machine.was_installing = False

        def disbelieved(peer: NodeId, error: ImplausibleMessageError) -> None:
            if peer in self.machines:
                self.report("invariant", f"node {node_id} does not believe node {peer}: {error}")

        node.driver.implausible.add(disbelieved)
        self._turns[node_id] = -1
        self._before[node_id] = Before.of(node.raw.raft)
        self._process[machine.process] = machine
        self._count_recovery(machine, node)
        self.log(f"node {node_id} starts: last index {log.tail.index}, applied {node.state.applied.index}")
        self._note(f"start {node_id} {log.tail.index} {log.tail.header_crc}")
        self.same_sums(machine)
        self._trims.compare(machine)
        if self.refusals is not None:
            self.refusals.watch(node)
        if self.users is not None:
            self.users.started(machine)
        if self.levels is not None:
            self.levels.started(machine)

    def _rows_as_told(self, machine: Machine, node: Node) -> None:
        """Reports rows that are missing although the file RUN says that they were synced. The database keeps what a
        sync covered, so the node wrote RUN too early.
        """
        for name, text in node.storage.findings:
            if name == LOST_ROWS:
                self.report("durability", f"node {machine.node_id}: {text}")

    def _compare(self, machine: Machine, known: DurableLog, log: SegmentedLog) -> None:
        """Checks that what was on disk is still there, or that a snapshot has taken its place."""
        moved = log.first_index > known.first_index or log.tail.index > known.tail.index
        if machine.was_installing and moved:
            self.sometimes["snapshot installed"] += 1
            wrong = known.replaced(machine, log, self._group.is_committed)
        else:
            wrong = chain(known.missing(machine, log), known.learn(machine, log))
        for what in islice(wrong, 1):
            self.report("durability", what)

    def count_mended(self, machine: Machine) -> None:
        """Counts, at the end of a run, the damaged entries that were repaired."""
        assert machine.node is not None
        log = machine.node.storage.directory.log
        for index in machine.rotten:
            known = self._disks[machine.node_id].at(index)
            if known is not None and index >= log.first_index:
                self.sometimes["rotten entry mended"] += machine.bytes_of(known, log) == known.header + known.payload

    def _count_recovery(self, machine: Machine, node: Any) -> None:
        count = self.sometimes
        report = node.storage.directory.log.report
        count["database lost applied rows"] += machine.applied_lost
        machine.applied_lost = False
        machine.backfilling = node.integrity.installs.missing_bytes > 0
        count["torn tail cut"] += report.torn_bytes_cut > 0
        count["entries replayed at a start"] += report.entries - 1 > node.state.applied.index
        count["restart with nothing above the sync mark"] += not report.clean and not report.torn_bytes_cut

    def draining(self, machine: Machine, lane: str, batch: Sequence[Any]) -> None:
        """Records that an append lane begins a write. If the write is cut short, it may have removed the entries that
        it was to replace, and not yet replaced them."""
        if lane == "append":
            self._writing[machine.node_id] = [*self._writing.get(machine.node_id, ()), *batch]

    @unmetered
    def drained(self, machine: Machine, lane: str, batch: Sequence[Any], done: Any) -> None:
        """Checks the disk or the state machine after a lane has changed it, before the node gets the result."""
        if lane == "append" and not done.parked:
            jobs = self._writing.pop(machine.node_id, [])
            if not self.black_box:
                self._drained_append(machine.node_id, jobs, done)
        elif lane == "append":
            self.sometimes["disk full"] += 1  # the entries are checked when the lane goes on, or after a restart
        elif lane == "apply" and not self.black_box:
            self._drained_apply(machine, batch)
        self.on_drained(machine, lane, batch, done)

    def _drained_append(self, node_id: NodeId, jobs: Sequence[PersistJob], done: Persisted) -> None:
        disk = self._disks[node_id]
        for job in jobs:
            if job.entries:
                self.sometimes["suffix truncated"] += disk.write(job.entries)
                self.sometimes["segment rolled"] += any(entry.flags & FLAG_ROLL for entry in job.entries)
        last = done.last or EntryId(0, 0)
        self._note(f"disk {node_id} {last.term} {last.index}")

    def _drained_apply(self, machine: Machine, batch: Sequence[list[Entry]]) -> None:
        node = machine.node
        assert node is not None
        try:
            self._group.observe(node.raw.raft, self._disks)  # apply may run in the turn that learnt of the commit
            for run in batch:
                self._group.applied(node.raw.raft, run)
        except InvariantViolationError as error:
            self.report("invariant", str(error))
        self.same_sums(machine)
        self._trims.applied(machine, batch)
        self._trims.compare_pins(machine)
        self._removals.applied(machine, self._trims.counts(), newest=self._trims.is_newest(machine))
        if self.users is not None:
            self.users.applied(machine, batch)
        if self.levels is not None:
            self.levels.applied(machine, batch)
        if self.truth is not None:
            self.truth.applied(machine)
        if self.tier is not None:
            self.tier.applied(machine)
        self.excuses.applied(self._trims.counts())
        if machine.backfilling and not node.integrity.installs.missing_bytes:
            machine.backfilling = False
            self.sometimes["backfill finished"] += 1

    def same_sums(self, machine: Machine) -> None:
        """Checks that replicas which have applied up to the same index have equal digests of their rows."""
        assert machine.node is not None
        index = machine.node.state.applied.index
        sums = machine.kv.sums
        other, known = self._sums.setdefault(index, (machine.node_id, sums))
        if known != sums:
            families = ", ".join(name for name in sums if sums[name] != known[name])
            self.report("digest", f"nodes {other} and {machine.node_id} differ in {families} at applied index {index}")

    @unmetered
    def recount(self, machine: Machine) -> None:
        """Checks, when nothing changes any more, that a node has the rows that were written, and that its sums are
        those of its rows."""
        assert machine.node is not None
        if machine.kv.recount() != machine.kv.sums:
            self.report("digest", f"the rows of node {machine.node_id} are not those that were written")
        if sums_of(machine.kv) != machine.node.state.sums.totals:
            self.report("digest", f"the sums of node {machine.node_id} are not those of its rows")

    @unmetered
    def reported(self, machine: Machine, lane: str, batch: Sequence[Any], done: Any) -> None:
        """Runs the checks of retention and removal, and tells the users' check, once the node knows of a lane's
        work."""
        if lane == "retention" and not self.black_box:
            self._trims.files(machine)
            self._trims.goes_on(machine, self.loop.now)
            self._removals.goes_on(machine, self.loop.now)
        if lane == "apply" and self.users is not None:
            self.users.heard(machine)
        self.on_reported(machine, lane, batch, done)

    @unmetered
    def closed(self, machine: Machine, node: Node) -> None:
        """Reports to the check of orderly stops that a node has closed while its process still exists."""
        if not self.black_box:
            self._orderly.closed(machine, node)

    def retired(self, machine: Machine) -> None:
        """Records that a machine was removed for good, with its disk."""
        self.excuses.happened(machine.node_id, "gone")

    @unmetered
    def ended(self, machine: Machine, how: str) -> None:
        """Records that a process has ended, and how."""
        self.on_ending()
        self._orderly.ended(machine, how)
        self.excuses.ended(machine.node_id, how)
        self.reigns.gone(machine.node_id, self.loop.now)
        self.log(f"node {machine.node_id} ends: {how}")
        self._note(f"end {machine.node_id} {how}")
        if "fdatasync" in how:
            self.sometimes["fdatasync failed"] += 1
        others = [one for one in self.machines.values() if one is not machine and not one.up]
        if how == "power" and 2 * (len(others) + 1) > len(self.machines):
            self.sometimes["power failure of a majority"] += 1
        if machine.process is not None and self._process.pop(machine.process, None) is not None:
            self._count_change(machine)

    def _count_change(self, machine: Machine) -> None:
        assert machine.node is not None
        raft = machine.node.raw.raft
        if raft.role is Role.LEADER and raft.members.current.index > raft.log.commit_index:
            self.sometimes["leader died during a change of members"] += 1

    def broken(self, what: str, error: BaseException) -> None:
        """Reports a node that ended by itself, or that failed to start. `what` names the node."""
        self.report("node", f"{what}: {type(error).__name__}: {error}")


def _require_whole(raft: Raft, missing_bytes: int) -> None:
    if missing_bytes:
        raise InvariantViolationError(
            f"node {raft.id}, term {raft.term}: whoever leads has all of the log above the trim position, and "
            f"{missing_bytes} bytes are missing"
        )


def _require_plain(node: Node) -> None:
    """Raises InvariantViolationError if the node holds back an entry that contains a send of another level than
    quorum+fsync (0): such a send may wait for the disk of the very voter that does not get the entry yet."""
    assert node.thrift is not None
    for queued in node.thrift.appends.held.values():
        for entry in (entry for append in queued for entry in append.entries):
            pending = node.serving.proposals.pending_at(entry.index)
            levels = {send.ack for send in pending.sends} if pending is not None else set()
            if levels - {0}:
                raise InvariantViolationError(
                    f"node {node.node_id} holds entry {entry.id}, with sends of levels {levels}"
                )


def grants_vote(done: Persisted) -> bool:
    """Returns True if a granted vote is among what was just made durable."""
    return any(isinstance(m, RequestVoteReply) and m.granted and not m.pre_vote for m in done.messages)

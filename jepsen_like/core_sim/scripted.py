"""Plays hand-written schedules for the core, with the monitors and checkers of a random run.

`jepsen_like.script` defines the commands (CORE, SCHEDULES).
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from jepsen_like.core_sim.clients import CoreHistory
from jepsen_like.core_sim.commands import CoreCommands
from jepsen_like.core_sim.disk import SimDisk
from jepsen_like.core_sim.machine import CoreMachine, members_of
from jepsen_like.core_sim.monitor import CoreMonitor
from jepsen_like.core_sim.network import Link
from jepsen_like.core_sim.violation import PromiseBroken
from jepsen_like.script import ScriptError, lines_of, link_of, node_of
from raftlog.core.state.config import RaftConfig
from raftlog.errors import MembershipError, NotLeaderError, ProposalDroppedError
from raftlog.membership import Membership
from raftlog.messages import AppendEntries, AppendEntriesReply, InstallSnapshot, Message
from raftlog.types import NOBODY, Entry, EntryId, EntryType, NodeId, Role, SoftState

_REST_MAX = 2_000
_SETTLE_TICKS = 300
_WALL_MS = 1_000_000


class CoreStage(CoreCommands):
    """The members of a schedule, which do only what its commands say."""

    def __init__(self, *, black_box: bool = False) -> None:
        self.seen: Counter[str] = Counter()
        self.history = CoreHistory(self.seen)
        self.black_box = black_box
        self.machines: dict[NodeId, CoreMachine] = {}
        self.disks: dict[NodeId, SimDisk] = {}
        self.monitor: CoreMonitor | None = None
        self.links: dict[Link, deque[Message]] = {}
        self.cuts: set[Link] = set()
        self.saved: list[Message] = []
        self.offers: set[NodeId] = set()
        """Members that were offered a snapshot."""
        self.reads: dict[int, int] = {}
        self.confirmed: dict[NodeId, list[tuple[int, int]]] = {}
        self.pending: dict[NodeId, dict[int, tuple[int, int]]] = {}
        self.offsets: dict[NodeId, int] = {}
        self.operation = 0
        self.context = 0
        self.ticks = 0
        self.term = 0
        self.wasted = 0
        """The number of entries sent to a disk that has them, and of refused messages."""

    def play(self, script: str) -> None:
        """Carries out every line. Raises PromiseBroken, or ScriptError for a line that it does not understand."""
        for line in lines_of(script):
            self.perform(line)

    # -- Surroundings

    def send(self, machine: CoreMachine, message: Message) -> None:
        """Puts the message onto its link, unless the link is cut."""
        link = (message.from_id, message.to_id)
        if isinstance(message, AppendEntries):
            self.wasted += sum(entry.index <= self.disks[message.to_id].tail.index for entry in message.entries)
        elif isinstance(message, AppendEntriesReply):
            self.wasted += message.rejected
        if link not in self.cuts:
            self.links[link].append(message)

    def wrote(self, machine: CoreMachine) -> None:
        """Does nothing: the disk waits for the command `sync`."""

    def applied(self, machine: CoreMachine, entry: Entry, position: int) -> None:
        """Answers reads and the operation that waits for this entry."""
        waiting = self.pending[machine.id].pop(entry.index, None)
        if waiting is not None and waiting[0] == entry.term:
            self.history.ack(waiting[1], position)
        self._answer_reads(machine, entry.index)

    def read_confirmed(self, machine: CoreMachine, context: int, index: int) -> None:
        """Answers the read once the member has applied the entries up to `index`."""
        self.confirmed[machine.id].append((context, index))
        self._answer_reads(machine, machine.state.applied_index)

    def _answer_reads(self, machine: CoreMachine, applied: int) -> None:
        waiting = self.confirmed[machine.id]
        self.confirmed[machine.id] = [pair for pair in waiting if pair[1] > applied]
        for context, index in waiting:
            if index <= applied:
                self.history.read(machine.id, machine.state.values, self.reads.pop(context))

    def role_changed(self, machine: CoreMachine, soft: SoftState) -> None:
        """Forgets the operations that wait at a member once it no longer leads, because it then answers no client."""
        if soft.role is not Role.LEADER:
            self.pending[machine.id].clear()

    def members_changed(self, machine: CoreMachine, undone: bool) -> None:
        """Counts changes that were undone, which are rare."""
        self.seen["change undone"] += undone

    def offered(self, machine: CoreMachine, offer: InstallSnapshot) -> None:
        """Records the offer, which the command `install` or `settle` accepts."""
        self.seen["snapshot offered"] += 1
        self.offers.add(machine.id)

    # -- commands: the group

    def do_nodes(self, count: str, **options: str) -> None:
        fields = {"group_id": 1, "pre_vote": 0, "check_quorum": 0}
        fields |= {name: int(value) for name, value in options.items()}
        self.machines.clear()
        self.disks.clear()
        self.links.clear()
        self.first_members = members_of(NodeId(node) for node in range(1, int(count) + 1))
        self.config = RaftConfig(NodeId(1), **fields)  # type: ignore[arg-type]
        self.monitor = None if self.black_box else CoreMonitor(self.disks, self.seen)
        for node in self.first_members.voter_ids:
            self._make(node)
        for node in self.first_members.voter_ids:
            self.do_start(str(node))

    def do_join(self, node: str) -> None:
        self._make(node_of(node))
        self.do_start(node)

    def _make(self, node: NodeId) -> None:
        self.links |= {link: deque() for other in self.machines for link in ((node, other), (other, node))}
        self.disks[node] = SimDisk()
        self.offsets[node], self.pending[node], self.confirmed[node] = 0, {}, []
        config = replace(self.config, node_id=node)
        self.machines[node] = CoreMachine(config, self.first_members, self.disks[node], self.monitor, self)

    def change(self, node: NodeId, change: Callable[[Membership], Membership]) -> None:
        """Proposes a change of the members at `node`. A refusal is no error, because a schedule may come too late."""
        machine = self.machines[node]
        raw = machine.raw
        if machine.up:
            with suppress(MembershipError, NotLeaderError, ProposalDroppedError):
                machine.act(raw.propose_membership, change(raw.membership), raw.log_time_ms())

    def act(self, node: NodeId, action: str, *arguments: object) -> None:
        """Calls the method named `action` of that member's RawNode, with the clock set to now. Does nothing if the
        member is down."""
        self._act(self.machines[node], action, *arguments)

    def do_trim(self, node: str, first_index: str) -> None:
        machine = self._member(node)
        machine.state.durable_index = machine.state.applied_index
        machine.disk.trim(int(first_index))
        self._act(machine, "trimmed")

    def do_install(self, node: str, source: str) -> None:
        machine, giver = self._member(node), self._member(source)
        giver.state.durable_index = giver.state.applied_index
        self.do_crash(node)
        self.offers.discard(machine.id)
        machine.install(giver)
        machine.backfilling = False
        self.do_start(node)

    def do_gone(self, *nodes: str) -> None:
        for node in nodes:
            self.do_crash(node)
            self._member(node).left = True

    def _member(self, node: str) -> CoreMachine:
        return self.machines[node_of(node)]

    def _act(self, machine: CoreMachine, action: str, *arguments: object) -> None:
        if machine.up:
            now = _WALL_MS + self.ticks
            machine.raw.set_clock(now + self.offsets[machine.id], self.ticks)
            if self.monitor is not None:
                self.monitor.sane_clock_ms = now
            machine.act(getattr(machine.raw, action), *arguments)

    def do_start(self, node: str) -> None:
        machine = self._member(node)
        if not (machine.up or machine.halted or machine.left):
            machine.start(random.Random(f"{node}/{machine.starts}"))

    def do_crash(self, node: str, keep: str = "") -> None:
        machine = self._member(node)
        if keep == "torn":
            states = [ready.hard_state for ready in machine.disk.queued if ready.hard_state is not None]
            machine.disk.hard_state = states[-1] if states else machine.disk.hard_state
        elif keep:
            for ready in machine.disk.writing + machine.disk.queued:
                machine.disk.put(ready)
        machine.disk.writing, machine.disk.queued = [], []
        machine.state.durable_index = machine.state.applied_index
        machine.crash(random.Random(0))
        self.pending[machine.id].clear()
        self.confirmed[machine.id].clear()
        for link, queue in self.links.items():
            if machine.id == link[1]:
                queue.clear()

    def do_offer(self, link: str, index: str) -> None:
        a, b = link_of(link)
        raft = self._member(str(a)).raw.raft
        term = raft.log.term_at(int(index))
        assert term is not None
        self._deliver(InstallSnapshot(a, b, raft.term, int(index) + 1, EntryId(term, int(index))))

    def do_lose(self, node: str, index: str) -> None:
        machine = self._member(node)
        lost = machine.disk.lose_from(int(index))
        if self.monitor is not None:
            self.monitor.group.lost(machine.id, lost)

    def do_unfit(self, node: str) -> None:
        self._member(node).raw.hold_campaigns("unfit", True)

    def do_tick(self, node: str, count: str = "1") -> None:
        for _ in range(int(count)):
            self.ticks += 10
            self._act(self._member(node), "tick")

    def do_ticks(self, count: str) -> None:
        for _ in range(int(count)):
            self.ticks += 10
            for machine in self.machines.values():
                self._act(machine, "tick")
            self.do_run()

    def do_clock(self, node: str, offset_ms: str) -> None:
        self.offsets[node_of(node)] = int(offset_ms)

    # -- commands: clients

    def do_propose(self, node: str, count: str = "1") -> None:
        for _ in range(int(count)):
            self.operation += 1
            self.do_again(node)

    def do_again(self, node: str) -> None:
        machine = self._member(node)
        if machine.raw.role is Role.LEADER:
            machine.act(self._propose, machine)

    def _propose(self, machine: CoreMachine) -> None:
        handing_over = machine.raw.raft.transferee
        self.history.invoke(self.operation)
        payload = self.operation.to_bytes(4, "big")
        try:
            entry = machine.raw.propose(EntryType.MESSAGES, payload, machine.raw.log_time_ms())
        except ProposalDroppedError:
            return
        if handing_over != NOBODY and self.monitor is not None:
            raise PromiseBroken("handover", f"leader {machine.id} takes {entry.id} handing over to {handing_over}")
        self.pending[machine.id][entry.index] = (entry.term, self.operation)

    def do_read(self, node: str) -> None:
        machine = self._member(node)
        if machine.up and machine.raw.role is Role.LEADER:
            self.context += 1
            self.reads[self.context] = self.history.known_length
            self._act(machine, "read_index", self.context)

    # -- commands: disks and links

    def do_sync(self, node: str, count: str = "1000") -> None:
        machine = self._member(node)
        disk = machine.disk
        for _ in range(int(count)):
            if machine.up and disk.queued:
                disk.writing = [disk.queued.pop(0)]
                machine.synced(last_only=False)

    def _deliver(self, message: Message) -> None:
        self._act(self.machines[message.to_id], "step", message)

    def do_deliver(self, link: str, count: str = "1000") -> None:
        queue = self.links[link_of(link)]
        for _ in range(min(int(count), len(queue))):
            self._deliver(queue.popleft())

    def do_last(self, link: str) -> None:
        self._deliver(self.links[link_of(link)].pop())

    def do_repeat(self, link: str) -> None:
        self._deliver(self.links[link_of(link)][-1])

    def do_drop(self, link: str, count: str = "1000") -> None:
        queue = self.links[link_of(link)]
        for _ in range(min(int(count), len(queue))):
            queue.popleft()

    def do_save(self, link: str) -> None:
        self.saved.append(self.links[link_of(link)].pop())

    def do_late(self) -> None:
        saved, self.saved = self.saved, []
        for message in saved:
            self._deliver(message)

    def do_cut(self, *where: str) -> None:
        for word in where:
            links = [link_of(word)] if "->" in word else [link for link in self.links if node_of(word) in link]
            self.cuts.update(links)
            for link in links:
                self.links[link].clear()

    def do_heal(self) -> None:
        self.cuts.clear()

    def do_run(self) -> None:
        for _ in range(_REST_MAX):
            if not self._move():
                return
        if not self.black_box:  # clients see no events, only that the group makes no progress
            raise PromiseBroken("event-budget", "the group does not come to rest between two ticks")

    def _move(self) -> bool:
        moved = False
        for machine in self.machines.values():
            if machine.up and machine.disk.queued:
                self.do_sync(str(machine.id))
                moved = True
        for queue in self.links.values():
            if queue:
                self._deliver(queue.popleft())
                moved = True
        return moved

    # -- commands: judging

    def do_settle(self) -> None:
        self.do_heal()
        for node in self.machines:
            self.do_start(str(node))
        self.do_run()
        goal = 0
        for _ in range(_SETTLE_TICKS):
            self.do_ticks("1")
            leaders = [m for m in self.machines.values() if m.up and m.raw.role is Role.LEADER]
            lists = [m.state.values for m in self._group()]
            if goal and goal in self.history.acked and all(len(v) == len(lists[0]) and goal in v for v in lists):
                self._final()
                return
            leader = max(leaders, key=lambda m: m.raw.term, default=None)
            if leader is None:
                continue
            for node in sorted(self.offers):
                self.do_install(str(node), str(leader.id))
            if goal not in self.history.acked:
                self.do_propose(str(leader.id))
                goal = self.operation
        raise PromiseBroken("no-progress", f"no operation is applied everywhere within {_SETTLE_TICKS} ticks")

    def _group(self) -> list[CoreMachine]:
        """Returns the members that the newest applied MEMBERSHIP entry names, including learners."""
        newest = max((m.state.members[-1] for m in self.machines.values()), key=lambda members: members.index)
        return [self.machines[node] for node in newest.node_uuids]

    def _final(self) -> None:
        if self.monitor is not None:
            self.monitor.full(list(self.machines.values()))
        group = self._group()
        first = group[0].state.values
        for machine in self.machines.values():
            values = machine.state.values
            if values != (first if machine in group else first[: len(values)]):
                raise PromiseBroken(
                    "state-machine-safety", f"nodes {group[0].id} and {machine.id} hold different lists"
                )
        for machine in group:
            self.history.check_final(machine.id, machine.state.values)

    def do_check(self) -> None:
        if self.monitor is not None:
            self.monitor.full(list(self.machines.values()))

    def do_same(self) -> None:
        self.term = max(machine.raw.term for machine in self.machines.values() if machine.up)

    def do_expect(self, what: str, argument: str = "") -> None:
        if what == "same":
            what, argument = "term", str(self.term)
        if what == "once" and self.wasted:
            raise PromiseBroken("message-budget", f"{self.wasted} entries or refusals in vain, without any fault")
        if what == "answered" and self.reads:
            raise PromiseBroken("quiescent-failover", f"reads {sorted(self.reads)} are not answered")
        if what == "no-leader" and self._member(argument).raw.role is Role.LEADER:
            raise PromiseBroken("stale-leader", f"node {argument} still leads, cut off from everyone")
        if what == "term" and any(m.raw.term != int(argument) for m in self.machines.values() if m.up):
            terms = {int(node): m.raw.term for node, m in self.machines.items() if m.up}
            raise PromiseBroken(
                "disruption", f"terms {terms}, everyone was in {argument} and nothing asked for another"
            )
        if what not in ("answered", "no-leader", "term", "once"):
            raise ScriptError(f"expect {what!r}: choose answered, no-leader, term, same or once")

"""Plays hand-written schedules for the core, with the monitors and checkers of a random run.

`jepsen_like.script` defines the commands (CORE, SCHEDULES).
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from jepsen_like.core_sim.clients import History
from jepsen_like.core_sim.commands import CoreCommands
from jepsen_like.core_sim.disk import SimDisk
from jepsen_like.core_sim.member import Member, members_of
from jepsen_like.core_sim.monitor import Monitor
from jepsen_like.core_sim.network import Link
from jepsen_like.core_sim.violation import Violation
from jepsen_like.script import ScriptError, lines_of, link_of, node_of
from raftlog.core.state.config import RaftConfig
from raftlog.errors import MembershipError, NotLeaderError, ProposalDroppedError
from raftlog.membership import Membership
from raftlog.messages import AppendEntries, AppendEntriesReply, InstallSnapshot, Message
from raftlog.types import NOBODY, Entry, EntryId, EntryType, NodeId, Role, SoftState

_REST_MAX = 2_000
_SETTLE_TICKS = 300
_WALL_MS = 1_000_000


class Stage(CoreCommands):
    """The members of a schedule, which do only what its commands say."""

    def __init__(self, *, black_box: bool = False) -> None:
        self.seen: Counter[str] = Counter()
        self.history = History(self.seen)
        self.black_box = black_box
        self.members: dict[NodeId, Member] = {}
        self.disks: dict[NodeId, SimDisk] = {}
        self.monitor: Monitor | None = None
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
        """Carries out every line. Raises Violation, or ScriptError for a line that it does not understand."""
        for line in lines_of(script):
            self.perform(line)

    # -- Surroundings

    def send(self, member: Member, message: Message) -> None:
        """Puts the message onto its link, unless the link is cut."""
        link = (message.from_id, message.to_id)
        if isinstance(message, AppendEntries):
            self.wasted += sum(entry.index <= self.disks[message.to_id].tail.index for entry in message.entries)
        elif isinstance(message, AppendEntriesReply):
            self.wasted += message.rejected
        if link not in self.cuts:
            self.links[link].append(message)

    def wrote(self, member: Member) -> None:
        """Does nothing: the disk waits for the command `sync`."""

    def applied(self, member: Member, entry: Entry, position: int) -> None:
        """Answers reads and the operation that waits for this entry."""
        waiting = self.pending[member.id].pop(entry.index, None)
        if waiting is not None and waiting[0] == entry.term:
            self.history.ack(waiting[1], position)
        self._answer_reads(member, entry.index)

    def read_confirmed(self, member: Member, context: int, index: int) -> None:
        """Answers the read once the member has applied the entries up to `index`."""
        self.confirmed[member.id].append((context, index))
        self._answer_reads(member, member.machine.applied_index)

    def _answer_reads(self, member: Member, applied: int) -> None:
        waiting = self.confirmed[member.id]
        self.confirmed[member.id] = [pair for pair in waiting if pair[1] > applied]
        for context, index in waiting:
            if index <= applied:
                self.history.read(member.id, member.machine.values, self.reads.pop(context))

    def role_changed(self, member: Member, soft: SoftState) -> None:
        """Forgets the operations that wait at a member once it no longer leads, because it then answers no client."""
        if soft.role is not Role.LEADER:
            self.pending[member.id].clear()

    def members_changed(self, member: Member, undone: bool) -> None:
        """Counts changes that were undone, which are rare."""
        self.seen["change undone"] += undone

    def offered(self, member: Member, offer: InstallSnapshot) -> None:
        """Records the offer, which the command `install` or `settle` accepts."""
        self.seen["snapshot offered"] += 1
        self.offers.add(member.id)

    # -- commands: the group

    def do_nodes(self, count: str, **options: str) -> None:
        fields = {"group_id": 1, "pre_vote": 0, "check_quorum": 0}
        fields |= {name: int(value) for name, value in options.items()}
        self.members.clear()
        self.disks.clear()
        self.links.clear()
        self.first_members = members_of(NodeId(node) for node in range(1, int(count) + 1))
        self.config = RaftConfig(NodeId(1), **fields)  # type: ignore[arg-type]
        self.monitor = None if self.black_box else Monitor(self.disks, self.seen)
        for node in self.first_members.voter_ids:
            self._make(node)
        for node in self.first_members.voter_ids:
            self.do_start(str(node))

    def do_join(self, node: str) -> None:
        self._make(node_of(node))
        self.do_start(node)

    def _make(self, node: NodeId) -> None:
        self.links |= {link: deque() for other in self.members for link in ((node, other), (other, node))}
        self.disks[node] = SimDisk()
        self.offsets[node], self.pending[node], self.confirmed[node] = 0, {}, []
        config = replace(self.config, node_id=node)
        self.members[node] = Member(config, self.first_members, self.disks[node], self.monitor, self)

    def change(self, node: NodeId, change: Callable[[Membership], Membership]) -> None:
        """Proposes a change of the members at `node`. A refusal is no error, because a schedule may come too late."""
        member = self.members[node]
        raw = member.raw
        if member.up:
            with suppress(MembershipError, NotLeaderError, ProposalDroppedError):
                member.act(raw.propose_membership, change(raw.membership), raw.log_time_ms())

    def act(self, node: NodeId, action: str, *arguments: object) -> None:
        """Calls a method of that member's RawNode."""
        self._act(self.members[node], action, *arguments)

    def do_trim(self, node: str, first_index: str) -> None:
        member = self._member(node)
        member.machine.durable_index = member.machine.applied_index
        member.disk.trim(int(first_index))
        self._act(member, "trimmed")

    def do_install(self, node: str, source: str) -> None:
        member, giver = self._member(node), self._member(source)
        giver.machine.durable_index = giver.machine.applied_index
        self.do_crash(node)
        self.offers.discard(member.id)
        member.install(giver)
        member.backfilling = False
        self.do_start(node)

    def do_gone(self, *nodes: str) -> None:
        for node in nodes:
            self.do_crash(node)
            self._member(node).left = True

    def _member(self, node: str) -> Member:
        return self.members[node_of(node)]

    def _act(self, member: Member, action: str, *arguments: object) -> None:
        if member.up:
            now = _WALL_MS + self.ticks
            member.raw.set_clock(now + self.offsets[member.id], self.ticks)
            if self.monitor is not None:
                self.monitor.sane_clock_ms = now
            member.act(getattr(member.raw, action), *arguments)

    def do_start(self, node: str) -> None:
        member = self._member(node)
        if not (member.up or member.halted or member.left):
            member.start(random.Random(f"{node}/{member.starts}"))

    def do_crash(self, node: str, keep: str = "") -> None:
        member = self._member(node)
        if keep == "torn":
            states = [ready.hard_state for ready in member.disk.queued if ready.hard_state is not None]
            member.disk.hard_state = states[-1] if states else member.disk.hard_state
        elif keep:
            for ready in member.disk.writing + member.disk.queued:
                member.disk.put(ready)
        member.disk.writing, member.disk.queued = [], []
        member.machine.durable_index = member.machine.applied_index
        member.crash(random.Random(0))
        self.pending[member.id].clear()
        self.confirmed[member.id].clear()
        for link, queue in self.links.items():
            if member.id == link[1]:
                queue.clear()

    def do_offer(self, link: str, index: str) -> None:
        a, b = link_of(link)
        raft = self._member(str(a)).raw.raft
        term = raft.log.term_at(int(index))
        assert term is not None
        self._deliver(InstallSnapshot(a, b, raft.term, int(index) + 1, EntryId(term, int(index))))

    def do_lose(self, node: str, index: str) -> None:
        member = self._member(node)
        lost = member.disk.lose_from(int(index))
        if self.monitor is not None:
            self.monitor.group.lost(member.id, lost)

    def do_unfit(self, node: str) -> None:
        self._member(node).raw.hold_campaigns("unfit", True)

    def do_tick(self, node: str, count: str = "1") -> None:
        for _ in range(int(count)):
            self.ticks += 10
            self._act(self._member(node), "tick")

    def do_ticks(self, count: str) -> None:
        for _ in range(int(count)):
            self.ticks += 10
            for member in self.members.values():
                self._act(member, "tick")
            self.do_run()

    def do_clock(self, node: str, offset_ms: str) -> None:
        self.offsets[node_of(node)] = int(offset_ms)

    # -- commands: clients

    def do_propose(self, node: str, count: str = "1") -> None:
        for _ in range(int(count)):
            self.operation += 1
            self.do_again(node)

    def do_again(self, node: str) -> None:
        member = self._member(node)
        if member.raw.role is Role.LEADER:
            member.act(self._propose, member)

    def _propose(self, member: Member) -> None:
        handing_over = member.raw.raft.transferee
        self.history.invoke(self.operation)
        payload = self.operation.to_bytes(4, "big")
        try:
            entry = member.raw.propose(EntryType.MESSAGES, payload, member.raw.log_time_ms())
        except ProposalDroppedError:
            return
        if handing_over != NOBODY and self.monitor is not None:
            raise Violation("handover", f"leader {member.id} takes {entry.id} handing over to {handing_over}")
        self.pending[member.id][entry.index] = (entry.term, self.operation)

    def do_read(self, node: str) -> None:
        member = self._member(node)
        if member.up and member.raw.role is Role.LEADER:
            self.context += 1
            self.reads[self.context] = self.history.known_length
            self._act(member, "read_index", self.context)

    # -- commands: disks and links

    def do_sync(self, node: str, count: str = "1000") -> None:
        member = self._member(node)
        disk = member.disk
        for _ in range(int(count)):
            if member.up and disk.queued:
                disk.writing = [disk.queued.pop(0)]
                member.synced(last_only=False)

    def _deliver(self, message: Message) -> None:
        self._act(self.members[message.to_id], "step", message)

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
        if not self.black_box:  # clients see no events, but a group that gets nowhere
            raise Violation("event-budget", "the group does not come to rest between two ticks")

    def _move(self) -> bool:
        moved = False
        for member in self.members.values():
            if member.up and member.disk.queued:
                self.do_sync(str(member.id))
                moved = True
        for queue in self.links.values():
            if queue:
                self._deliver(queue.popleft())
                moved = True
        return moved

    # -- commands: judging

    def do_settle(self) -> None:
        self.do_heal()
        for node in self.members:
            self.do_start(str(node))
        self.do_run()
        goal = 0
        for _ in range(_SETTLE_TICKS):
            self.do_ticks("1")
            leaders = [m for m in self.members.values() if m.up and m.raw.role is Role.LEADER]
            lists = [m.machine.values for m in self._group()]
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
        raise Violation("no-progress", f"no operation is applied everywhere within {_SETTLE_TICKS} ticks")

    def _group(self) -> list[Member]:
        """Returns the members that the newest applied entry names."""
        newest = max((m.machine.members[-1] for m in self.members.values()), key=lambda members: members.index)
        return [self.members[node] for node in newest.node_uuids]

    def _final(self) -> None:
        if self.monitor is not None:
            self.monitor.full(list(self.members.values()))
        group = self._group()
        first = group[0].machine.values
        for member in self.members.values():
            values = member.machine.values
            if values != (first if member in group else first[: len(values)]):
                raise Violation("state-machine-safety", f"nodes {group[0].id} and {member.id} hold different lists")
        for member in group:
            self.history.check_final(member.id, member.machine.values)

    def do_check(self) -> None:
        if self.monitor is not None:
            self.monitor.full(list(self.members.values()))

    def do_same(self) -> None:
        self.term = max(member.raw.term for member in self.members.values() if member.up)

    def do_expect(self, what: str, argument: str = "") -> None:
        if what == "same":
            what, argument = "term", str(self.term)
        if what == "once" and self.wasted:
            raise Violation("message-budget", f"{self.wasted} entries or refusals in vain, without any fault")
        if what == "answered" and self.reads:
            raise Violation("quiescent-failover", f"reads {sorted(self.reads)} are not answered")
        if what == "no-leader" and self._member(argument).raw.role is Role.LEADER:
            raise Violation("stale-leader", f"node {argument} still leads, cut off from everyone")
        if what == "term" and any(m.raw.term != int(argument) for m in self.members.values() if m.up):
            terms = {int(node): m.raw.term for node, m in self.members.items() if m.up}
            raise Violation("disruption", f"terms {terms}, everyone was in {argument} and nothing asked for another")
        if what not in ("answered", "no-leader", "term", "once"):
            raise ScriptError(f"expect {what!r}: choose answered, no-leader, term, same or once")

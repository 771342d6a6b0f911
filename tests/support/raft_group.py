"""A Raft group in memory: real cores, disks that sync when told to, a network that delivers when told to.

Invariants are checked after every action. Nothing here is random: who drives it decides what happens next.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from jepsen_like.invariants.raft_group import Before, GroupInvariants, check_state
from raftlog.core.held_appends import HeldAppends
from raftlog.core.raw_node import RawNode, Ready
from raftlog.core.state.config import RaftConfig
from raftlog.errors import DamagedLogError, OutOfRangeError
from raftlog.frame import check_follows, genesis_entry, make_entry, tail_after
from raftlog.membership import Membership, decode
from raftlog.messages import AppendEntriesReply, Message
from raftlog.types import EMPTY_TAIL, NOBODY, Entry, EntryType, HardState, LogTail, NodeId, Voter

GROUP = 1
GENESIS = genesis_entry(b"genesis", timestamp_ms=1000, group_id=GROUP)


def members_of(voters: Iterable[int]) -> Membership:
    """The members that GENESIS names."""
    return Membership(UUID(int=1), tuple(Voter(NodeId(node), UUID(int=node)) for node in voters))


def chain(terms: Iterable[int]) -> list[Entry]:
    """GENESIS and one entry per term; equal beginnings give equal entries in every build."""
    entries = [GENESIS]
    tail = tail_after(EMPTY_TAIL, GENESIS)
    for term in terms:
        entry = make_entry(
            tail,
            term=term,
            entry_type=EntryType.MESSAGES,
            payload=f"{term}/{tail.index + 1}".encode(),
            timestamp_ms=1000,
            group_id=GROUP,
            segment_size=1 << 30,
        )
        entries.append(entry)
        tail = tail_after(tail, entry)
    return entries


@dataclass
class Disk:
    """The state that survives a crash, and the writes under way, in order. A StoredLog of what was synced."""

    entries: list[Entry] = field(default_factory=lambda: [GENESIS])
    hard_state: HardState = field(default_factory=lambda: HardState(0, NOBODY, 0))
    applied_index: int = 0
    writes: deque[Ready] = field(default_factory=deque)
    tails: list[LogTail] = field(default_factory=list)
    damaged: range = range(0)
    """Indexes that cannot be read."""
    withheld: int | None = None
    """Term in which the end of the log was lost; None if it never was."""
    first_index: int = 0
    """Entries below this index are trimmed: kept here, so that they can come back, and never read."""

    def __post_init__(self) -> None:
        self.replace(0, self.entries)

    @property
    def previous(self) -> LogTail:
        return self.tails[self.first_index - 1] if self.first_index else EMPTY_TAIL

    @property
    def tail(self) -> LogTail:
        return self.tails[-1] if self.tails else EMPTY_TAIL

    def members(self, first: Membership) -> list[Membership]:
        """Returns the memberships that a start finds: `first`, and those in the log."""
        return [first, *(decode(entry) for entry in self.entries if entry.type == EntryType.MEMBERSHIP)]

    def term_ranges(self) -> list[tuple[int, int]]:
        held = self.entries[self.first_index :]
        return [(e.index, e.term) for at, e in enumerate(held) if not at or held[at - 1].term != e.term]

    def read_entries(self, low: int, high: int, bytes_max: int) -> list[Entry]:
        if low < self.first_index:
            raise OutOfRangeError(f"entry {low} is trimmed: the log begins at {self.first_index}")
        found: list[Entry] = []
        for entry in self.entries[low:high]:
            if entry.index in self.damaged:
                if found:
                    break
                first, last = self.damaged[0], self.damaged[-1]
                raise DamagedLogError(
                    f"entries {first} to {last} are damaged",
                    position=entry.position,
                    first_index=first,
                    last_index=last,
                )
            if found and sum(e.size for e in found) + entry.size > bytes_max:
                break
            found.append(entry)
        assert found, f"read of [{low}, {high}) beyond the disk's last index {self.tail.index}"
        return found

    def replace(self, index: int, entries: list[Entry]) -> None:
        self.damaged = range(self.damaged.start, min(self.damaged.stop, index))
        self.entries = self.entries[:index]
        self.tails = self.tails[:index]
        for entry in entries:
            check_follows(self.tail, entry)
            self.tails.append(tail_after(self.tail, entry))
            self.entries.append(entry)

    def sync_one(self) -> Ready:
        """Completes the oldest write."""
        ready = self.writes.popleft()
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state
        if ready.entries:
            self.replace(ready.entries[0].index, ready.entries)
        return ready


def raw_of(
    disk: Disk,
    config: RaftConfig | None = None,
    *,
    voters: Iterable[int] = (1, 2, 3),
    members: Sequence[Membership] | None = None,
    applied_index: int = 0,
    vote_withheld_since: int | None = None,
) -> RawNode:
    """One member, node 3 unless `config` says otherwise, as it starts from this disk."""
    return RawNode(
        config or RaftConfig(NodeId(3), GROUP),
        hard_state=disk.hard_state,
        log=disk,
        members=[members_of(voters)] if members is None else members,
        applied_index=applied_index,
        rng=random.Random(1),
        vote_withheld_since=vote_withheld_since,
    )


class Group:
    """Members, their disks, and the messages on their way."""

    def __init__(self, config_of: Callable[[NodeId], RaftConfig], disks: dict[NodeId, Disk], seed: int = 1) -> None:
        self.voters = tuple(sorted(disks))
        self.config_of = config_of
        self.disks = disks
        self.seed = seed
        self.network: list[Message] = []
        self.first_members = members_of(self.voters)
        self.invariants = GroupInvariants()
        self.nodes: dict[NodeId, RawNode] = {}
        self.appends: dict[NodeId, HeldAppends] = {}
        """What members hold back that are thrifty; the others have none."""
        self.now_ms = 0.0
        self.starts = 0
        for node in self.voters:
            self.start(node)

    def start(self, node: NodeId) -> None:
        """Starts `node` from its disk."""
        disk = self.disks[node]
        self.starts += 1
        self.nodes[node] = RawNode(
            self.config_of(node),
            hard_state=disk.hard_state,
            log=disk,
            members=disk.members(self.first_members),
            applied_index=disk.applied_index,
            rng=random.Random(self.seed * 1000 + self.starts),
            vote_withheld_since=disk.withheld,
        )
        self.nodes[node].hold_campaigns("damage", bool(disk.damaged))
        self.nodes[node].raft.members.changed = False  # stories begin after the first Ready
        self.observe(node)

    def join(self, node: NodeId) -> None:
        """A new node with nothing but GENESIS; no member yet."""
        self.disks[node] = Disk()
        self.start(node)

    def trim(self, node: NodeId, first_index: int) -> None:
        """The log of `node` begins at `first_index` from now on: higher, as it was trimmed, or lower, as more came."""
        disk = self.disks[node]
        assert first_index <= max(disk.applied_index, disk.first_index), "the last entry that is applied stays"
        disk.first_index = first_index
        if node in self.nodes:
            self.act(node, RawNode.trimmed)

    def install(self, node: NodeId, source: NodeId) -> None:
        """Follows an offer as the node does: a checkpoint of `source`, the log with its last entry, a restart."""
        theirs, disk = self.disks[source], self.disks[node]
        at = theirs.applied_index
        if node in self.nodes:
            self.crash(node)
        if disk.entries[at : at + 1] != theirs.entries[at : at + 1]:  # else it went on by itself meanwhile
            disk.entries, disk.tails, disk.damaged = theirs.entries[: at + 1], theirs.tails[: at + 1], range(0)
            disk.hard_state = disk.hard_state._replace(term=max(disk.hard_state.term, disk.tail.term))
            disk.first_index, disk.applied_index = min(theirs.first_index, at), at
        self.start(node)

    def lose_from(self, node: NodeId, index: int) -> None:
        """The end of a crashed node's log is gone, as when its blocks cannot be read: noted before anything else."""
        disk = self.disks[node]
        self.invariants.lost(node, disk.entries[index:])
        disk.withheld = disk.hard_state.term
        disk.replace(index, [])

    def release(self, node: NodeId) -> None:
        """Releases the vote as the node does once it has caught up: the note first, then the core."""
        self.act(node, lambda raw: raw.release_vote())
        self.disks[node].withheld = None

    def crash(self, node: NodeId) -> None:
        """Loses all that was not synced."""
        self.disks[node].writes.clear()
        del self.nodes[node]
        self.appends.pop(node, None)

    def act(self, node: NodeId, action: Callable[[RawNode], object]) -> object:
        """Runs one input on `node` and checks the invariants, also when it raised."""
        raw = self.nodes[node]
        before = Before.of(raw.raft)
        try:
            return action(raw)
        finally:
            before.check(raw.raft)
            self.observe(node)

    def observe(self, node: NodeId) -> None:
        check_state(self.nodes[node].raft)
        self.invariants.observe(self.nodes[node].raft, self.disks)
        self.invariants.check_elections([raw.raft for raw in self.nodes.values()])

    def take_ready(self, node: NodeId) -> Ready:
        """Takes a Ready: messages to the network, writes to the disk's queue, applies at once."""
        raw = self.nodes[node]
        ready = raw.ready()
        appends = self.appends.get(node)
        self.network.extend(ready.messages if appends is None else appends.leave(ready.messages, self.now_ms))
        if ready.hard_state is not None or ready.entries or ready.messages_after_persist:
            self.disks[node].writes.append(ready)
        if ready.committed_entries:
            expected = list(range(raw.applied_index + 1, raw.applied_index + 1 + len(ready.committed_entries)))
            assert [entry.index for entry in ready.committed_entries] == expected
            assert ready.committed_entries[-1].index <= self.disks[node].tail.index, "applied before it was on disk"
            self.invariants.applied(raw.raft, ready.committed_entries)
            raw.applied(ready.committed_entries[-1].index)
        self.observe(node)
        return ready

    def sync(self, node: NodeId) -> Ready:
        """Completes the oldest write of `node`, acks it, releases its messages."""
        ready = self.disks[node].sync_one()
        if ready.entries:
            self.act(node, lambda raw: raw.persisted(ready.entries[-1].id))
        for message in ready.messages_after_persist:
            if message.to_id == node:
                self.deliver(message)
            else:
                self.network.append(message)
        return ready

    def deliver(self, message: Message) -> None:
        """Steps `message` at its target, if that is up."""
        if message.to_id in self.appends and isinstance(message, AppendEntriesReply):
            self.appends[message.to_id].on_reply(message, self.now_ms)
        if message.to_id in self.nodes:
            self.act(message.to_id, lambda raw: raw.step(message))

    def leaders(self) -> list[NodeId]:
        return [node for node, raw in self.nodes.items() if raw.leader_id == node]

"""Node 1 as the leader of three, with a quick disk; the test plays nodes 2 and 3."""

from __future__ import annotations

from collections.abc import Callable

from raftlog.core.state.config import RaftConfig
from raftlog.messages import AppendEntries, AppendEntriesReply, RequestVoteReply
from raftlog.types import NOBODY, EntryId, HardState, NodeId, Role
from tests.support.raft_group import Disk, chain, raw_of

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
_NO_HINT = EntryId(0, -1)


class LoneLeader:
    """Node 1 leads term 2. The first `old` entries are on its disk only; its no-op is sent, and nobody accepted it."""

    def __init__(self, old: int, config_of: Callable[[int], RaftConfig], voter: NodeId) -> None:
        """`config_of` makes the configuration from the size of the smallest entries; `voter` elects the leader."""
        entries = chain([1] * old)
        self.old = old
        self.disk = Disk(entries, HardState(1, NOBODY, 0))
        self.frame = entries[1].end_position - entries[1].position
        """Bytes of the smallest entries; later ones are a byte longer."""
        self.raw = raw_of(self.disk, config_of(self.frame))
        self.raw.campaign()
        self.work()
        for node in (ONE, voter):
            self.raw.step(RequestVoteReply(node, ONE, 2, True, False, 0))
        assert self.raw.role is Role.LEADER
        self.work()

    def work(self) -> list[AppendEntries]:
        """Returns the entries that the core sends, after the disk has synced what the core wrote."""
        sent: list[AppendEntries] = []
        while self.raw.has_ready():
            ready = self.raw.ready()
            if ready.entries:
                self.disk.replace(ready.entries[0].index, ready.entries)
                self.raw.persisted(ready.entries[-1].id)
            if ready.committed_entries:
                self.raw.applied(ready.committed_entries[-1].index)
            sent += [m for m in ready.messages if isinstance(m, AppendEntries)]
        return sent

    def accept(self, *nodes: NodeId, match: int) -> None:
        """These nodes have the log up to `match`."""
        for node in nodes:
            self.raw.step(AppendEntriesReply(node, ONE, 2, False, match, _NO_HINT))

    def lacks_all(self, *nodes: NodeId) -> list[AppendEntries]:
        """These nodes refuse the no-op, for they have nothing; returns what the leader sends then."""
        for node in nodes:
            self.raw.step(AppendEntriesReply(node, ONE, 2, True, self.old, EntryId(0, 0)))
        return self.work()

"""The core as the members' service sees it: changes are committed at once, unless a test holds them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from raftlog import membership as memberships
from raftlog.core.status import PeerStatus
from raftlog.errors import RaftLogError
from raftlog.frame import make_entry
from raftlog.membership import Membership
from raftlog.types import NOBODY, Entry, EntryType, LogTail, NodeId, Role, Voter

CLUSTER = UUID(int=1)


class FakeRaw:
    """The core of node `own`, which leads if the test says so."""

    def __init__(self, own: int, leads: Callable[[], bool], tail: Callable[[], LogTail]) -> None:
        self.raft: Any = SimpleNamespace(id=NodeId(own), members=SimpleNamespace(peers={}))
        self.membership = Membership(CLUSTER, tuple(Voter(NodeId(node), UUID(int=node)) for node in (1, 2, 3)))
        self.raft.members.history = [self.membership]
        self.committed_membership_index = 0
        self.lag = {2: 12, 3: 0}
        """Peer -> entries it is behind; one without is silent."""
        self.unfit: set[int] = set()
        self.held: dict[str, bool] = {}
        self.refuses: RaftLogError | None = None
        self.commits: Callable[[Entry], None] | None = None
        """Called with a proposed entry; None: nothing happens to it yet."""
        self.term, self.term_start_index, self.transferee = 3, 0, NOBODY
        self._leads = leads
        self._tail = tail

    @property
    def role(self) -> Role:
        return Role.LEADER if self._leads() else Role.FOLLOWER

    @property
    def memberships_that_count(self) -> list[Membership]:
        return [each for each in self.raft.members.history if each.index >= self.committed_membership_index]

    @property
    def commit_index(self) -> int:
        return self._tail().index

    def status(self) -> Any:
        own = self.raft.id
        members = [node for node in self.membership.node_uuids if node != own] if self._leads() else []
        self.raft.members.peers = {node: SimpleNamespace(is_live=node in self.lag) for node in members}
        peers = tuple(self._peer(node, self.lag.get(node, 0)) for node in members)
        return SimpleNamespace(
            peers=peers, term=self.term, voters=self.membership.voter_ids, last_index=90, transferee=self.transferee
        )

    def _peer(self, node: NodeId, lag: int) -> PeerStatus:
        match = 90 - lag
        return PeerStatus(node, match, match + 1, "REPLICATE", True, lag, 0, 0, node not in self.unfit, True)

    def hold_campaigns(self, reason: str, held: bool) -> None:
        self.held[reason] = held

    def log_time_ms(self) -> int:
        return 0

    def propose_membership(self, new: Membership, timestamp_ms: int) -> Entry:
        if self.refuses is not None:
            raise self.refuses
        entry = make_entry(
            self._tail(),
            term=self.term,
            entry_type=EntryType.MEMBERSHIP,
            payload=memberships.encode(new),
            timestamp_ms=timestamp_ms,
            group_id=0,
            segment_size=1 << 26,
        )
        self.membership = memberships.decode(entry)
        self.raft.members.history.append(self.membership)
        if self.commits is not None:
            self.commits(entry)
        return entry

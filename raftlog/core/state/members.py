"""The members of the group according to this node's log, and the leader's progress table.

"A server always uses the latest configuration in its log, regardless of whether the entry is committed" (thesis, 4.1).
A MEMBERSHIP entry therefore takes effect when it is appended, on the leader and on followers, and ends if it is
truncated. `history` keeps the entries that may take effect again: the newest at or below the commit index, and all
after it.

`voters` determines quorums. `peers` receive the log: voters and learners except this node.
"""

from __future__ import annotations

from collections.abc import Sequence

from raftlog.core.state.progress import Inflights, Progress
from raftlog.core.state.quorum import agreed_value, majority
from raftlog.membership import Membership
from raftlog.types import NodeId


class Members:
    """The members in force, and what the leader knows about each peer."""

    __slots__ = (
        "_bytes_max",
        "_messages_max",
        "changed",
        "history",
        "is_own_voter",
        "learners",
        "own_id",
        "peers",
        "voters",
    )

    def __init__(self, own_id: NodeId, history: Sequence[Membership], messages_max: int, bytes_max: int) -> None:
        """`history`: memberships ascending by index, the first of them committed. Raises ValueError if it is empty, or
        two have the same index or are in another order."""
        indexes = [membership.index for membership in history]
        if not history or indexes != sorted(set(indexes)):
            raise ValueError(f"members at the indexes {indexes}: give at least one, each at a higher index")
        self.own_id = own_id
        self.history = list(history)
        """The memberships that may be in force, never empty. The first is committed, the last is in force."""
        self.voters: tuple[NodeId, ...] = ()
        """The ids of the voters in force, ascending."""
        self.learners: tuple[NodeId, ...] = ()
        self.is_own_voter = False
        self.changed = False
        """True if the members in force changed since the last Ready."""
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self.peers: dict[NodeId, Progress] = {}
        self._take_effect()
        self.reset(0)

    # -- what is in force

    @property
    def current(self) -> Membership:
        """The members in force."""
        return self.history[-1]

    def committed_index(self, commit_index: int) -> int:
        """Returns the index of the newest MEMBERSHIP entry at or below `commit_index`; 0 if there is none."""
        return next((each.index for each in reversed(self.history) if each.index <= commit_index), 0)

    def that_count(self, commit_index: int) -> list[Membership]:
        """Returns the newest membership committed at `commit_index` and all later ones, ascending. Any of them may turn
        out to be the one in force."""
        committed = self.committed_index(commit_index)
        return [each for each in self.history if each.index >= committed]

    def append(self, membership: Membership, commit_index: int) -> None:
        """Makes `membership`, whose entry was appended to the log, take effect."""
        history = self.history
        while len(history) > 1 and history[1].index <= commit_index:
            del history[0]
        history.append(membership)
        self._take_effect()

    def truncate_from(self, index: int) -> None:
        """Forgets the memberships at `index` and above, because the log was truncated there. The members of the last
        one before are in force again."""
        if self.history[-1].index < index:
            return
        while self.history[-1].index >= index:
            del self.history[-1]
        self._take_effect()

    def _take_effect(self) -> None:
        self.voters = tuple(sorted(self.current.voter_ids))
        self.learners = tuple(sorted(self.current.learner_ids))
        self.is_own_voter = self.own_id in self.voters
        self.changed = True

    # -- quorums

    @property
    def quorum(self) -> int:
        """The number of voters that make a majority."""
        return majority(len(self.voters))

    def is_voter(self, node: NodeId) -> bool:
        """Returns True if `node` counts in elections and commits."""
        return node in self.voters

    def other_voters(self) -> list[NodeId]:
        """Returns the voters except this node, in the order of their ids."""
        return [node for node in self.voters if node != self.own_id]

    def agreed_match(self, own_persisted: int) -> int:
        """Returns the largest index that a majority of voters has on disk; this node's own disk counts only if it is a
        voter."""
        peers = self.peers
        own = self.own_id
        matches: list[int] = []
        for node in self.voters:  # a comprehension would cost each acknowledgement one more call
            matches.append(own_persisted if node == own else peers[node].match_index)  # noqa: PERF401
        return agreed_value(matches)

    def agreed_round(self, own_round: int) -> int:
        """Returns the newest heartbeat round that a majority of voters has confirmed."""
        peers = self.peers
        own = self.own_id
        return agreed_value([own_round if node == own else peers[node].acked_round for node in self.voters])

    def live(self, voters: Sequence[NodeId]) -> list[NodeId]:
        """Returns those in `voters` that sent something recently (`Progress.is_live`), and this node if it is in
        `voters`."""
        peers = self.peers
        return [node for node in voters if node == self.own_id or (node in peers and peers[node].is_live)]

    def active_voters(self) -> int:
        """Returns the number of voters heard from since the last call, this node included, and starts a new
        observation."""
        active = 0
        for node in self.voters:
            active += node == self.own_id or self.peers[node].recent_active
        for progress in self.peers.values():
            progress.was_active, progress.recent_active = progress.recent_active, False
        return active

    # -- peers

    def reset(self, next_index: int) -> None:
        """Forgets what is known about the peers, because a new term starts."""
        self.peers = {}
        self.meet_peers(next_index)

    def meet_peers(self, next_index: int) -> None:
        """Makes a Progress that starts at `next_index` for each new member in force, and drops those of former members.
        Members that stay keep theirs."""
        known = self.peers
        self.peers = {
            node: known.get(node) or Progress(next_index, Inflights(self._messages_max, self._bytes_max))
            for node in sorted((*self.voters, *self.learners))
            if node != self.own_id
        }

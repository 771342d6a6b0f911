"""The state of one member of a Raft group and its transitions between roles. Each message is handled in the file of its
name.

Two rules of this package:

1. Nothing here waits, sleeps, sends or writes. Inputs are ticks, messages, proposals and acks; outputs are collected in
   `messages`, `messages_after_persist` and the log, and leave through `RawNode.ready`.
2. A message that depends on the term, the vote or an entry being on disk goes to `send_after_persist`; everything else
   to `send`. The candidate's own RequestVote depends on its vote: a candidate that wins, replicates and crashes before
   its term is durable could win the same term again and put two entries at one (term, index).

Handlers are functions `on_<message>(raft, message)`; `step.py` contains the table and the rules about terms.
"""

from __future__ import annotations

import random

from raftlog.core.state.config import RaftConfig
from raftlog.core.state.log import RaftLog
from raftlog.core.state.log_time import LogTime
from raftlog.core.state.members import Members
from raftlog.core.state.read_queue import ReadQueue
from raftlog.errors import InvariantViolationError
from raftlog.messages import InstallSnapshot, Message
from raftlog.types import NOBODY, HardState, NodeId, Role, SoftState


class Raft:
    """The state of one member of a Raft group."""

    __slots__ = (
        "asked_ms",
        "catch_up_budget",
        "config",
        "election_elapsed",
        "election_timeout",
        "heard_commit_index",
        "heard_ms",
        "heartbeat_elapsed",
        "holds",
        "id",
        "install",
        "leader_id",
        "log",
        "log_time",
        "members",
        "messages",
        "messages_after_persist",
        "monotonic_ms",
        "probe_elapsed",
        "reads",
        "replication_due",
        "rng",
        "role",
        "send_budget",
        "term",
        "term_start_index",
        "transfer",
        "transfer_elapsed",
        "transferee",
        "unsent",
        "vote",
        "vote_clocks",
        "vote_withheld_since",
        "votes",
        "wall_ms",
        "why",
    )

    def __init__(
        self,
        config: RaftConfig,
        hard_state: HardState,
        log: RaftLog,
        members: Members,
        rng: random.Random,
        vote_withheld_since: int | None = None,
    ) -> None:
        self.config = config
        self.id = config.node_id
        self.log = log
        self.members = members
        self.rng = rng
        self.term = hard_state.term
        """The current term; it never decreases."""
        self.vote = hard_state.vote
        """The node that got this node's vote in `term`. Set once per term; only a *higher* term clears it."""
        self.holds: set[str] = set()
        """Reasons why this member must not campaign. It still grants votes truthfully (eligibility.py)."""
        self.vote_withheld_since = vote_withheld_since
        """The term in which entries that this node had acknowledged were lost; None if none were (eligibility.py)."""
        self.catch_up_budget: int | None = None
        """The bytes that may still be read from disk for followers; None for no limit. The driver grants them."""
        self.role = Role.FOLLOWER
        self.leader_id = NOBODY
        self.why = ""
        """The reason for the member's role or campaign, in a few words for the log (role_change_reasons.py). No
        decision uses it."""
        self.wall_ms = 0
        self.monotonic_ms = 0
        self.messages: list[Message] = []
        self.messages_after_persist: list[Message] = []
        self.install: InstallSnapshot | None = None
        """The newest snapshot offer that this log needs, because it cannot continue otherwise; the driver takes it from
        here."""
        # used in elections
        self.votes: dict[NodeId, bool] = {}
        """The voters' answers to the current campaign: node -> True if granted."""
        self.vote_clocks: dict[NodeId, int] = {}
        """Wall clock of each granting voter minus this node's monotonic clock (log_time.py)."""
        self.asked_ms = 0
        """Monotonic time at which the current campaign began."""
        self.transfer = False
        """True if the leader asked for the current campaign (leadership transfer)."""
        self.election_elapsed = 0
        """The number of ticks since the leader was heard or a campaign began; on a leader, since the last check-quorum.
        """
        self.election_timeout = 0
        self.heard_ms: int | None = None
        """The monotonic time, in milliseconds, at which the leader was last heard, or at which this member stopped
        leading; None if neither has happened. Ticks stop while the process is stopped, and this clock does not.
        Promises to other nodes are therefore measured by this clock, and silence is measured in ticks.
        """
        self.heard_commit_index = 0
        """The highest index that a leader named as committed; this log may end below it. No decision uses it."""
        # used by a leader
        self.heartbeat_elapsed = 0
        self.probe_elapsed = 0
        """Ticks since a leader last allowed probes (`Progress.probe_due`). Reads send heartbeats of their own, which
        put off the next regular one, but must not put off probes."""
        self.log_time = LogTime()
        self.term_start_index = -1
        """Index of the no-op of the leader's own term: once it is committed, all earlier entries are (Raft paper 5.4.2,
        8)."""
        self.reads = ReadQueue()
        self.transferee = NOBODY
        self.transfer_elapsed = 0
        self.replication_due = False
        """True if entries were proposed since the last broadcast. `RawNode.ready` then sends them, several proposals in
        one message."""
        self._begin()

    def _begin(self) -> None:
        lost = self.vote_withheld_since
        if lost is not None and self.term <= lost:
            self.term, self.vote = lost + 1, NOBODY
        self.send_budget = self.config.turn_bytes_max
        """The bytes of entries that may still be sent in this turn of the driver. A single message may exceed it."""
        self.unsent: dict[NodeId, None] = {}
        """Followers whose windows have room, but for which this turn's budget is used up; the one that has waited
        longest comes first."""
        self.draw_election_timeout()
        if self.log.tail.term > self.term:
            raise InvariantViolationError(
                f"the log ends in term {self.log.tail.term}, the hard state is at term {self.term}: "
                "a term is on disk before any of its entries"
            )

    @property
    def leads(self) -> bool:
        """True if this member is the leader of its term."""
        return self.role is Role.LEADER

    # -- output

    def send(self, message: Message) -> None:
        """Queues a message that may be sent at once."""
        self.messages.append(message)

    def send_after_persist(self, message: Message) -> None:
        """Queues a message that may be sent only when the hard state and every entry so far are on disk."""
        self.messages_after_persist.append(message)

    @property
    def hard_state(self) -> HardState:
        """Term, vote, and the part of the commit index that this node's own disk covers."""
        return HardState(self.term, self.vote, self.log.applicable_index)

    @property
    def soft_state(self) -> SoftState:
        """The leader and this member's role."""
        return SoftState(self.leader_id, self.role)

    @property
    def hears_leader(self) -> bool:
        """True if this member leads, or has received a message of a leader within the minimum election timeout. It then
        ignores campaigns (thesis 4.2.3)."""
        return self.leader_id != NOBODY and self.election_elapsed < self.config.election_ticks

    # -- transitions

    def draw_election_timeout(self) -> None:
        """Draws a new random election timeout, so that split votes are rare (Raft paper 5.2)."""
        ticks = self.config.election_ticks
        self.election_timeout = ticks + self.rng.randrange(ticks)

    def _reset(self, term: int) -> None:
        if term < self.term:
            raise InvariantViolationError(f"term would fall from {self.term} to {term}")
        if term > self.term:
            self.term = term
            self.vote = NOBODY
        self.leader_id = NOBODY
        self.votes = {}
        self.vote_clocks = {}
        self.transfer = False
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        self.probe_elapsed = 0
        self.draw_election_timeout()
        self.transferee = NOBODY
        self.replication_due = False
        self.unsent.clear()
        self.reads.clear()

    def become_follower(self, term: int, leader_id: NodeId) -> None:
        """Becomes a follower of `leader_id` (NOBODY if unknown) in `term`; in the same term the vote stays."""
        if self.role is Role.LEADER:
            self.heard_ms = self.monotonic_ms
        self._reset(term)
        self.role = Role.FOLLOWER
        self.leader_id = leader_id
        if leader_id != NOBODY:
            self.why = f"node {leader_id} leads"

    def become_pre_candidate(self) -> None:
        """Becomes a pre-candidate, which asks whether a campaign would succeed. Term and vote stay as they are (thesis
        9.6)."""
        self._reset(self.term)
        self.role = Role.PRE_CANDIDATE

    def become_candidate(self) -> None:
        """Starts a new term with a vote for itself; both are durable before any message reveals them."""
        self._reset(self.term + 1)
        self.vote = self.id
        self.role = Role.CANDIDATE

    def become_leader(self) -> None:
        """Becomes the leader of its term. The caller appends the no-op. Raises InvariantViolationError unless the
        member is a candidate."""
        if self.role is not Role.CANDIDATE:
            raise InvariantViolationError(f"{self.role.name} of term {self.term} would become its leader")
        self._reset(self.term)
        self.role = Role.LEADER
        self.leader_id = self.id
        self.members.reset(self.log.tail.index + 1)

"""The door to the core: inputs as calls, outputs as one value, `Ready`."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from raftlog import membership as memberships
from raftlog.core import (
    commit,
    election,
    fit,
    membership_change,
    plausible,
    read_index,
    reasons,
    replication,
    status,
    step,
    transfer,
)
from raftlog.core.config import RaftConfig
from raftlog.core.log import LogReader, RaftLog
from raftlog.core.members import Members
from raftlog.core.raft import Raft
from raftlog.errors import (
    DamagedLogError,
    ImplausibleMessageError,
    InvariantViolationError,
    NotLeaderError,
    ProposalDroppedError,
)
from raftlog.frame import make_entry
from raftlog.membership import Membership
from raftlog.messages import InstallSnapshot, Message
from raftlog.types import NOBODY, Entry, EntryId, EntryType, HardState, LogTail, NodeId, ReadState, Role, SoftState


class Ready(NamedTuple):
    """Everything the core wants done. The caller's duties:

    1. Send `messages` at once, in any order, losing any.
    2. Hand `hard_state` (if not None) and `entries` to the disk, in the order of the Readys. Write and fdatasync the
       hard state before the entries. If `entries[0].index` is not above the last index stored, truncate there first.
    3. Send `messages_after_persist` once the hard state and entries of this Ready *and of every Ready before it* are on
       disk, even if this Ready brings neither. Messages to the own node go back into `step`, at the same moment.
    4. When entries are on disk, call `persisted(id of the last one)`, once per Ready with entries, in order.
       (One fdatasync may cover many Readys; acks that skip all but the last are accepted, and may be credited late.)
    5. Apply `committed_entries` in order and call `applied(index)`. Each entry is handed out once, never above what
       `persisted` reported, never before it is committed.
    6. `read_states`: answer each read once the applied index has reached its index. When `soft_state` shows that
       leadership ended, reads without a state are never answered: fail them.
    7. `members_changed`: `RawNode.membership` is another; connect to its members and let the others go.
    8. `install`: the leader has trimmed what this node's log lacks. Fetch a checkpoint and the log from it on, from any
       peer, and start from them; the offer comes again until then, and meanwhile everything goes on as usual.
    9. A disk that fails duty 2 ends the node: take no further Ready, send nothing more.

    Steps 1 and 2 of one Ready may overlap; the next Ready may be taken while the disk still works on this one.
    """

    hard_state: HardState | None
    """Changed term or vote. The commit index rides along; it alone never makes a hard state to write."""
    soft_state: SoftState | None
    """Changed role or leader."""
    entries: list[Entry]
    messages: list[Message]
    messages_after_persist: list[Message]
    committed_entries: list[Entry]
    read_states: list[ReadState]
    members_changed: bool
    """Appended, truncated, or the first Ready."""
    install: InstallSnapshot | None


class RawNode:
    """One member of a Raft group; not thread-safe, owned by one driver. Any InvariantViolationError is final, but not
    an ImplausibleMessageError."""

    __slots__ = ("_apply_waits", "_applying", "_applying_bytes", "_hard", "_soft", "raft")

    def __init__(
        self,
        config: RaftConfig,
        *,
        hard_state: HardState,
        log: LogReader,
        members: Sequence[Membership],
        applied_index: int,
        rng: random.Random,
        vote_withheld_since: int | None = None,
    ) -> None:
        """Starts as a follower. `applied_index`: what the state machine durably holds, -1 for nothing.
        `members`: ascending by index, the newest that the state machine holds (else GENESIS), then all that the log
        has above. The node need not be one of them: it then follows whoever leads, and never campaigns.
        `vote_withheld_since`: the hard state's term when it was found that the disk lost acknowledged entries (fit.py).

        Raises ValueError on a bad configuration, InvariantViolationError if disk and state machine contradict.
        """
        config.validate()
        raft_log = RaftLog(
            log,
            commit_index=hard_state.commit_index,
            applied_index=applied_index,
            cache_bytes_max=config.cache_bytes_max,
        )
        table = Members(config.node_id, members, config.inflight_messages_max, config.inflight_bytes_max)
        if table.current.index > raft_log.tail.index:
            raise InvariantViolationError(
                f"members changed at index {table.current.index}, the log on disk ends at {raft_log.tail.index}"
            )
        self.raft = Raft(config, hard_state, raft_log, table, rng, vote_withheld_since)
        self._hard = (hard_state.term, hard_state.vote)
        self._soft = self.raft.soft_state
        self._applying: deque[tuple[int, int]] = deque()
        self._applying_bytes = 0
        self._apply_waits = False
        """The next entry to apply is damaged on disk."""

    # -- inputs

    def set_clock(self, wall_ms: int, monotonic_ms: int) -> None:
        """The clocks of this turn; they reach only votes, heartbeat replies and log time."""
        self.raft.wall_ms = wall_ms
        self.raft.monotonic_ms = monotonic_ms

    def tick(self) -> None:
        """One tick passed."""
        step.tick(self.raft)

    def step(self, message: Message) -> None:
        """A message arrived, from a peer or (duty 3) from this node.

        Raises ImplausibleMessageError, having changed nothing but, perhaps, term and leader, if it cannot be true.
        """
        raft = self.raft
        check = plausible.CHECKS.get(type(message))
        try:
            if check is not None and message.from_id != raft.id and (why := check(raft, message)):
                raise ImplausibleMessageError(why)
            step.step(raft, message)
        except ImplausibleMessageError as error:
            error.peer = message.from_id
            raise

    def campaign(self) -> None:
        """Acts as if the election timeout had passed; nothing on a leader."""
        if self.raft.role is not Role.LEADER:
            election.start(self.raft)

    def propose(self, entry_type: int, payload: bytes, timestamp_ms: int) -> Entry:
        """Stamps and appends one entry; its id tells later whether it was committed or replaced.

        Raises NotLeaderError or ProposalDroppedError (transfer under way): nothing was proposed; FrameError if the
        payload is too long. The timestamp is raised to the last entry's.
        """
        if entry_type == EntryType.MEMBERSHIP:
            raise ValueError("members change by propose_membership, which checks that they may")
        return self._append(entry_type, payload, timestamp_ms)

    def propose_membership(self, new: Membership, timestamp_ms: int) -> Entry:
        """Appends `new`, made from `membership` by a function of raftlog/membership.py; in force from now on.

        Raises as `propose` does, and MembershipError: a change is under way, nothing of this term is committed yet, it
        is more than one change, a learner is not ready to be promoted, or too few of the new voters answer.
        """
        self._check_may_propose()
        membership_change.check(self.raft, new)
        entry = self._append(EntryType.MEMBERSHIP, memberships.encode(new), timestamp_ms)
        membership_change.on_proposed(self.raft, entry)
        commit.advance(self.raft)  # a smaller majority may have had entries below for long,
        read_index.confirm(self.raft)  # and have echoed a round: nobody says so twice
        return entry

    def _check_may_propose(self) -> None:
        raft = self.raft
        if raft.role is not Role.LEADER:
            raise NotLeaderError(f"node {raft.id} is {raft.role.name} in term {raft.term}; leader: {raft.leader_id}")
        if raft.transferee != NOBODY:
            raise ProposalDroppedError(f"leadership is being transferred to node {raft.transferee}: retry in a moment")

    def _append(self, entry_type: int, payload: bytes, timestamp_ms: int) -> Entry:
        self._check_may_propose()
        raft = self.raft
        config = raft.config
        entry = make_entry(
            raft.log.tail,
            term=raft.term,
            entry_type=entry_type,
            payload=payload,
            timestamp_ms=timestamp_ms,
            group_id=config.group_id,
            segment_size=config.segment_size,
        )
        raft.log.append(entry)
        raft.replication_due = True
        return entry

    def read_index(self, context: int) -> None:
        """Asks for a linearizable read; a ReadState with `context` follows. Raises NotLeaderError.

        On a leader without a committed entry of its own term the read waits. It is dropped when leadership ends.
        """
        read_index.request(self.raft, context)

    def transfer_leadership(self, to: NodeId) -> None:
        """Hands leadership to `to`, or gives up after an election timeout. Raises NotLeaderError, ValueError."""
        transfer.start(self.raft, to)

    def resign(self) -> None:
        """A leader follows nobody from now on; nothing on any other member."""
        if self.raft.role is Role.LEADER:
            reasons.resigned(self.raft)
            self.raft.become_follower(self.raft.term, NOBODY)

    def release_vote(self) -> None:
        """Takes part in elections again. Raises InvariantViolationError unless `caught_up_with_leader`."""
        if not fit.has_caught_up(self.raft):
            raise InvariantViolationError(
                f"node {self.raft.id} would vote in term {self.raft.term} before its log, which ends at "
                f"{self.raft.log.tail.id} and was cut in term {self.raft.vote_withheld_since}, has caught up"
            )
        self.raft.vote_withheld_since = None

    def hold_campaigns(self, reason: str, held: bool) -> None:
        """Keeps this node from campaigning (True) or no longer (False), as far as `reason` goes: others may hold too.

        It ends a campaign under way; a leader leads on. The leader hears of it, and hands over to nobody unfit.
        """
        fit.hold_campaigns(self.raft, reason, held)

    def trimmed(self) -> None:
        """The first index of the LogReader moved: up, as entries were trimmed, or down, as older ones came back."""
        replication.trimmed(self.raft)

    def repaired(self) -> None:
        """A damaged range of the log can be read again: what waited for it goes on."""
        self._apply_waits = False
        self.raft.replication_due = self.raft.replication_due or self.raft.role is Role.LEADER

    def peer_closed(self, peer: NodeId) -> None:
        """The TCP connection from `peer` closed: if it led, a pre-vote starts at once or within two ticks."""
        election.on_peer_closed(self.raft, peer)

    def persisted(self, entry_id: EntryId) -> None:
        """Everything up to `entry_id` is on the own disk. Ignored if the log no longer holds that entry."""
        raft = self.raft
        if raft.log.persisted(entry_id) and raft.role is Role.LEADER:
            commit.advance(raft)

    def applied(self, index: int) -> None:
        """The state machine holds everything up to `index`. InvariantViolationError if that was not handed out."""
        self.raft.log.applied(index)
        applying = self._applying
        while applying and applying[0][0] <= index:
            self._applying_bytes -= applying.popleft()[1]

    # -- outputs

    def has_ready(self) -> bool:
        """True if `ready` would hold anything."""
        raft = self.raft
        log = raft.log
        return bool(
            raft.messages
            or raft.messages_after_persist
            or log.handed_index != log.tail.index
            or (log.applying_index < log.persisted_index and self._can_apply())
            or raft.reads.states
            or (raft.term, raft.vote) != self._hard
            or (raft.leader_id, raft.role) != self._soft  # a SoftState, but for making one
            or raft.replication_due
            or raft.members.changed
            or raft.install is not None
            or (raft.reads.waiting and read_index.is_due(raft))
        )

    def ready(self) -> Ready:
        """Takes everything; nothing is handed out twice. The caller owns the lists."""
        raft = self.raft
        if raft.replication_due:
            replication.broadcast(raft)
        if raft.reads.waiting and read_index.is_due(raft):
            read_index.start_round(raft)
        messages, raft.messages = raft.messages, []
        after_persist, raft.messages_after_persist = raft.messages_after_persist, []
        read_states, raft.reads.states = raft.reads.states, []
        members_changed, raft.members.changed = raft.members.changed, False
        install, raft.install = raft.install, None
        return Ready(
            self._take_hard_state(),
            self._take_soft_state(),
            raft.log.hand_to_disk(),
            messages,
            after_persist,
            self._take_committed(),
            read_states,
            members_changed,
            install,
        )

    def _take_hard_state(self) -> HardState | None:
        raft = self.raft
        if (raft.term, raft.vote) == self._hard:
            return None
        self._hard = (raft.term, raft.vote)
        return raft.hard_state

    def _take_soft_state(self) -> SoftState | None:
        raft = self.raft
        if (raft.leader_id, raft.role) == self._soft:
            return None
        self._soft = raft.soft_state
        return self._soft

    def _can_apply(self) -> bool:
        log = self.raft.log
        if self._apply_waits:
            return False
        return log.applying_index < log.applicable_index and self._applying_bytes < self.raft.config.applying_bytes_max

    def _take_committed(self) -> list[Entry]:
        if not self._can_apply():
            return []
        try:
            entries = self.raft.log.hand_to_apply(self.raft.config.apply_bytes_max)
        except DamagedLogError:
            self._apply_waits = True
            return []
        size = entries[-1].end_position - entries[0].position
        self._applying.append((entries[-1].index, size))
        self._applying_bytes += size
        return entries

    # -- state

    @property
    def tail(self) -> LogTail:
        """The last entry, persisted or not: the next one starts at `tail.end_position`."""
        return self.raft.log.tail

    @property
    def term(self) -> int:
        """Current term."""
        return self.raft.term

    @property
    def role(self) -> Role:
        """Current role."""
        return self.raft.role

    @property
    def why(self) -> str:
        """Why it took its role, or began its campaign; for a log."""
        return self.raft.why

    @property
    def leader_id(self) -> NodeId:
        """Leader of the current term as far as known, 0 if not."""
        return self.raft.leader_id

    @property
    def may_vote(self) -> bool:
        """False from a start with `vote_withheld_since` until `release_vote`."""
        return fit.may_vote(self.raft)

    @property
    def may_campaign(self) -> bool:
        """False for a learner and a removed member, while anything holds campaigns, or the vote is withheld."""
        return fit.may_campaign(self.raft)

    @property
    def membership(self) -> Membership:
        """The members in force: those of the newest MEMBERSHIP entry in the log, committed or not."""
        return self.raft.members.current

    @property
    def committed_membership_index(self) -> int:
        """Index of the newest MEMBERSHIP entry that is committed; 0: GENESIS."""
        return self.raft.members.committed_index(self.raft.log.commit_index)

    @property
    def caught_up_with_leader(self) -> bool:
        """The vote is withheld, and the log holds again all that this node can have acknowledged: it may vote."""
        return fit.has_caught_up(self.raft)

    @property
    def commit_index(self) -> int:
        """Highest index known to be on a majority's disks."""
        return self.raft.log.commit_index

    @property
    def persisted_index(self) -> int:
        """Highest index on the own disk."""
        return self.raft.log.persisted_index

    @property
    def applied_index(self) -> int:
        """Highest index the state machine reported."""
        return self.raft.log.applied_index

    @property
    def last_index(self) -> int:
        """Highest index in the log, persisted or not."""
        return self.raft.log.tail.index

    @property
    def term_start_index(self) -> int:
        """Index of the no-op of the term this node leads or last led: the first index of its own; -1 if never."""
        return self.raft.term_start_index

    @property
    def catch_up_budget(self) -> int | None:
        """Bytes that followers may still be sent from the disk: what is too old for memory. None for no limit.

        The driver sets it anew as time passes; one message may bring it below 0. Entries in memory never wait for it.
        """
        return self.raft.catch_up_budget

    @catch_up_budget.setter
    def catch_up_budget(self, budget: int | None) -> None:
        self.raft.catch_up_budget = budget
        if self.raft.role is Role.LEADER and (budget is None or budget > 0):
            replication.resume_held(self.raft)

    @property
    def catch_up_waits(self) -> bool:
        """A follower waits for the budget."""
        return self.raft.role is Role.LEADER and any(peer.held for peer in self.raft.members.peers.values())

    def log_time_ms(self) -> int:
        """Log time now on a leader (log_time.py); elsewhere the timestamp of the last entry. Never below that."""
        raft = self.raft
        floor = raft.log.tail.timestamp_ms
        return max(raft.log_time.now(raft.monotonic_ms), floor) if raft.role is Role.LEADER else floor

    def status(self) -> status.Status:
        """Everything an operator asks for, as a value."""
        return status.of(self.raft)

"""The interface of the Raft core: inputs are calls, outputs are one value, `Ready`."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

from raftlog import membership as memberships
from raftlog.core import (
    commit,
    election,
    eligibility,
    membership_change,
    message_plausibility,
    read_index,
    replication,
    role_change_reasons,
    status,
    step,
    transfer,
)
from raftlog.core.raft import Raft
from raftlog.core.state.config import RaftConfig
from raftlog.core.state.log import RaftLog, StoredLog
from raftlog.core.state.members import Members
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

READS_AHEAD = 2
"""The most runs of committed entries that may be read from disk and not applied yet: one is being applied, the next one
waits. Without this limit, a node that replays a long log would read as much as it may hold in one turn."""


class Ready(NamedTuple):
    """Everything that the caller has to do next. The caller's duties:

    1. Send `messages` at once, in any order; any of them may be lost.
    2. Write `hard_state` (if not None) and `entries` to disk, in the order of the Readys. Write and fdatasync the
       hard state before the entries. If `entries[0].index` is not above the last index stored, truncate there first.
    3. Send `messages_after_persist` once the hard state and entries of this Ready *and of every Ready before it* are on
       disk, even if this Ready has neither. Messages to this node itself go back into `step`, at the same moment.
    4. When entries are on disk, call `persisted(id of the last one)`, once per Ready with entries, in order.
       (One fdatasync may cover many Readys; acks that skip all but the last are accepted, and may be credited late.)
    5. Apply `committed_entries` in order and call `applied(index)`. Each entry is given out once, never above the index
       that `persisted` reported, and never before it is committed.
    6. `read_states`: answer each read once the applied index has reached its index. When `soft_state` shows that
       leadership ended, fail the reads that have no state: they never get one.
    7. `members_changed`: `RawNode.membership` has changed. Connect to its members and disconnect from all others.
    8. `install`: the leader has trimmed entries that this node's log lacks. Fetch a checkpoint and the log after it
       from any peer, and start from them. Until then the offer is repeated, and the node continues as usual.
    9. If the disk fails duty 2, stop the node: take no further Ready and send nothing more.

    Steps 1 and 2 of one Ready may overlap; the next Ready may be taken while the disk still works on this one.
    """

    hard_state: HardState | None
    """The changed term or vote, with the commit index; None if neither changed. A changed commit index alone never
    needs a write."""
    soft_state: SoftState | None
    """The changed role or leader; None if neither changed."""
    entries: list[Entry]
    messages: list[Message]
    messages_after_persist: list[Message]
    committed_entries: list[Entry]
    read_states: list[ReadState]
    members_changed: bool
    """True if the members changed, by an appended or a truncated entry. Always True in the first Ready."""
    install: InstallSnapshot | None


class RawNode:
    """One member of a Raft group; not thread-safe, owned by one driver. After an ImplausibleMessageError the member
    continues. After any other InvariantViolationError it must not be used again."""

    __slots__ = ("_apply_waits", "_applying", "_applying_bytes", "_hard", "_soft", "raft", "unsent")

    def __init__(
        self,
        config: RaftConfig,
        *,
        hard_state: HardState,
        log: StoredLog,
        members: Sequence[Membership],
        applied_index: int,
        rng: random.Random,
        vote_withheld_since: int | None = None,
    ) -> None:
        """Starts as a follower. `applied_index`: the last entry that the state machine durably contains, -1 for none.
        `members`: ascending by index, the newest that the state machine contains (else GENESIS), then all later ones in
        the log. If the node is not one of them, it follows the leader and never campaigns. `vote_withheld_since`: the
        hard state's term when the loss of acknowledged entries was detected (eligibility.py).

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
        """True if the next entry to apply is damaged on disk."""
        self.unsent: Collection[NodeId] = self.raft.unsent
        """Followers that have room in their windows but must wait for the next turn (`set_clock`)."""

    # -- inputs

    def set_clock(self, wall_ms: int, monotonic_ms: int) -> None:
        """Begins a turn of the driver: sets the clocks, in milliseconds, and allows `turn_bytes_max` bytes to be sent
        again. Followers that had to wait for this turn are served first, one message at a time in turn."""
        raft = self.raft
        raft.wall_ms = wall_ms
        raft.monotonic_ms = monotonic_ms
        raft.send_budget = raft.config.turn_bytes_max
        if raft.unsent:
            replication.resume_waiting(raft)

    def tick(self) -> None:
        """Advances time by one tick."""
        step.tick(self.raft)

    def step(self, message: Message) -> None:
        """Handles a message from a peer or (duty 3) from this node.

        Raises ImplausibleMessageError if the message cannot be true. At most, this member has then entered the
        message's term and follows its sender.
        """
        raft = self.raft
        check = message_plausibility.CHECKS.get(type(message))
        try:
            if check is not None and message.from_id != raft.id and (why := check(raft, message)):
                raise ImplausibleMessageError(why)
            step.step(raft, message)
        except ImplausibleMessageError as error:
            error.peer = message.from_id
            raise

    def campaign(self) -> None:
        """Acts as if the election timeout had passed; does nothing on a leader."""
        if self.raft.role is not Role.LEADER:
            election.start(self.raft)

    def propose(self, entry_type: int, payload: bytes, timestamp_ms: int, *, roll: bool = False) -> Entry:
        """Stamps and appends one entry as the leader; the entry's id shows later whether it was committed or replaced.
        With `roll` it begins a new segment file on every replica, however full the last one is. The timestamp is raised
        to the last entry's.

        Raises NotLeaderError, ProposalDroppedError (leadership is being transferred), FrameError (the payload is too
        long) or ValueError (the type is MEMBERSHIP). In each case nothing was proposed.
        """
        if entry_type == EntryType.MEMBERSHIP:
            raise ValueError("members change by propose_membership, which checks that they may")
        return self._append(entry_type, payload, timestamp_ms, roll)

    def propose_membership(self, new: Membership, timestamp_ms: int) -> Entry:
        """Appends a MEMBERSHIP entry with `new`, made from `membership` by a function of raftlog/membership.py; the new
        members are in force at once.

        Raises like `propose`, and MembershipError: another change is uncommitted, no entry of this term is committed
        yet, it is more than one change, a learner is not ready to be promoted, or too few of the new voters answer.
        """
        self._check_may_propose()
        membership_change.check(self.raft, new)
        entry = self._append(EntryType.MEMBERSHIP, memberships.encode(new), timestamp_ms)
        membership_change.on_proposed(self.raft, entry)
        # With fewer voters a smaller majority suffices, which may already have acknowledged entries and echoed a read
        # round. No later message would make the leader count again, so it counts now.
        commit.advance(self.raft)
        read_index.confirm(self.raft)
        return entry

    def _check_may_propose(self) -> None:
        raft = self.raft
        if raft.role is not Role.LEADER:
            raise NotLeaderError(f"node {raft.id} is {raft.role.name} in term {raft.term}; leader: {raft.leader_id}")
        if raft.transferee != NOBODY:
            raise ProposalDroppedError(f"leadership is being transferred to node {raft.transferee}: retry in a moment")

    def _append(self, entry_type: int, payload: bytes, timestamp_ms: int, roll: bool = False) -> Entry:
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
            roll=roll,
        )
        raft.log.append(entry)
        raft.replication_due = True
        return entry

    def read_index(self, context: int) -> None:
        """Asks for a linearizable read (ReadIndex); a ReadState with `context` follows in a Ready. Raises
        NotLeaderError.

        On a leader without a committed entry of its own term the read waits. It is dropped when leadership ends.
        """
        read_index.request(self.raft, context)

    def transfer_leadership(self, to: NodeId) -> None:
        """Begins to transfer leadership to `to`; gives up after an election timeout.

        Raises NotLeaderError, or ValueError if `to` is not a voter or not fit to lead.
        """
        transfer.start(self.raft, to)

    def resign(self) -> None:
        """Makes a leader step down, to a follower without a leader; does nothing on any other member."""
        if self.raft.role is Role.LEADER:
            role_change_reasons.resigned(self.raft)
            self.raft.become_follower(self.raft.term, NOBODY)

    def release_vote(self) -> None:
        """Ends the withholding of votes, so that this member takes part in elections again. Raises
        InvariantViolationError unless `caught_up_with_leader`."""
        if not eligibility.has_caught_up(self.raft):
            raise InvariantViolationError(
                f"node {self.raft.id} would vote in term {self.raft.term} before its log, which ends at "
                f"{self.raft.log.tail.id} and was cut in term {self.raft.vote_withheld_since}, has caught up"
            )
        self.raft.vote_withheld_since = None

    def hold_campaigns(self, reason: str, held: bool) -> None:
        """Adds (True) or removes (False) `reason` as a hold, a reason not to campaign; other reasons may hold as well.

        A hold ends the current campaign; a leader keeps leading. The leader learns of it and transfers leadership only
        to members that are fit to lead.
        """
        eligibility.hold_campaigns(self.raft, reason, held)

    def trimmed(self) -> None:
        """Tells the core that the StoredLog's first index moved: up, as entries were trimmed, or down, as older ones
        were restored."""
        replication.trimmed(self.raft)

    def repaired(self) -> None:
        """Tells the core that a damaged range of the log can be read again. Replication and apply that waited for it
        continue."""
        self._apply_waits = False
        self.raft.replication_due = self.raft.replication_due or self.raft.role is Role.LEADER

    def peer_closed(self, peer: NodeId) -> None:
        """Tells the core that the TCP connection from `peer` closed. If `peer` led, a pre-vote starts at once or within
        two ticks."""
        election.on_peer_closed(self.raft, peer)

    def persisted(self, entry_id: EntryId) -> None:
        """Tells the core that everything up to `entry_id` is on this node's disk. If the log was truncated since, only
        the entries that it still holds count."""
        raft = self.raft
        if raft.log.persisted(entry_id) and raft.role is Role.LEADER:
            commit.advance(raft)

    def applied(self, index: int) -> None:
        """Tells the core that the state machine contains everything up to `index`. Raises InvariantViolationError if
        `index` was not given out."""
        self.raft.log.applied(index)
        applying = self._applying
        while applying and applying[0][0] <= index:
            self._applying_bytes -= applying.popleft()[1]

    # -- outputs

    def has_ready(self) -> bool:
        """Returns True if `ready` would return anything."""
        raft = self.raft
        log = raft.log
        return bool(
            raft.messages
            or raft.messages_after_persist
            or log.handed_index != log.tail.index
            or (log.applying_index < log.commit_index and self._can_apply())
            or raft.reads.states
            or (raft.term, raft.vote) != self._hard
            # a plain tuple equals the SoftState in `_soft`; making a SoftState would cost more
            or (raft.leader_id, raft.role) != self._soft
            or raft.replication_due
            or raft.members.changed
            or raft.install is not None
            or (raft.reads.waiting and read_index.is_due(raft))
        )

    def ready(self) -> Ready:
        """Returns all outputs of the core, and removes them from it: no output is given out twice. The lists belong to
        the caller."""
        raft = self.raft
        log = raft.log
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
            None if (raft.term, raft.vote) == self._hard else self._take_hard_state(),
            None if (raft.leader_id, raft.role) == self._soft else self._take_soft_state(),
            log.hand_to_disk(),
            messages,
            after_persist,
            self._take_committed() if log.applying_index < log.commit_index and self._can_apply() else [],
            read_states,
            members_changed,
            install,
        )

    def _take_hard_state(self) -> HardState:
        raft = self.raft
        self._hard = (raft.term, raft.vote)
        return raft.hard_state

    def _take_soft_state(self) -> SoftState:
        self._soft = self.raft.soft_state
        return self._soft

    def _can_apply(self) -> bool:
        log = self.raft.log
        if self._apply_waits:
            return False
        if log.applying_index + 1 < log.cache.first_index and len(self._applying) >= READS_AHEAD:
            return False
        if log.applying_index >= log.persisted_index or log.applying_index >= log.commit_index:
            return False
        return self._applying_bytes < self.raft.config.applying_bytes_max

    def _take_committed(self) -> list[Entry]:
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
        """The last entry of the log, persisted or not: the next one starts at `tail.end_position`."""
        return self.raft.log.tail

    @property
    def term(self) -> int:
        """The current term of this member."""
        return self.raft.term

    @property
    def role(self) -> Role:
        """The current role of this member."""
        return self.raft.role

    @property
    def why(self) -> str:
        """The reason why this member took its role or began its campaign; for the log."""
        return self.raft.why

    @property
    def leader_id(self) -> NodeId:
        """The leader of the current term; 0 if unknown."""
        return self.raft.leader_id

    @property
    def may_vote(self) -> bool:
        """True if this member may vote; False from a start with `vote_withheld_since` until `release_vote`."""
        return eligibility.may_vote(self.raft)

    @property
    def may_campaign(self) -> bool:
        """True if this member may campaign; False for a learner or a removed member, during a hold, and while the vote
        is withheld."""
        return eligibility.may_campaign(self.raft)

    @property
    def membership(self) -> Membership:
        """The members in force: those of the newest MEMBERSHIP entry in the log, committed or not."""
        return self.raft.members.current

    @property
    def committed_membership_index(self) -> int:
        """Index of the newest committed MEMBERSHIP entry; 0, that of GENESIS, if there is none."""
        return self.raft.members.committed_index(self.raft.log.commit_index)

    @property
    def memberships_that_count(self) -> list[Membership]:
        """The newest membership that is known to be committed, and all later ones.

        A node that is being removed is in one of them until its removal is certain. Without that node the others may be
        unable to commit the removal, or to undo it.
        """
        return self.raft.members.that_count(self.commit_index)

    @property
    def caught_up_with_leader(self) -> bool:
        """True if the vote is withheld, but the log again contains all that this node can have acknowledged: it may
        vote again."""
        return eligibility.has_caught_up(self.raft)

    @property
    def commit_index(self) -> int:
        """The highest index that this member knows to be committed."""
        return self.raft.log.commit_index

    @property
    def persisted_index(self) -> int:
        """The highest index on this node's disk."""
        return self.raft.log.persisted_index

    @property
    def applied_index(self) -> int:
        """The highest index that the state machine has reported as applied."""
        return self.raft.log.applied_index

    @property
    def last_index(self) -> int:
        """The highest index in the log, persisted or not."""
        return self.raft.log.tail.index

    @property
    def term_start_index(self) -> int:
        """Index of the no-op of the term that this node leads or last led; -1 if it never led."""
        return self.raft.term_start_index

    @property
    def catch_up_budget(self) -> int | None:
        """The bytes that may still be read from disk for followers that need entries too old for memory; None for no
        limit.

        The driver refills it as time passes; one message may bring it below 0. Entries in memory never wait for it.
        """
        return self.raft.catch_up_budget

    @catch_up_budget.setter
    def catch_up_budget(self, budget: int | None) -> None:
        self.raft.catch_up_budget = budget
        if self.raft.role is Role.LEADER and (budget is None or budget > 0):
            replication.resume_held(self.raft)

    @property
    def catch_up_waits(self) -> bool:
        """True if a follower waits for the catch-up budget."""
        return self.raft.role is Role.LEADER and any(peer.held for peer in self.raft.members.peers.values())

    def log_time_ms(self) -> int:
        """Returns the log time in milliseconds: on a leader the current one (log_time.py), never below the last
        entry's; on other members the last entry's."""
        raft = self.raft
        floor = raft.log.tail.timestamp_ms
        return max(raft.log_time.now(raft.monotonic_ms), floor) if raft.role is Role.LEADER else floor

    def status(self) -> status.Status:
        """Returns the member's status for operators, as a value."""
        return status.of(self.raft)

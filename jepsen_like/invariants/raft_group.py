"""Checks the invariants of one member, of one step, and of the whole group. Tests and the simulator run all of them.

`check_state` checks one member, and `Before` compares it with its own state one step earlier. `GroupInvariants`
compares the members with each other (Raft paper, figure 3: election safety, leader append-only, log matching, leader
completeness, state machine safety) and with their disks (a committed entry is on a majority of disks). It also compares
the configuration that each member uses with its log and with those of the others.
All raise InvariantViolationError with both sides of the contradiction. Cost: per call O(peers) plus the new entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from jepsen_like.invariants.membership import MemberInvariants, check_own
from jepsen_like.invariants.membership import require as _require
from raftlog.core.raft import Raft
from raftlog.core.state.log import StoredLog
from raftlog.core.state.progress import Progress, ProgressState
from raftlog.errors import DamagedLogError
from raftlog.types import NOBODY, Entry, EntryId, NodeId, Role


def check_state(raft: Raft) -> None:
    """Checks the current state of one member."""
    _check_marks(raft)
    _check_role(raft)
    check_own(raft)
    if raft.role is Role.LEADER:
        _check_progress(raft)


def _check_marks(raft: Raft) -> None:
    log = raft.log
    last = log.tail.index
    marks = (log.applied_index, log.applying_index, log.commit_index, log.persisted_index, log.handed_index, last)
    rule = "applied <= applying <= min(commit, persisted), commit <= last, persisted <= handed <= last"
    _require(
        log.applied_index <= log.applying_index <= max(log.applicable_index, log.applied_index)
        and log.commit_index <= last
        and log.persisted_index <= log.handed_index <= last,
        raft,
        rule,
        marks,
    )
    _require(log.tail.term <= raft.term, raft, "no entry of a later term", log.tail)
    _require(log.cache.first_index <= log.persisted_index + 1, raft, "what the disk lacks is in memory", marks)
    _require(
        log.term_at(last) == log.tail.term and (last < 0 or log.terms.at(last) == log.tail.term),
        raft,
        "term ranges end in the tail's term",
        log.tail,
    )


def _check_role(raft: Raft) -> None:
    role = raft.role
    leads = role is Role.LEADER
    _require((raft.leader_id == raft.id) == leads, raft, "a leader, and only it, follows itself", raft.leader_id)
    _require(role not in (Role.CANDIDATE, Role.LEADER) or raft.vote == raft.id, raft, "voted for itself", raft.vote)
    _require(role is Role.FOLLOWER or leads or raft.leader_id == NOBODY, raft, "campaigns only without a leader")
    withheld = raft.vote_withheld_since is not None
    _require(
        role not in (Role.PRE_CANDIDATE, Role.CANDIDATE) or not (raft.holds or withheld),
        raft,
        "campaigns only with a whole log",
        raft.holds,
        raft.vote_withheld_since,
    )
    _require(not (leads and withheld), raft, "who lost entries does not lead", raft.vote_withheld_since)
    _require(
        not withheld or raft.term > (raft.vote_withheld_since or 0),
        raft,
        "who lost entries leaves the term of the loss",
        raft.vote_withheld_since,
    )
    _require(leads or raft.transferee == NOBODY, raft, "only a leader hands over", raft.transferee)
    _require(leads or not (raft.reads.waiting or raft.reads.rounds), raft, "only a leader holds reads")


def _check_progress(raft: Raft) -> None:
    last = raft.log.tail.index
    no_op = raft.term_start_index  # the entry may have been trimmed long after it was applied
    _require(
        no_op < raft.log.first_index or raft.log.term_at(no_op) == raft.term, raft, "a leader's no-op is in its log"
    )
    for node, peer in raft.members.peers.items():
        facts = (node, peer.match_index, peer.next_index, last)
        _require(peer.match_index < peer.next_index <= last + 1, raft, "match < next <= last + 1", facts)
        _require(
            peer.state is not ProgressState.SNAPSHOT or peer.match_index < raft.log.previous.index,
            raft,
            "who reaches the log is not offered a snapshot",
            facts,
        )
    agreed = raft.members.agreed_match(raft.log.persisted_index)
    _require(agreed < raft.term_start_index or agreed <= raft.log.commit_index, raft, "agreed is committed", agreed)


class Before(NamedTuple):
    """The state of a member before a step."""

    term: int
    vote: NodeId
    role: Role
    leader_id: NodeId
    tail: EntryId
    commit: EntryId
    applied_index: int
    match: dict[NodeId, tuple[Progress, int]]
    withheld: bool

    @classmethod
    def of(cls, raft: Raft) -> Before:
        """Returns a copy of the current state of `raft`."""
        log = raft.log
        return cls(
            raft.term,
            raft.vote,
            raft.role,
            raft.leader_id,
            log.tail.id,
            EntryId(log.term_at(log.commit_index) or 0, log.commit_index),
            log.applied_index,
            {node: (peer, peer.match_index) for node, peer in raft.members.peers.items()},
            raft.vote_withheld_since is not None,
        )

    def check(self, raft: Raft) -> None:
        """Checks `raft` after the step. Raises InvariantViolationError if a value went back that must never do so."""
        log = raft.log
        _require(raft.term >= self.term, raft, "the term never falls", self.term)
        _require(log.commit_index >= self.commit.index, raft, "the commit index never falls", self.commit)
        trimmed = self.commit.index < log.previous.index
        _require(trimmed or log.matches(self.commit), raft, "a committed entry stays", self.commit)
        _require(log.applied_index >= self.applied_index, raft, "the applied index never falls", self.applied_index)
        voted = raft.vote != NOBODY and (raft.term, raft.vote) != (self.term, self.vote)
        _require(not (self.withheld and voted), raft, "a withheld vote is not given", raft.vote)
        if raft.term != self.term:
            return
        _require(self.vote in (NOBODY, raft.vote), raft, "one vote per term, kept to its end", self.vote, raft.vote)
        _require(
            self.leader_id in (NOBODY, raft.leader_id) or raft.leader_id == NOBODY,
            raft,
            "one leader per term",
            self.leader_id,
            raft.leader_id,
        )
        if self.role is not Role.LEADER:
            return
        _require(raft.role in (Role.LEADER, Role.FOLLOWER, Role.PRE_CANDIDATE), raft, "a leader steps down or leads")
        if raft.role is Role.LEADER:
            trimmed = self.tail.index < log.previous.index
            _require(trimmed or log.matches(self.tail), raft, "a leader only appends", self.tail, log.tail)
            for node, (peer, match_index) in self.match.items():
                if raft.members.peers.get(node) is peer:  # otherwise this member has left the group
                    now = peer.match_index
                    _require(now >= match_index, raft, "match never falls within a term", node, match_index, now)


class GroupInvariants:
    """The group as an observer of all members sees it, across their crashes and restarts."""

    def __init__(self) -> None:
        self._leaders: dict[int, NodeId] = {}
        self._entries: dict[EntryId, int] = {}
        self._committed: dict[int, tuple[int, int]] = {}
        """Index -> (header_crc, term in which a member first knew that it was committed)."""
        self._members = MemberInvariants(self._committed)
        self._seen: dict[NodeId, int] = {}
        self._lost: set[tuple[NodeId, int, int]] = set()

    def lost(self, node: NodeId, entries: Iterable[Entry]) -> None:
        """Records that the disk of `node` lost entries that it had synced, by an injected fault, so that no promise
        counts as broken."""
        self._lost.update((node, entry.index, entry.header_crc) for entry in entries)

    def observe(self, raft: Raft, disks: Mapping[NodeId, StoredLog]) -> None:
        """Checks the group; to be called after each step of `raft`. `disks` hold the entries that each member would
        find after a crash."""
        self._check_log_matching(raft)
        self._members.check(raft)
        self._check_commits(raft, disks)
        self._check_leader(raft)

    def check_elections(self, rafts: Sequence[Raft]) -> None:
        """Checks which members could be elected; to be called from time to time with all members that are up. Cost:
        O(members squared)."""
        self._members.check_elections(rafts)

    def applied(self, raft: Raft, entries: Sequence[Entry]) -> None:
        """Checks state machine safety: no two members apply different entries at one index."""
        for entry in entries:
            crc, _ = self._committed.get(entry.index, (None, 0))
            _require(crc == entry.header_crc, raft, "only what is committed is applied", entry.id)

    def is_committed(self, entry: Entry) -> bool:
        """Returns True if a member was observed to know that this very entry is committed."""
        return self._committed.get(entry.index, (None, 0))[0] == entry.header_crc

    def _check_log_matching(self, raft: Raft) -> None:
        # Each header covers the one before it: equal CRCs at an id mean equal prefixes, already seen.
        log = raft.log
        index = log.tail.index
        while index >= log.first_index:
            entry_id, crc = self._entry(raft, index)
            known = self._entries.setdefault(entry_id, -1)
            if known == crc:
                return
            _require(known == -1, raft, "log matching: one entry per (term, index)", entry_id)
            self._entries[entry_id] = crc
            self._members.note(raft, log.entry(index))
            index -= 1

    def _entry(self, raft: Raft, index: int) -> tuple[EntryId, int]:
        """Returns id and header_crc of an entry in `raft`'s log; if it is damaged, the values that were seen last."""
        try:
            entry = raft.log.entry(index)
        except DamagedLogError:
            entry_id = EntryId(raft.log.term_at(index) or 0, index)
            return entry_id, self._entries[entry_id]
        return entry.id, entry.header_crc

    def _check_commits(self, raft: Raft, disks: Mapping[NodeId, StoredLog]) -> None:
        log = raft.log
        voters, quorum = raft.members.voters, raft.members.quorum
        for index in range(max(self._seen.get(raft.id, -1) + 1, log.first_index), log.commit_index + 1):
            entry_id, found = self._entry(raft, index)
            if index not in self._committed:
                holders = [node for node in voters if self._held(node, disks[node], index, found)]
                _require(len(holders) >= quorum, raft, "a majority's disks hold what is committed", entry_id, holders)
                self._committed[index] = (found, raft.term)
            crc, _ = self._committed[index]
            _require(crc == found, raft, "state machine safety: one committed entry per index", entry_id)
            self._seen[raft.id] = index

    def _held(self, node: NodeId, disk: StoredLog, index: int, header_crc: int) -> bool:
        """Returns True if the entry is on the disk of `node`, or was there before an injected fault."""
        if (node, index, header_crc) in self._lost:
            return True
        if index < disk.first_index:
            return True  # trimmed entries were committed, or installed as committed
        if index > disk.tail.index:
            return False
        try:
            return disk.read_entries(index, index + 1, 1)[0].header_crc == header_crc
        except DamagedLogError:
            return True  # the entry was written, and damaged later

    def _check_leader(self, raft: Raft) -> None:
        if raft.role is not Role.LEADER:
            return
        known = self._leaders.setdefault(raft.term, NOBODY)
        if known == raft.id:
            return
        _require(known == NOBODY, raft, "election safety: one leader per term", known)
        self._leaders[raft.term] = raft.id
        for index in sorted(self._committed, reverse=True):
            crc, term = self._committed[index]
            if term < raft.term:
                held = index < raft.log.first_index or (
                    index <= raft.log.tail.index and self._entry(raft, index)[1] == crc
                )
                _require(held, raft, "leader completeness: a new leader has every committed entry", index)
                return

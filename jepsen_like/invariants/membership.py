"""Invariants of membership: the members that a node counts, compared with its log and with those that the others count.

Part of raft_group.py, whose methods call it.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from raftlog import membership as memberships
from raftlog.core import eligibility
from raftlog.core.raft import Raft
from raftlog.errors import InvariantViolationError
from raftlog.membership import Membership, is_single_change
from raftlog.types import Entry, EntryId, EntryType, Role


def require(holds: bool, raft: Raft, rule: str, *facts: object) -> None:
    """Raises InvariantViolationError with the rule and the facts unless `holds`."""
    if not holds:
        raise InvariantViolationError(f"node {raft.id}, term {raft.term}, {raft.role.name}: {rule}: {facts}")


def check_own(raft: Raft) -> None:
    """Checks the present state of one member: a node that campaigns or leads is a voter, or was one until a removal
    that it does not know as committed."""
    members, commit = raft.members, raft.log.commit_index
    current = members.current
    if raft.role in (Role.PRE_CANDIDATE, Role.CANDIDATE):
        committed = [each for each in members.history if each.index <= commit]
        counted = committed[-1:] + [each for each in members.history if each.index > commit]
        require(any(raft.id in each.voter_ids for each in counted), raft, "only voters campaign", counted)
    if raft.role is Role.LEADER:
        peers = sorted({*current.voter_ids, *current.learner_ids} - {raft.id})
        require(list(members.peers) == peers, raft, "the log goes to the members in force", list(members.peers), peers)
        require(
            raft.id in current.voter_ids or current.index > commit,
            raft,
            "who is no voter by a committed entry does not lead",
            current,
        )


class MemberInvariants:
    """Tracks every MEMBERSHIP entry that was in any log, and checks which voters could elect which member."""

    def __init__(self, committed: Container[int]) -> None:
        """`committed`: the indexes that a member was observed to know as committed; it grows."""
        self._committed = committed
        self._known: dict[EntryId, Membership] = {}

    def note(self, raft: Raft, entry: Entry) -> None:
        """Records an `entry` that appears in a log, that of `raft`, for the first time. If `raft` leads and made the
        change itself, the change must follow the rules of membership.
        """
        if entry.type != EntryType.MEMBERSHIP:
            return
        new = self._known[entry.id] = memberships.decode(entry)
        if raft.role is not Role.LEADER or entry.term != raft.term:
            return
        old = next(each for each in reversed(raft.members.history) if each.index < entry.index)
        require(is_single_change(old, new), raft, "members change by one", old, new)
        require(old.index == 0 or old.index in self._committed, raft, "members change one at a time", old, new)
        require(raft.term_start_index in self._committed, raft, "members change once the own term commits", new)

    def check(self, raft: Raft) -> None:
        """Checks that the newest members in the log are in force, "regardless of whether the entry is committed"
        (thesis 4.1)."""
        log, current = raft.log, raft.members.current
        in_log = [each for each in self._known if log.first_index <= each.index and log.matches(each)]
        if in_log:
            newest = self._known[max(in_log)]
            require(newest == current, raft, "the newest members in the log are in force", newest, current)
        else:
            require(
                current.index < log.first_index or current.index == 0,
                raft,
                "the newest members in the log are in force",
                "none",
                current,
            )

    def check_elections(self, rafts: Sequence[Raft]) -> None:
        """Checks all members that could be elected now, given the logs: the voters that any two of them count differ by
        at most one, so their majorities intersect.

        This is stronger than thesis 4.1, which compares a configuration with the next one only. A member that was away
        may count older voters, but no member with a newer log votes for it.
        """
        if len({raft.members.voters for raft in rafts}) <= 1:
            return
        able = [raft for raft in rafts if _can_be_elected(raft, rafts)]
        for raft in able:
            for other in able:
                ours, theirs = raft.members.current, other.members.current
                require(
                    len(set(ours.voters) ^ set(theirs.voters)) <= 1,
                    raft,
                    "electable members count majorities that meet",
                    ours,
                    other.id,
                    theirs,
                )


def _can_be_elected(raft: Raft, rafts: Sequence[Raft]) -> bool:
    if not eligibility.may_campaign(raft):
        return False
    last, voters = raft.log.tail.id, raft.members.current.voter_ids
    would_vote = [
        each for each in rafts if each.id in voters and each.log.is_up_to_date(last) and eligibility.may_vote(each)
    ]
    return 2 * len(would_vote) > len(voters)

"""Changes the members, one at a time (Ongaro's thesis, chapter 4). members.py holds the members in force.

A leader appends a MEMBERSHIP entry, which takes effect at once, on the leader and wherever it is appended. Two rules
ensure that any two majorities that can decide anything overlap:

- one change at a time: the next one waits until this one is committed (thesis 4.1);
- no change before an entry of the leader's own term is committed. Otherwise leaders of two terms can each have an
  uncommitted change that differs by one member from the committed configuration and by two from the other change, and
  both be elected (Ongaro, "bug in single-server membership changes", raft-dev, July 2015).
"""

from __future__ import annotations

from collections.abc import Sequence

from raftlog import membership as memberships
from raftlog.core import replication, role_change_reasons
from raftlog.core.raft import Raft
from raftlog.core.state.quorum import majority
from raftlog.errors import FrameError, ImplausibleMessageError, InvariantViolationError, MembershipError
from raftlog.membership import Membership
from raftlog.messages import TimeoutNow
from raftlog.types import NOBODY, Entry, EntryType, NodeId

# -- the members in force according to the log


def check_received(entries: Sequence[Entry]) -> None:
    """Raises ImplausibleMessageError if one of the received MEMBERSHIP entries cannot be decoded. None of the entries
    is appended then."""
    for entry in entries:
        if entry.type == EntryType.MEMBERSHIP:
            try:
                memberships.decode(entry)
            except FrameError as error:
                raise ImplausibleMessageError(f"an entry that does not say who the members are: {error}") from error


def on_appended(raft: Raft, entries: Sequence[Entry]) -> None:
    """Makes the members of new MEMBERSHIP entries take effect. The first of `entries` replaced what the log held at its
    index and above.

    Raises InvariantViolationError if one of them cannot be decoded: this node would count wrong majorities.
    """
    if not entries:
        return
    if raft.members.history[-1].index >= entries[0].index:
        raft.members.truncate_from(entries[0].index)
    for entry in entries:
        if entry.type == EntryType.MEMBERSHIP:
            _take_effect(raft, entry)


def _take_effect(raft: Raft, entry: Entry) -> None:
    try:
        membership = memberships.decode(entry)
    except FrameError as error:
        raise InvariantViolationError(f"node {raft.id} does not know who the members are: {error}") from error
    raft.members.append(membership, raft.log.commit_index)


# -- leader


def on_proposed(raft: Raft, entry: Entry) -> None:
    """Makes the members of `entry`, a MEMBERSHIP entry that this leader has just appended, take effect. From now on the
    leader sends the log to these members only."""
    _take_effect(raft, entry)
    raft.members.meet_peers(entry.index)


def check(raft: Raft, new: Membership) -> None:
    """Raises MembershipError unless the leader may propose the members `new` now."""
    members, log = raft.members, raft.log
    current = members.current
    if current.index > log.commit_index:
        raise MembershipError(
            f"a change is in progress: {current.detail or current.reason!r} at index {current.index} is not committed "
            "yet; wait until it is"
        )
    if log.commit_index < raft.term_start_index:
        # "a leader must not append a new configuration entry until it has committed an entry from its current term"
        raise MembershipError(
            f"node {raft.id} has led for a moment only, nothing of term {raft.term} is committed yet: retry in a moment"
        )
    if not memberships.is_single_change(current, new):
        raise MembershipError(
            f"from voters {current.voter_ids} and learners {current.learner_ids} to {new.voter_ids} and "
            f"{new.learner_ids} is not one member more, less, promoted or elsewhere: change one at a time"
        )
    for node in set(new.voter_ids) - set(current.voter_ids):
        _check_promotion(raft, node)
    if set(new.voter_ids) != set(current.voter_ids):
        _check_live(raft, new)


def _check_promotion(raft: Raft, node: NodeId) -> None:
    progress = raft.members.peers.get(node)
    if progress is None:
        raise MembershipError(f"node {node} is no learner: add it as one, and promote it once it has caught up")
    if not progress.caught_up(raft.log.commit_index):
        lag = raft.log.tail.index - progress.match_index
        raise MembershipError(
            f"learner {node} has not caught up ({progress.state.name}, {lag} entries behind"
            f"{'' if progress.is_live else ', not heard from'}): promote it once it has"
        )
    if not progress.fit:
        raise MembershipError(
            f"learner {node} says that it is not fit to lead (its log has gaps or is being repaired): promote it later"
        )


def _check_live(raft: Raft, new: Membership) -> None:
    live, quorum = raft.members.live(new.voter_ids), majority(len(new.voters))
    if len(live) < quorum:
        missing = [node for node in new.voter_ids if node not in live]
        raise MembershipError(
            f"of voters {new.voter_ids} {quorum} must answer, and only {live or 'none'} do: bring back "
            f"{' or '.join(f'node {node}' for node in missing)}, or remove it first"
        )


def step_down_if_removed(raft: Raft) -> None:
    """Makes a leader that is no longer a voter step down "once the Cnew entry is committed" (thesis 4.2.2). Until then
    it leads without counting itself ("does not count itself in majorities").

    The leader sends the commit index to the others. It asks the fit voter that has acknowledged most to campaign at
    once (TimeoutNow), if there is one.
    """
    members = raft.members
    if members.is_own_voter or members.current.index > raft.log.commit_index:
        return
    replication.send_commit_notices(raft)
    heirs = [(peer.match_index, node) for node, peer in members.peers.items() if members.is_voter(node) and peer.fit]
    if heirs:
        raft.send(TimeoutNow(raft.id, max(heirs)[1], raft.term))
    role_change_reasons.removed(raft)
    raft.become_follower(raft.term, NOBODY)


# -- who may campaign


def may_stand(raft: Raft) -> bool:
    """Returns True if this node may campaign as far as membership goes: it is a voter, or was one until a removal that
    is not known to be committed.

    "A server that is not part of its own latest configuration should still start new elections, as it might still be
    needed until the Cnew entry is committed" (thesis 4.2.2): it may be the only one that has that entry. It does not
    count its own vote.
    """
    members = raft.members
    if members.is_own_voter:
        return True
    return any(raft.id in each.voter_ids for each in members.that_count(raft.log.commit_index))

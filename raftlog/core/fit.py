"""Members that are not fit to lead, or not even to vote, because their disk lost something.

**A damaged middle** (`holds`): entries below the durable point cannot be read; the last (term, index) is known. Such
a member votes truthfully, appends and acks; it does not campaign, because a leader must be able to read what it
replicates (Protocol-Aware Recovery, FAST'18). The same holds for a suspect state machine, for segments that are still
being fetched, and for whatever else the node has a reason for; each reason holds on its own.

**A lost end** (`vote_withheld_since`): entries that the member acknowledged may be gone. They may be committed, with
this member's ack as the deciding one; a vote for a candidate that lacks them would lose them. So it neither votes nor
campaigns until its log again holds everything that it can have acknowledged:

- What it acknowledged in term T or earlier, T being the term in which the loss was found, and what was committed with
  that, is in the log of every leader of a later term: those were elected by votes that were given truthfully (leader
  completeness, Raft paper 5.4.3). An index below which the log holds a committed entry of such a term is enough.
- A leader of T itself is not enough: its commit index says nothing of entries above it that this member had
  acknowledged and that may be committed the moment after. And that leader would be stuck with it, because a match index
  never falls within a term. So the member enters T + 1 as it starts: hearing that, the leader of T steps down.
"""

from __future__ import annotations

from raftlog.core import membership_change, reasons
from raftlog.core.raft import Raft
from raftlog.types import NOBODY, Role


def may_vote(raft: Raft) -> bool:
    """Its log holds all that it ever acknowledged, as far as known."""
    return raft.vote_withheld_since is None


def is_fit(raft: Raft) -> bool:
    """Nothing keeps it from leading but, perhaps, that it is no voter."""
    return not raft.holds and may_vote(raft)


def may_campaign(raft: Raft) -> bool:
    """A campaign begins with a vote for oneself."""
    return is_fit(raft) and membership_change.may_stand(raft)


def hold_campaigns(raft: Raft, reason: str, held: bool) -> None:
    """Ends a campaign under way if it may not go on; a leader goes on until it hands over or resigns."""
    if held:
        raft.holds.add(reason)
    else:
        raft.holds.discard(reason)
    if held and raft.role in (Role.PRE_CANDIDATE, Role.CANDIDATE):
        stand_aside(raft)


def stand_aside(raft: Raft) -> None:
    """Does not campaign when it is time to, but stops helping a silent leader: it answers whoever campaigns."""
    reasons.stood_aside(raft)
    raft.become_follower(raft.term, NOBODY)


def has_caught_up(raft: Raft) -> bool:
    """The log on disk reaches a committed entry of a term later than the loss. Once true, it stays true."""
    since, log = raft.vote_withheld_since, raft.log
    return (
        since is not None and (log.term_at(log.commit_index) or 0) > since and log.persisted_index >= log.commit_index
    )

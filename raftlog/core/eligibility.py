"""Decides whether a member is fit to lead, or even to vote, after its disk lost data.

**Damage in the middle** (`holds`, reasons against campaigns): entries below the durable point cannot be read, but the
last (term, index) is known. Such a member votes truthfully, appends and acknowledges. It does not campaign, because a
leader must be able to read what it replicates (Protocol-Aware Recovery, FAST'18). The same applies to a suspect state
machine, to segments that are still being fetched, and to any other reason of the node. Each reason holds independently
of the others.

**A lost end** (`vote_withheld_since`): entries that the member acknowledged may be gone. They may be committed, with
this member's ack as the deciding one, and a vote for a candidate without them would lose them. The member therefore
neither votes nor campaigns until its log again holds everything that it can have acknowledged:

- Let T be the term in which the loss was found. Every entry that was committed with an acknowledgement of this member
  in T or earlier is in the log of each leader of a later term, because truthful votes elected that leader (leader
  completeness, Raft paper 5.4.3). It is therefore enough that the log reaches a committed entry of a term after T.
- A leader of T itself is not enough. Its commit index does not cover later entries that this member acknowledged and
  that may be committed a moment later. It also could not make progress with this member, because a match index never
  falls within a term. The member therefore enters T + 1 when it starts, and the leader of T steps down when it learns
  of that term.
"""

from __future__ import annotations

from raftlog.core import membership_change, role_change_reasons
from raftlog.core.raft import Raft
from raftlog.types import NOBODY, Role


def may_vote(raft: Raft) -> bool:
    """Returns True if, as far as this member knows, its log holds every entry that it ever acknowledged."""
    return raft.vote_withheld_since is None


def is_fit(raft: Raft) -> bool:
    """Returns True if the state of its disk, and of the node, lets this member lead. It may still not be a voter."""
    return not raft.holds and may_vote(raft)


def may_campaign(raft: Raft) -> bool:
    """Returns True if the member may lead (`is_fit`) and, as far as membership goes, may campaign (`may_stand`)."""
    return is_fit(raft) and membership_change.may_stand(raft)


def hold_campaigns(raft: Raft, reason: str, held: bool) -> None:
    """Adds (`held`) or removes a reason against campaigns. A reason that is added ends the current campaign; a leader
    keeps leading until it transfers leadership or resigns."""
    if held:
        raft.holds.add(reason)
    else:
        raft.holds.discard(reason)
    if held and raft.role in (Role.PRE_CANDIDATE, Role.CANDIDATE):
        stand_aside(raft)


def stand_aside(raft: Raft) -> None:
    """Becomes a follower without a leader instead of campaigning, so that the member no longer ignores candidates."""
    role_change_reasons.stood_aside(raft)
    raft.become_follower(raft.term, NOBODY)


def has_caught_up(raft: Raft) -> bool:
    """Returns True if the log on disk reaches a committed entry of a term later than the term of the loss; False if
    nothing was lost. Once the result is True, it stays True until the member votes again (`release_vote`)."""
    since, log = raft.vote_withheld_since, raft.log
    return (
        since is not None and (log.term_at(log.commit_index) or 0) > since and log.persisted_index >= log.commit_index
    )

"""The messages (RPCs) between members of a Raft group, as values. `term` is the sender's current term unless a field
says otherwise.

Names: Raft paper figure 2; PreVote and the reasons for it: thesis 9.6; TimeoutNow: thesis 3.10.
"""

from __future__ import annotations

from typing import NamedTuple

from raftlog.types import Entry, EntryId, NodeId


class RequestVote(NamedTuple):
    """A request for a vote or a pre-vote. In a pre-vote `term` is the term in which the sender would campaign; no
    node's term changes."""

    from_id: NodeId
    to_id: NodeId
    term: int
    last: EntryId
    pre_vote: bool
    transfer: bool
    """True if a leader asked for this campaign (TimeoutNow): followers vote although they hear a leader."""


class RequestVoteReply(NamedTuple):
    """The answer to RequestVote. `clock_ms` is the voter's wall clock: the new leader's log time starts at the median
    of the clocks of the voters that granted."""

    from_id: NodeId
    to_id: NodeId
    term: int
    granted: bool
    pre_vote: bool
    clock_ms: int


class AppendEntries(NamedTuple):
    """Replicates `entries`, which follow `prev`, to a follower. Without entries it is a probe."""

    from_id: NodeId
    to_id: NodeId
    term: int
    prev: EntryId
    commit_index: int
    entries: tuple[Entry, ...]


class AppendEntriesReply(NamedTuple):
    """The answer to AppendEntries.

    Accepted: everything up to `match_index` is *on the follower's disk* and equals the leader's log.

    Rejected: `match_index` repeats the `prev.index` that was refused; `hint` is the follower's best guess of the last
    entry that could match (conflict hint: the largest entry with index <= prev.index and term <= prev.term).
    """

    from_id: NodeId
    to_id: NodeId
    term: int
    rejected: bool
    match_index: int
    hint: EntryId


class Heartbeat(NamedTuple):
    """Maintains the leader's leadership. `context` confirms ReadIndex rounds. `commit_index` is never above the
    follower's match index."""

    from_id: NodeId
    to_id: NodeId
    term: int
    commit_index: int
    context: int


class HeartbeatReply(NamedTuple):
    """The answer to Heartbeat, which echoes its `context`. `clock_ms` is the follower's wall clock; `fit` is True if it
    could lead as a voter."""

    from_id: NodeId
    to_id: NodeId
    term: int
    context: int
    clock_ms: int
    fit: bool = True


class TimeoutNow(NamedTuple):
    """Tells a caught-up follower to campaign at once (leadership transfer)."""

    from_id: NodeId
    to_id: NodeId
    term: int


class InstallSnapshot(NamedTuple):
    """Offers a follower a snapshot, because entries that it needs are trimmed. The message carries no data: the
    follower fetches the snapshot (thesis 5.1 sends chunks).

    The leader's log begins at `first_index`; a checkpoint at or above `first_index - 1` exists.
    """

    from_id: NodeId
    to_id: NodeId
    term: int
    first_index: int
    last: EntryId
    """The last entry that is trimmed, at `first_index - 1` (the paper's lastIncludedTerm and -Index)."""


Message = (
    RequestVote
    | RequestVoteReply
    | AppendEntries
    | AppendEntriesReply
    | Heartbeat
    | HeartbeatReply
    | TimeoutNow
    | InstallSnapshot
)

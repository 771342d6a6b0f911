"""Handles AppendEntries and its reply (Raft paper 5.3), pipelined as in the thesis, 10.2.1. `replication.py` decides
which entries are sent."""

from __future__ import annotations

from raftlog.core import commit, membership_change, replication, transfer
from raftlog.core.raft import Raft
from raftlog.core.state.progress import Progress
from raftlog.errors import DamagedLogError, InvariantViolationError
from raftlog.messages import AppendEntries, AppendEntriesReply
from raftlog.types import NOBODY, EntryId, EntryType, NodeId, Role

_NO_HINT = EntryId(0, -1)
_MEMBERSHIP = int(EntryType.MEMBERSHIP)

# -- follower


def on_append_entries(raft: Raft, message: AppendEntries) -> None:
    """Handles a leader's AppendEntries: appends entries that are new and acknowledges up to the message's last entry,
    or refuses with a hint.

    The entry before a conflict has to be read. While it is damaged on disk, the log stays as it is and no reply is
    sent: the node fetches the range from a peer, and the leader sends again after each heartbeat reply.

    Raises ImplausibleMessageError, and appends nothing, if the entries cannot be those of a leader of this log.
    """
    leader, commit_index, entries = message.from_id, message.commit_index, message.entries
    hear_leader(raft, leader)
    if commit_index > raft.heard_commit_index:
        raft.heard_commit_index = commit_index
    for entry in entries:
        if entry.type == _MEMBERSHIP:
            membership_change.check_received(entries)
            break
    log = raft.log
    prev = message.prev
    try:
        if prev.index < log.commit_index:
            # The message is late or repeated: this log equals the leader's up to the commit index. Acknowledge that
            # index.
            accept(raft, message.from_id, _append_above_commit(raft, message))
            return
        if not log.matches(prev):
            # "Reply false if log doesn't contain an entry at prevLogIndex whose term matches prevLogTerm" (figure 2)
            hint = log.last_not_above(prev.index, prev.term)
            raft.send(AppendEntriesReply(raft.id, message.from_id, raft.term, True, prev.index, hint))
            return
        new = log.append_received(entries)
        if new:
            membership_change.on_appended(raft, new)
    except DamagedLogError:
        return  # the entry before a conflict is damaged on disk
    last_new = prev.index + len(message.entries)
    # "set commitIndex = min(leaderCommit, index of last new entry)": later entries of this log may still be truncated
    if log.commit_index < commit_index:
        log.commit_to(min(commit_index, last_new))
    accept(raft, leader, last_new)


def _append_above_commit(raft: Raft, message: AppendEntries) -> int:
    log = raft.log
    last_new = message.prev.index + len(message.entries)
    if last_new <= log.commit_index:
        return log.commit_index
    entries = message.entries[log.commit_index - message.prev.index :]
    membership_change.on_appended(raft, log.append_received(entries))
    log.commit_to(min(message.commit_index, last_new))
    return last_new


def accept(raft: Raft, leader: NodeId, match_index: int) -> None:
    """Acknowledges to `leader` the entries up to `match_index`. The reply is sent once they are on this node's disk."""
    raft.messages_after_persist.append(AppendEntriesReply(raft.id, leader, raft.term, False, match_index, _NO_HINT))


def hear_leader(raft: Raft, leader: NodeId) -> None:
    """Records that the leader of the current term sent a message, and follows it; a candidate of this term becomes a
    follower (Raft paper 5.2).

    Raises InvariantViolationError if the term already has another leader.
    """
    raft.heard_ms = raft.monotonic_ms
    if raft.role is Role.FOLLOWER and raft.leader_id == leader:
        raft.election_elapsed = 0
        return
    if raft.role is Role.LEADER:
        raise InvariantViolationError(f"two leaders in term {raft.term}: {raft.id} and {leader}")
    raft.become_follower(raft.term, leader)


# -- leader, receiving


def on_append_entries_reply(raft: Raft, message: AppendEntriesReply) -> None:
    """Records a follower's progress, commits the entries that a majority has, and sends the follower those that it
    lacks. Raises InvariantViolationError if it acknowledges an index beyond this leader's log."""
    progress = raft.members.peers.get(message.from_id)
    if raft.role is not Role.LEADER or progress is None:
        return
    progress.recent_active, progress.gone = True, False
    if message.rejected:
        _on_rejected(raft, message, progress)
        return
    if message.match_index > raft.log.tail.index:
        raise InvariantViolationError(
            f"node {message.from_id} acknowledges index {message.match_index} in term {raft.term}, "
            f"the leader's log ends at {raft.log.tail.index}"
        )
    log = raft.log
    # An acknowledgement of an index that is committed already commits nothing more. (Asking for
    # `log.first_index` would cost one call more for each acknowledgement.)
    if progress.accepted(message.match_index, log.previous.index + 1) and message.match_index > log.commit_index:
        commit.advance(raft)
        if not raft.leads:
            return  # the entry just committed removes this node from the voters
    if progress.next_index <= raft.log.tail.index:
        replication.fill_window(raft, message.from_id, progress)
    else:
        progress.held = False
    if raft.transferee != NOBODY:
        transfer.hand_over_if_caught_up(raft)


def _on_rejected(raft: Raft, message: AppendEntriesReply, progress: Progress) -> None:
    # The follower's hint is its largest entry not above the refused (index, term). Entries of the leader above the hint
    # with a term larger than the hint's cannot be in the follower's log: skip them too (one round trip per term, thesis
    # 3.3).
    hint = raft.log.last_not_above(message.hint.index, message.hint.term)
    if progress.rejected(message.match_index, hint.index):
        replication.probe(raft, message.from_id, progress)

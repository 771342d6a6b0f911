"""The commit rule: when a leader advances its commit index."""

from __future__ import annotations

from raftlog.core import membership_change
from raftlog.core.raft import Raft


def advance(raft: Raft) -> None:
    """Commits the entries that a majority of disks holds. A leader whose own removal is then committed steps down. Only
    a leader calls this.

    "Only log entries from the leader's current term are committed by counting replicas; once an entry from the current
    term has been committed in this way, then all prior entries are committed indirectly" (Raft paper 5.4.2, figure 8).
    """
    log = raft.log
    agreed = raft.members.agreed_match(log.persisted_index)
    if agreed > log.commit_index and agreed >= raft.term_start_index:
        log.commit_to(agreed)
        if not raft.members.is_own_voter:
            membership_change.step_down_if_removed(raft)

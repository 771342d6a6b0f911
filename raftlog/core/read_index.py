"""ReadIndex: linearizable reads without a log entry (thesis 6.4).

1. The leader must have committed an entry of its own term, else its commit index may be old: reads wait for the no-op.
2. The leader notes its commit index and sends a round of heartbeats. If a majority answers, no newer leader existed
   when the round began.
3. Once the state machine has applied that commit index, it answers the read.

All reads waiting when a Ready is taken share one round.
"""

from __future__ import annotations

from raftlog.core import replication
from raftlog.core.raft import Raft
from raftlog.errors import NotLeaderError
from raftlog.types import Role


def request(raft: Raft, context: int) -> None:
    """Queues a read. Raises NotLeaderError unless this member leads."""
    if raft.role is not Role.LEADER:
        raise NotLeaderError(f"node {raft.id} is {raft.role.name} in term {raft.term}; leader: {raft.leader_id}")
    raft.reads.waiting.append(context)


def is_due(raft: Raft) -> bool:
    """Returns True if reads wait and a round may start: an entry of the leader's own term is committed."""
    return bool(raft.reads.waiting) and raft.log.commit_index >= raft.term_start_index


def start_round(raft: Raft) -> None:
    """Starts one round of heartbeats for all waiting reads; a group of one needs no answers."""
    raft.reads.start_round(raft.log.commit_index)
    replication.broadcast_heartbeats(raft)
    confirm(raft)


def confirm(raft: Raft) -> None:
    """Answers the reads of all rounds that a majority has echoed."""
    raft.reads.confirm(raft.members.agreed_round(raft.reads.last_round))

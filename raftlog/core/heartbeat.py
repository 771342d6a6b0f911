"""Handles heartbeats: they maintain leadership, carry the commit index, confirm reads, and detect lost messages."""

from __future__ import annotations

from raftlog.core import append_entries, election, eligibility, read_index, replication, role_change_reasons, transfer
from raftlog.core.raft import Raft
from raftlog.messages import Heartbeat, HeartbeatReply
from raftlog.types import NOBODY, Role


def tick_leader(raft: Raft) -> None:
    """Advances a leader by one tick: check-quorum, the deadline of a transfer, heartbeats (commit notices between
    them), and the leave to probe each follower once more."""
    raft.election_elapsed += 1
    if raft.election_elapsed >= raft.config.election_ticks:
        raft.election_elapsed = 0
        if raft.config.check_quorum and not election.has_quorum_contact(raft):
            role_change_reasons.quorum_unheard(raft)
            raft.become_follower(raft.term, NOBODY)
            return
    transfer.tick(raft)
    raft.heartbeat_elapsed += 1
    if raft.heartbeat_elapsed >= raft.config.heartbeat_ticks:
        replication.broadcast_heartbeats(raft)
    else:
        replication.send_commit_notices(raft)
    raft.probe_elapsed += 1
    if raft.probe_elapsed >= raft.config.heartbeat_ticks:
        raft.probe_elapsed = 0
        for progress in raft.members.peers.values():
            progress.probe_due = True


def on_heartbeat(raft: Raft, message: Heartbeat) -> None:
    """Handles a leader's heartbeat: follows the sender, advances the commit index, and echoes the heartbeat's round
    number."""
    append_entries.hear_leader(raft, message.from_id)
    raft.log.commit_to(message.commit_index)
    reply = HeartbeatReply(raft.id, message.from_id, raft.term, message.context, raft.wall_ms, eligibility.is_fit(raft))
    raft.send(reply)


def on_heartbeat_reply(raft: Raft, message: HeartbeatReply) -> None:
    """Records that a follower is alive, which confirms reads. If the follower lacks entries, checks whether a message
    to it was lost, at most once per heartbeat interval; otherwise hands leadership over, if a transfer waits for it."""
    progress = raft.members.peers.get(message.from_id)
    if raft.role is not Role.LEADER or progress is None:
        return
    progress.recent_active, progress.gone = True, False
    progress.fit = message.fit
    if message.context > progress.acked_round:
        progress.acked_round = message.context
        read_index.confirm(raft)
    if progress.match_index < raft.log.tail.index:
        if not progress.probe_due:
            return
        progress.probe_due = False
        replication.probe(raft, message.from_id, progress)
    else:
        transfer.hand_over_if_caught_up(raft)

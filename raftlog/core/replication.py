"""Sends followers entries, probes, heartbeats and offers of a snapshot. Each follower's Progress limits how much is
sent, and when."""

from __future__ import annotations

from raftlog.core.raft import Raft
from raftlog.core.state.progress import Progress, ProgressState
from raftlog.errors import DamagedLogError, OutOfRangeError
from raftlog.messages import AppendEntries, Heartbeat, InstallSnapshot
from raftlog.types import EntryId, NodeId

ENTRY_BYTES = 512
"""The least number of bytes that an entry counts in a turn's budget: many short entries take longer than one long entry
of the same total size."""


def broadcast(raft: Raft) -> None:
    """Sends each follower the entries that it lacks, as far as its window allows."""
    raft.replication_due = False
    for node, progress in raft.members.peers.items():
        fill_window(raft, node, progress)


def fill_window(raft: Raft, node: NodeId, progress: Progress) -> None:
    """Sends a follower entries until it has them all, its window is full, or it has to wait for a budget. Offers a
    snapshot instead if the entry before the next one is trimmed. Stops at entries that are damaged on disk."""
    progress.held = False
    while progress.next_index <= raft.log.tail.index and not progress.paused:
        if raft.send_budget <= 0:
            raft.unsent[node] = None
            return
        if raft.catch_up_budget is not None and _is_held(raft, progress):
            return
        if not _send(raft, node, progress, with_entries=True):
            return


def resume_waiting(raft: Raft) -> None:
    """Sends entries to the followers that had to wait for another turn, one message at a time in turn, until none
    waits or the turn's budget is used up. The one that has waited longest comes first."""
    waiting = raft.unsent
    while waiting and raft.send_budget > 0:
        node = next(iter(waiting))
        del waiting[node]
        progress = raft.members.peers.get(node)
        if progress is None or progress.paused or progress.next_index > raft.log.tail.index:
            continue
        if not _is_held(raft, progress) and _send(raft, node, progress, with_entries=True):
            waiting[node] = None


def _is_held(raft: Raft, progress: Progress) -> bool:
    """Returns True if the follower must wait for the catch-up budget, and records the result in `Progress.held`.
    Entries that are still in memory, such as live traffic, never wait."""
    budget = raft.catch_up_budget
    progress.held = budget is not None and budget <= 0 and progress.next_index < raft.log.cache.first_index
    return progress.held


def resume_held(raft: Raft) -> None:
    """Sends entries to the followers that wait for the catch-up budget. Called after the driver has refilled the
    budget."""
    for node, progress in raft.members.peers.items():
        if progress.held:
            fill_window(raft, node, progress)


def probe(raft: Raft, node: NodeId, progress: Progress) -> None:
    """Sends a follower entries if allowed, else an empty message that makes it report its state.

    Called when a message may have been lost. In REPLICATE an empty message after the last entry sent is enough: the
    follower accepts it if it has everything (only acks were lost) and refuses it otherwise. In SNAPSHOT the offer is
    repeated.
    """
    if progress.state is ProgressState.SNAPSHOT:
        _offer(raft, node)
        return
    if progress.state is ProgressState.PROBE:
        progress.probe_sent = False
    before = progress.next_index
    fill_window(raft, node, progress)
    if progress.next_index == before and not (progress.state is not ProgressState.REPLICATE and progress.paused):
        _send(raft, node, progress, with_entries=False)


def _send(raft: Raft, node: NodeId, progress: Progress, *, with_entries: bool) -> bool:
    log = raft.log
    next_index = progress.next_index
    prev_term = log.term_at(next_index - 1)
    if prev_term is None:
        # "the leader must occasionally send snapshots to followers that lag behind ... when the leader has already
        # discarded the next log entry that it needs to send to a follower" (Raft paper 7)
        progress.become_snapshot()
        _offer(raft, node)
        return False
    try:
        entries = tuple(log.read(next_index, log.tail.index + 1, raft.config.append_bytes_max)) if with_entries else ()
    except DamagedLogError:
        return False  # the follower waits until the range is repaired or another node leads
    except OutOfRangeError:
        trimmed(raft)  # the disk was trimmed before the core heard of it; the next heartbeat reply tries again
        return False
    last_index = next_index - 1 + len(entries)
    size = entries[-1].end_position - entries[0].position if entries else 0
    if raft.catch_up_budget is not None and next_index < log.cache.first_index:
        raft.catch_up_budget -= size
    raft.send_budget -= max(size, ENTRY_BYTES * len(entries))
    prev = EntryId(prev_term, next_index - 1)
    raft.messages.append(AppendEntries(raft.id, node, raft.term, prev, log.commit_index, entries))
    progress.sent(last_index, size)
    progress.sent_commit = max(progress.sent_commit, min(log.commit_index, last_index))
    return True


def _offer(raft: Raft, node: NodeId) -> None:
    log = raft.log
    raft.send(InstallSnapshot(raft.id, node, raft.term, log.first_index, log.previous.id))


def trimmed(raft: Raft) -> None:
    """Handles a change of the log's first index. A follower whose next entries are available again does not need a
    snapshot."""
    raft.log.trimmed()
    for progress in raft.members.peers.values():
        if progress.state is ProgressState.SNAPSHOT and raft.log.term_at(progress.next_index - 1) is not None:
            progress.leave_snapshot()


def broadcast_heartbeats(raft: Raft) -> None:
    """Sends a heartbeat to every peer. It carries the newest read round, so the next heartbeat repeats a lost round."""
    raft.heartbeat_elapsed = 0
    for node, progress in raft.members.peers.items():
        _send_heartbeat(raft, node, progress)


def _send_heartbeat(raft: Raft, node: NodeId, progress: Progress) -> None:
    # A follower may hold a divergent tail: its commit index may advance only as far as its log is known to match.
    commit_index = min(raft.log.commit_index, progress.match_index)
    raft.send(Heartbeat(raft.id, node, raft.term, commit_index, raft.reads.last_round))
    progress.sent_commit = max(progress.sent_commit, commit_index)


def send_commit_notices(raft: Raft) -> None:
    """Sends a heartbeat to each follower whose log matches further than the commit index that it was last sent. Under
    load none is needed, because each AppendEntries carries the commit index."""
    commit_index = raft.log.commit_index
    for node, progress in raft.members.peers.items():
        if progress.sent_commit < min(commit_index, progress.match_index):
            _send_heartbeat(raft, node, progress)

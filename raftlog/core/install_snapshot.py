"""Handles the leader's offer of a snapshot on a follower (Raft paper 7, thesis 5.1). `replication.py` decides when a
leader makes the offer.

The offer carries no data. The follower fetches a checkpoint and the log after it from a peer of its choice, and keeps
voting during that time. It then starts from a log that reaches the beginning of the leader's log, and reports its end.
"""

from __future__ import annotations

from raftlog.core.append_entries import accept, hear_leader
from raftlog.core.raft import Raft
from raftlog.errors import InvariantViolationError
from raftlog.messages import InstallSnapshot


def on_install_snapshot(raft: Raft, message: InstallSnapshot) -> None:
    """Handles the offer of a snapshot. If the leader's log can continue this one, answers how far the logs match;
    otherwise tells the driver to install a snapshot.

    Late and repeated offers are harmless. Trimmed entries are committed, so "if existing log entry has same index and
    term as snapshot's last included entry, retain log entries following it and reply" (figure 13). An offer that lies
    at or below the commit index is answered with the commit index.

    Raises InvariantViolationError if this log has another committed entry at the offer's last index.
    """
    hear_leader(raft, message.from_id)
    log, last = raft.log, message.last
    raft.heard_commit_index = max(raft.heard_commit_index, last.index)
    if log.matches(last):
        log.commit_to(last.index)
    elif last.index <= log.commit_index and log.term_at(last.index) is not None:
        raise InvariantViolationError(
            f"the leader has trimmed {last}, index {last.index} is committed here in term {log.term_at(last.index)}"
        )
    if last.index <= log.commit_index:
        accept(raft, message.from_id, log.commit_index)
    else:
        raft.install = message

"""The offer of a snapshot, at the follower (Raft paper 7, thesis 5.1). When it is made: replication.py.

No data is in it: the follower fetches a checkpoint and the log after it by itself, from whichever peer it likes, while
it goes on voting. Then it starts from a log that reaches to where the leader's begins, and says so.
"""

from __future__ import annotations

from raftlog.core.append_entries import accept, hear_leader
from raftlog.core.raft import Raft
from raftlog.errors import InvariantViolationError
from raftlog.messages import InstallSnapshot


def on_install_snapshot(raft: Raft, message: InstallSnapshot) -> None:
    """Answers how far the log matches, if the leader's can continue it; else the driver is told to install.

    Late and repeated offers come to the same: what was trimmed is committed, so "if existing log entry has same index
    and term as snapshot's last included entry, retain log entries following it and reply" (figure 13), and an offer
    that the log has outgrown is answered with the commit index.
    """
    hear_leader(raft, message.from_id)
    log, last = raft.log, message.last
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

"""Checks whether a message can be true, before the node acts on it.

A peer that follows the protocol never sends a message that is refused here. A peer that does not, or damage that no
checksum detects, must not bring this node into an impossible state. The message is therefore dropped and its
connection closed, and the node continues. Only bugs of this node are left for InvariantViolationError.

Pure: reads the state and changes nothing. It costs one call and a few comparisons per message, and nothing per entry:
the properties of an ordinary message are checked first, and only an unusual one is checked further. Terms that are too
far ahead are refused where a higher term is adopted (`step`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raftlog.core.raft import Raft
from raftlog.errors import ImplausibleMessageError
from raftlog.messages import (
    AppendEntries,
    AppendEntriesReply,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    RequestVote,
)
from raftlog.types import EntryId, NodeId, Role

TERM_MAX = 1 << 62
"""The highest term, a quarter of the range of its fields. A thousand elections a second reach it after 146 million
years."""
TERM_STEP_MAX = 1 << 24
"""The most terms that a message may be ahead of this node. A node that was away while others held two elections a
second for three months is accepted again; a message that would use up the terms is not."""


def check_term(raft: Raft, term: int) -> None:
    """Raises ImplausibleMessageError if `term`, which is higher than this node's, cannot be true."""
    if term > raft.term + TERM_STEP_MAX:
        raise ImplausibleMessageError(f"term {term} is more than {TERM_STEP_MAX} above this node's, {raft.term}")


def _append(raft: Raft, message: AppendEntries) -> str:
    prev, entries = message.prev, message.entries
    if entries:
        first, last = entries[0], entries[-1]
        if first.index != prev.index + 1 or last.index != prev.index + len(entries):
            return f"entries {first.index} to {last.index} are sent as following {prev}, and are {len(entries)}"
        if first.term < prev.term or last.term > message.term:
            return f"entries of terms {first.term} to {last.term} in term {message.term}, after {prev}"
    elif prev.term > message.term:
        return f"entry {prev} in term {message.term}"
    if prev.index <= raft.log.commit_index or raft.role is Role.LEADER:
        return _from_leader(raft, message, prev)
    return ""


def _heartbeat(raft: Raft, message: Heartbeat) -> str:
    if message.term >= raft.term and message.commit_index > raft.log.tail.index:
        return (
            f"commit index {message.commit_index} is beyond the log, which ends at {raft.log.tail.index}: entries that "
            "this node acknowledged are missing, or it never did"
        )
    return _second_leader(raft, message.from_id, message.term) if raft.role is Role.LEADER else ""


def _install(raft: Raft, message: InstallSnapshot) -> str:
    last = message.last
    if last.index != message.first_index - 1 or last.index < 0 or last.term > message.term:
        return f"a log of term {message.term} that begins at {message.first_index} after {last}"
    return _from_leader(raft, message, last)


def _from_leader(raft: Raft, message: AppendEntries | InstallSnapshot, known: EntryId) -> str:
    """Checks a message from a leader; returns the reason why it cannot be true, or "". `known` is an entry that the
    leader says it has, or had."""
    log = raft.log
    if (
        message.term >= raft.term
        and known.index <= log.commit_index
        and log.term_at(known.index)
        not in (
            None,
            known.term,
        )
    ):
        return f"its log has {known}, index {known.index} is committed here in term {log.term_at(known.index)}"
    return _second_leader(raft, message.from_id, message.term)


def _second_leader(raft: Raft, other: NodeId, term: int) -> str:
    if raft.role is Role.LEADER and term == raft.term:
        return f"two leaders in term {term}: {raft.id} and {other}"
    return ""


def _vote(raft: Raft, message: RequestVote) -> str:
    if message.last.term >= message.term:
        return f"a campaign for term {message.term} with a log that ends in term {message.last.term}"
    return ""


def _append_reply(raft: Raft, message: AppendEntriesReply) -> str:
    if message.rejected:
        return f"a log of term {message.hint.term} in term {message.term}" if message.hint.term > message.term else ""
    if message.match_index > raft.log.tail.index and _counts(raft, message):
        return (
            f"node {message.from_id} acknowledges index {message.match_index} in term {raft.term}, "
            f"the leader's log ends at {raft.log.tail.index}"
        )
    return ""


def _counts(raft: Raft, message: AppendEntriesReply | HeartbeatReply) -> bool:
    """Returns True if the message is a follower's answer to this leader. The leader ignores all other answers."""
    return raft.role is Role.LEADER and message.term == raft.term and message.from_id in raft.members.peers


def _heartbeat_reply(raft: Raft, message: HeartbeatReply) -> str:
    if message.context > raft.reads.last_round and _counts(raft, message):
        return f"round {message.context} is confirmed, {raft.reads.last_round} was the last that began"
    return ""


CHECKS: dict[type, Callable[[Raft, Any], str]] = {
    AppendEntries: _append,
    AppendEntriesReply: _append_reply,
    Heartbeat: _heartbeat,
    HeartbeatReply: _heartbeat_reply,
    InstallSnapshot: _install,
    RequestVote: _vote,
}
"""The check of each message type. A check returns the reason why the message cannot be true, or "". Late and repeated
messages pass. A type that is not listed always passes."""

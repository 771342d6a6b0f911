"""Checks the appends that a leader holds back (`raftlog.core.held_appends`): from which voters, which entries, when and
for how long.

The check has its own rules. The leader decides before it holds a message back; this check examines the state at the end
of a turn.
"""

from __future__ import annotations

from jepsen_like.invariants.membership import require as _require
from raftlog.core.held_appends import BYTES_MAX, ENTRIES_MAX, HOLD_MS, LATE_MS, HeldAppends
from raftlog.core.raft import Raft
from raftlog.core.state.quorum import majority
from raftlog.types import FLAG_ROLL, NOBODY, EntryType, Role

SLACK_MS = 1.0
"""Milliseconds that a timer may come late."""


class HeldCheck:
    """Checks one member after each of its turns."""

    def __init__(self) -> None:
        self._term = -1
        self._seen: dict[int, float] = {}
        """Index of an entry -> the time in milliseconds at which this leader was first seen to send it to a voter. The
        entry is removed once a majority, counting the leader, has acknowledged it.
        """
        self._slowest_ms = LATE_MS
        """The longest time in milliseconds from an entry's first send until a majority had acknowledged it, in this
        term.
        """
        self.times = 0
        """The number of turns that ended with something held."""

    def look(self, appends: HeldAppends, raft: Raft, now_ms: float, looks_ms: float | None) -> None:
        """Checks the state after a turn, at the time `now_ms`. `looks_ms`: the time in milliseconds at which the member
        will look at what it holds; None if it will not. Raises InvariantViolationError.
        """
        self._note(raft, now_ms)
        if appends.held:
            self.times += 1
            _check(appends, raft, looks_ms)
            first = min(queued[0].prev.index + 1 for queued in appends.held.values())
            waits_ms = min((each for index, each in self._seen.items() if index >= first), default=now_ms)
            limit_ms = waits_ms + self._slowest_ms + SLACK_MS
            _require(looks_ms is None or looks_ms <= limit_ms, raft, "a late voter is noticed", looks_ms, waits_ms)

    def _note(self, raft: Raft, now_ms: float) -> None:
        if raft.term != self._term:
            self._term, self._slowest_ms = raft.term, LATE_MS
            self._seen.clear()
        members = raft.members
        voters = [members.peers[node] for node in members.voters if node in members.peers]
        enough = sorted([peer.match_index for peer in voters], reverse=True)[: members.quorum - 1]
        done = max(raft.log.commit_index, enough[-1] if enough else -1)
        for index in [index for index in self._seen if index <= done]:
            self._slowest_ms = max(self._slowest_ms, now_ms - self._seen.pop(index))
        if raft.role is Role.LEADER:
            for index in range(done + 1, max([peer.next_index for peer in voters], default=0)):
                self._seen.setdefault(index, now_ms)


def _check(appends: HeldAppends, raft: Raft, looks_ms: float | None) -> None:
    held = appends.held
    _require(looks_ms is not None, raft, "held appends have a timer", list(held))
    assert looks_ms is not None
    ends_ms = appends.since_ms + HOLD_MS
    _require(looks_ms <= ends_ms + SLACK_MS, raft, "no append is held for longer", looks_ms, ends_ms)
    if raft.role is not Role.LEADER:
        return  # the node has just stepped down, and its timer sends the held messages
    _check_time(raft)
    _check_who(appends, raft)
    for node, queued in held.items():
        entries = [entry for append in queued for entry in append.entries]
        _require(len(entries) < ENTRIES_MAX, raft, "few entries are held", node, len(entries))
        size = entries[-1].end_position - entries[0].position if entries else 0
        _require(size <= BYTES_MAX, raft, "few bytes are held", node, size)
        plain = [each for each in entries if each.type == EntryType.MESSAGES and not each.flags & FLAG_ROLL]
        _require(len(plain) == len(entries), raft, "only messages are held", node, entries)
        ends = [append.prev.index + len(append.entries) for append in queued]
        starts = [append.prev.index for append in queued]
        _require(starts[1:] == ends[:-1], raft, "held appends follow upon each other", node, starts, ends)
        peer = raft.members.peers[node]
        _require(not peer.inflights.full, raft, "a full window is not held", node)
        _require(peer.next_index == ends[-1] + 1, raft, "held counts as sent", node, peer.next_index, ends)
        _require(peer.match_index <= starts[0], raft, "nobody acknowledges what was not sent", node, peer.match_index)


def _check_time(raft: Raft) -> None:
    log, members = raft.log, raft.members
    _require(raft.transferee == NOBODY, raft, "nothing is held while leadership is transferred", raft.transferee)
    _require(not raft.reads.waiting and not raft.reads.rounds, raft, "nothing is held during a read round")
    _require(members.current.index <= log.commit_index, raft, "nothing is held while members change")
    _require(log.commit_index >= raft.term_start_index, raft, "nothing is held before the term's first commit")
    _require(log.tail.index - log.commit_index <= 2, raft, "nothing is held with much in flight", log.tail.index)


def _check_who(appends: HeldAppends, raft: Raft) -> None:
    members, quick = raft.members, appends.quick
    needed = majority(len(members.voters)) - 1
    _require(len(set(quick)) == needed and raft.id not in quick, raft, "the quick ones make a majority", quick)
    for node in quick:
        peer = members.peers.get(node)
        _require(peer is not None and peer.is_live and peer.fit, raft, "quick voters are live and fit", node)
        _require(members.is_voter(node), raft, "quick ones are voters", node)
    for node in appends.held:
        _require(members.is_voter(node) and node not in quick, raft, "held are the other voters", node)

"""The leader's knowledge of one follower, and its flow control towards it (etcd's tracker).

`next_index` is an optimistic guess, `match_index` is a fact. In PROBE the guess may be wrong, so the leader sends one
message at a time until the follower has answered. In REPLICATE the guess was right: messages are pipelined, bounded
by `Inflights`, and a rejection turns the follower back to PROBE. In SNAPSHOT the entry before `next_index` is trimmed.
The leader then repeats its offer of a snapshot until the follower's log reaches the beginning of the leader's.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum


class ProgressState(IntEnum):
    """The leader's way of sending to a follower."""

    PROBE = 0
    REPLICATE = 1
    SNAPSHOT = 2


class Inflights:
    """AppendEntries that were sent and not yet acknowledged, bounded in messages and bytes."""

    __slots__ = ("_bytes_max", "_messages_max", "_sent", "bytes")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.bytes = 0
        self._sent: deque[tuple[int, int]] = deque()
        self._messages_max = messages_max
        self._bytes_max = bytes_max

    def __len__(self) -> int:
        return len(self._sent)

    @property
    def full(self) -> bool:
        """True if nothing more may be sent. One message may exceed the byte limit, because a large entry could
        otherwise never be sent."""
        return self.bytes >= self._bytes_max or len(self._sent) >= self._messages_max

    def add(self, last_index: int, size: int) -> None:
        """Adds a sent message with entries up to `last_index`, of `size` bytes."""
        self._sent.append((last_index, size))
        self.bytes += size

    def free_to(self, index: int) -> None:
        """Removes the messages whose entries, up to `index`, are acknowledged."""
        sent = self._sent
        while sent and sent[0][0] <= index:
            self.bytes -= sent.popleft()[1]

    def clear(self) -> None:
        """Removes all messages: nothing counts as in flight any more."""
        self._sent.clear()
        self.bytes = 0


class Progress:
    """The leader's knowledge of one follower.

    Invariant: match_index < next_index; match_index never falls within a term.
    """

    __slots__ = (
        "acked_round",
        "fit",
        "gone",
        "held",
        "inflights",
        "match_index",
        "next_index",
        "probe_due",
        "probe_sent",
        "recent_active",
        "sent_commit",
        "state",
        "was_active",
    )

    def __init__(self, next_index: int, inflights: Inflights) -> None:
        self.match_index = -1
        """The largest index known to be on the follower's disk and equal to the leader's log."""
        self.next_index = next_index
        """The index of the next entry to send to the follower."""
        self.state = ProgressState.PROBE
        self.probe_sent = False
        """True while a probe is under way; used in PROBE only. The probe's reply clears it, and so does a heartbeat
        reply, because the probe may be lost."""
        self.probe_due = False
        """True if the next heartbeat reply may make the leader probe for a lost message; set once per heartbeat
        interval. A follower that was stopped answers hundreds of heartbeats at once; without this flag each answer
        would make the leader send the same entries."""
        self.recent_active = False
        """True if the follower was heard since the last check-quorum."""
        self.was_active = False
        """True if the follower was heard between the last two check-quorums."""
        self.gone = False
        """True if the follower's connection closed and the follower was not heard since."""
        self.fit = True
        """True if the follower's last heartbeat reply said that it may lead. An unknown follower counts as fit, because
        each member checks itself (eligibility.py)."""
        self.sent_commit = -1
        """The largest commit index sent to the follower, as far as the entries sent with it or before it reach. If the
        message is lost, the next heartbeat carries the index again."""
        self.acked_round = 0
        """The newest heartbeat round (ReadIndex) that the follower echoed in this term."""
        self.inflights = inflights
        self.held = False
        """True if the entries that the follower needs are on disk only, and the budget for reading them is used up."""

    @property
    def paused(self) -> bool:
        """True if no entries may be sent to the follower now."""
        if self.state is ProgressState.REPLICATE:
            return self.inflights.full
        return self.probe_sent or self.state is ProgressState.SNAPSHOT

    @property
    def is_live(self) -> bool:
        """True if the follower sent something within the last one or two check-quorum periods, and its connection has
        not closed since."""
        return (self.recent_active or self.was_active) and not self.gone

    def caught_up(self, commit_index: int) -> bool:
        """Returns True if the follower is live and in REPLICATE, all committed entries were sent to it, and its window
        has room. A majority with this follower would not have to wait for it."""
        replicates = self.state is ProgressState.REPLICATE and not self.inflights.full
        return replicates and self.is_live and self.next_index > commit_index

    def become_probe(self) -> None:
        """Returns to PROBE after `match_index`, because the guess of `next_index` was wrong."""
        self.state = ProgressState.PROBE
        self.next_index = self.match_index + 1
        self.probe_sent = False
        self.inflights.clear()

    def become_replicate(self) -> None:
        """Enters REPLICATE, because the follower's log matches: messages are pipelined from now on."""
        self.state = ProgressState.REPLICATE
        self.probe_sent = False
        self.inflights.clear()

    def become_snapshot(self) -> None:
        """Enters SNAPSHOT, because the entry before `next_index` is trimmed."""
        self.state = ProgressState.SNAPSHOT
        self.probe_sent = False
        self.inflights.clear()

    def leave_snapshot(self) -> None:
        """Returns to PROBE, because the entry before `next_index` is available again."""
        self.state = ProgressState.PROBE

    def sent(self, last_index: int, size: int) -> None:
        """Records a message with entries up to `last_index` that was sent to the follower. `size` is in bytes, 0 for an
        empty message."""
        if self.state is ProgressState.PROBE:
            self.probe_sent = True
        elif size:
            self.next_index = last_index + 1
            self.inflights.add(last_index, size)

    def accepted(self, match_index: int, first_index: int) -> bool:
        """Records that the follower has everything up to `match_index`. Returns False if that was known (a late or
        repeated reply).

        `first_index`: the first index of the leader's log; SNAPSHOT lasts until the follower's log reaches it.

        Replies may be reordered and duplicated, so neither `match_index` nor `next_index` moves back here.
        """
        if match_index < self.match_index:
            return False
        advanced = match_index > self.match_index
        self.match_index = match_index
        self.next_index = max(self.next_index, match_index + 1)
        if self.state is ProgressState.REPLICATE:
            self.inflights.free_to(match_index)
        elif self.state is ProgressState.PROBE or match_index >= first_index - 1:
            self.become_replicate()
        return advanced

    def rejected(self, refused_index: int, hint_index: int) -> bool:
        """Records that the follower refused a message with prev index `refused_index`. Returns False if the reply is
        stale.

        In REPLICATE a refusal at or below `match_index` answers an old message. In PROBE only the refusal of the
        current probe counts. In SNAPSHOT nothing is in flight. `next_index` always stays above `match_index`.
        """
        if self.state is ProgressState.SNAPSHOT:
            return False
        if self.state is ProgressState.REPLICATE:
            if refused_index <= self.match_index:
                return False
            self.become_probe()
            return True
        if refused_index != self.next_index - 1:
            return False
        self.next_index = max(min(refused_index, hint_index + 1), self.match_index + 1)
        self.probe_sent = False
        return True

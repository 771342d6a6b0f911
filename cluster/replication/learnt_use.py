"""Finds the topics that get more messages than the cluster's learnt limits allow: more than they usually get
(docs/adr/0117).

A limit is a token bucket, like that of a quota (`cluster.flow.quota_buckets`), but with ten seconds' worth, since it
was learnt from spans of ten seconds. A send that finds it empty takes nothing and is counted, but not refused: the
counts show what an enforced limit would refuse. While more arrives than the log takes, topics that are over their limit
are the first to be delayed and refused, in mode `on`. At any other time the limits have no effect.

A limit applies to the whole cluster. If there are several groups of brokers, the leader of each group applies the part
of the limit that corresponds to its group's part of the topic's queues: producers send to all queues in turn.

Log time decides which hour's limits apply, and when the limits expire. The buckets use the caller's monotonic time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from raftlog.work import charge
from statemachine.access.learnt_limits import LearntLimits, LearntMode

if TYPE_CHECKING:
    from cluster.replication.message_batch import Send, TopicSlot
    from statemachine.access.learnt_limits import Learnt

BURST_MS: Final = 10_000
"""Milliseconds in which an empty bucket becomes full."""
OVER_MS: Final = 1_000
"""Milliseconds after its last message over the limit for which a topic counts as over the limit."""
HOUR_MS: Final = 3_600_000
SENDS_PER_UNIT: Final = 20
"""Sends that are counted in a microsecond (a unit of `raftlog.work`)."""
WHOLE: Final = Fraction(1)
NOBODY: Final[Collection[int]] = frozenset()


class TopicUse:
    """Counts the messages and bytes that one topic gets, against its learned limits. Times are monotonic
    milliseconds."""

    __slots__ = (
        "_bytes_ms",
        "_full_bytes_ms",
        "_full_messages_ms",
        "_messages_ms",
        "_window_ms",
        "_window_seen",
        "bytes",
        "cut",
        "cut_ms",
        "hour",
        "messages",
        "over",
        "over_ms",
        "rate",
        "seen",
        "slot",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.topic_id = 0
        self.slot: TopicSlot | None = None
        """The topic as it was when the limits were looked up."""
        self.hour = -1
        """The hour of log time for which the limits apply; -1 before the first."""
        self.messages = self.bytes = 0
        """The limits of the hour, per second; 0 for no limit."""
        self._messages_ms = self._bytes_ms = 0.0
        self._full_messages_ms = self._full_bytes_ms = float("-inf")
        self.seen = self.over = self.cut = 0
        """The numbers of messages that arrived, that were over the limit, and that were refused because of it."""
        self.over_ms: float = float("-inf")
        self.cut_ms = 0
        """The times of the last message over the limit and of the last refused one."""
        self._window_ms = self._window_seen = 0
        self.rate = 0.0
        """The messages per second that arrived in the last complete span, which is at least BURST_MS long."""

    def limit(self, hour: int, messages: int, size: int) -> None:
        """Applies the limits of another hour: messages and bytes (`size`) per second."""
        self.hour, self.messages, self.bytes = hour, messages, size
        self._messages_ms = 1000 / messages if messages else 0.0
        self._bytes_ms = 1000 / size if size else 0.0

    def came(self, now_ms: int, messages: int, size: int) -> None:
        """Counts arrived messages, whose bodies have `size` bytes together."""
        if now_ms - self._window_ms >= BURST_MS:
            self.rate = 1000 * (self.seen - self._window_seen) / (now_ms - self._window_ms) if self._window_ms else 0.0
            self._window_ms, self._window_seen = now_ms, self.seen
        self.seen += messages
        if max(self._full_messages_ms, self._full_bytes_ms) - BURST_MS > now_ms:
            self.over += messages
            self.over_ms = now_ms
            return
        if self._messages_ms:
            self._full_messages_ms = max(self._full_messages_ms, now_ms) + messages * self._messages_ms
        if self._bytes_ms:
            self._full_bytes_ms = max(self._full_bytes_ms, now_ms) + size * self._bytes_ms

    def is_over(self, now_ms: int) -> bool:
        """Returns True if the topic was over its limit within the last OVER_MS."""
        return now_ms - self.over_ms < OVER_MS

    def told(self) -> str:
        """Returns the limits, for people."""
        both = (self.messages and f"{self.messages} messages", self.bytes and f"{self.bytes} bytes of bodies")
        return " and ".join(each for each in both if each)


class LearntUse:
    """Counts, on a leader, the arrived messages and bytes of topics with learnt limits. Event loop only."""

    def __init__(
        self,
        learnt: Learnt,
        part: Callable[[str], Fraction] = lambda topic: WHOLE,
        count: Callable[[str, int], None] = lambda outcome, messages: None,
    ) -> None:
        """`part` returns the part of a topic's queues that this group of brokers has. `count` is called with "within",
        "over" or "cut" (see `ProposalFigures.learnt`), and a number of messages."""
        self._learnt, self._part, self._count_as = learnt, part, count
        self._seen: LearntLimits | None = None
        self._uses: dict[str, TopicUse] = {}
        self._log_ms = 0
        self.active = False
        """True while there are limits in force. Set by `look`; while it is False, sends are not counted at all."""
        self.expired = False
        """True if there are limits, but they have expired."""
        self.demoted: Collection[int] = NOBODY
        """The ids of the topics whose sends are delayed and refused first now; empty if none are."""

    @property
    def limits(self) -> LearntLimits | None:
        """The limits that the last `look` found, expired ones too; None if there were none."""
        return self._seen

    def look(self, log_ms: int, now_ms: int, *, overloaded: bool) -> None:
        """Applies changed limits and updates `active`, `expired` and `demoted`. `overloaded`: True if more arrives than
        the log takes."""
        found = self._learnt.in_force
        if found is not self._seen:
            if found is None or self._seen is None or found.rows != self._seen.rows:
                self._uses = {}
            self._seen = found
        self._log_ms = log_ms
        self.expired = found is not None and log_ms >= found.head.ends_ms
        self.active = found is not None and not self.expired
        self.demoted = NOBODY
        if overloaded and self.active and found is not None and found.head.mode is LearntMode.ON:
            charge(1 + len(self._uses) // SENDS_PER_UNIT)
            self.demoted = frozenset(use.topic_id for use in self._uses.values() if use.is_over(now_ms))

    def forget(self) -> None:
        """Forgets the counted sends, because this node has become leader again."""
        self._uses = {}
        self.demoted = NOBODY

    def came(self, sends: list[Send], now_ms: int) -> None:
        """Counts arrived sends against their topics' limits."""
        slot = sends[0].slot
        messages = size = 0
        for send in sends:
            if send.slot is not slot:
                self._count(slot, now_ms, messages, size)
                slot, messages, size = send.slot, 0, 0
            if send.batch:
                messages += len(send.batch)
                size += sum([len(each.body) for each in send.batch])
            else:
                messages += 1
                size += len(send.body)
        self._count(slot, now_ms, messages, size)

    def _count(self, slot: TopicSlot, now_ms: int, messages: int, size: int) -> None:
        limits, topic = self._seen, slot.name
        use = self._uses.get(topic)
        if limits is None or (use is None and topic not in limits.rows):
            return
        if use is None:
            use = self._uses[topic] = TopicUse(topic)
        hour = self._log_ms // HOUR_MS
        # If the topic has another slot, its queues may have moved to other groups.
        if use.hour != hour or use.slot is not slot:
            use.slot, use.topic_id = slot, slot.topic_id
            part = self._part(topic)
            use.limit(hour, *[math.ceil(limit * part) for limit in limits.of(topic, self._log_ms)])
        over = use.over
        use.came(now_ms, messages, size)
        self._count_as("over" if use.over > over else "within", messages)

    def cut(self, sends: list[Send], now_ms: int) -> None:
        """Counts sends that were refused because their topic is one of the demoted ones."""
        for send in sends:
            use = self._uses.get(send.slot.name)
            if use is not None:
                messages = len(send.batch) or 1
                self._count_as("cut", messages)
                use.cut += messages
                use.cut_ms = now_ms

    def of(self, topic: str) -> TopicUse | None:
        """Returns the use of a topic; None if no messages have arrived for it, or it has no limits."""
        return self._uses.get(topic)

    def all(self) -> Iterable[TopicUse]:
        """Returns the use of each topic that has limits and for which messages have arrived."""
        return self._uses.values()

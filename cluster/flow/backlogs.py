"""Enforces the quotas on the bytes that a topic keeps: the leader checks them before it takes a send.

A topic's bytes are not counted message by message. They are measured now and then, off the loop
(`cluster.broker.backlog_sizes`), and the bytes of sends that are taken after a measurement are added to its result. The
sum is too low by at most the sends in flight, and too high by what retention has removed since. A topic is not measured
while no client sends to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from cluster.flow.quota_limits import BACKLOG_BYTES
from cluster.flow.quota_rules import Refusals, Rule

if TYPE_CHECKING:
    from cluster.flow.quota_rules import QuotaRules
    from statemachine.access.quotas import Quota

MEASURED_EVERY_MS: Final = 10_000
REFUSING_EVERY_MS: Final = 1_000
"""Milliseconds between two measurements of a topic that refuses sends. It takes sends again as soon as a measurement
shows that messages were removed.
"""
MEASURED_AT_ONCE: Final = 64
"""The most topics that are measured together."""
TOPICS_MAX: Final = 20_000
"""The most topics that are remembered."""
NEVER_MS: Final = -(1 << 62)


class Backlog(Refusals):
    """The bytes that one topic keeps, as far as they are known, and the quota that limits them."""

    __slots__ = ("_added", "_before", "kept", "measured_ms", "rows", "topic_id", "used_ms")
    advice = "consume faster, or let the topic give up its oldest messages"

    def __init__(self, rule: Rule, topic_id: int) -> None:
        super().__init__(rule)
        self.topic_id = topic_id
        self.rows: Mapping[str, Quota] = {}
        """The quotas of the cluster from which the rule was computed."""
        self.kept: int | None = None
        """The bytes of the last measurement and of all sends taken since; None if the topic was not measured yet."""
        self.measured_ms = self.used_ms = NEVER_MS
        self._added = self._before = 0

    def judge_by(self, rule: Rule, rows: Mapping[str, Quota]) -> None:
        """Applies the topic's rule, which was found in `rows`. A changed rule resets the count of refusals, but not the
        measured bytes."""
        if rule != self.rule:
            self.rule, self.refused = rule, 0
        self.rows = rows

    def takes(self, size: int, now_ms: int) -> bool:
        """Adds a send of `size` bytes and returns True, or returns False if it would exceed the quota. Before the first
        measurement it always returns True."""
        self.used_ms = now_ms
        if self.kept is not None and self.kept + size > self.rule.value:
            return False
        self._added += size
        if self.kept is not None:
            self.kept += size
        return True

    def begin(self, now_ms: int) -> None:
        """Records that a measurement begins. Its result may lack the bytes that are added from now on."""
        self.measured_ms, self._before = now_ms, self._added

    def measured(self, size: int) -> None:
        """Records the result of a measurement, in bytes, and adds what was taken since the measurement began."""
        self.kept = size + self._added - self._before

    def is_due(self, now_ms: int) -> bool:
        """Returns True if the topic should be measured: a client has tried to send to it since the last measurement,
        which is long enough ago."""
        every_ms = REFUSING_EVERY_MS if self.refused_ms > self.measured_ms else MEASURED_EVERY_MS
        return self.used_ms > self.measured_ms and now_ms - self.measured_ms >= every_ms

    def told(self) -> str:
        """Returns a text for people with the limit, and with the bytes that the topic keeps if they are known."""
        kept = "" if self.kept is None else f", has {self.kept:,}"
        return f"{super().told()}{kept}"


class Backlogs:
    """The backlogs of the topics of one leader. Event loop only."""

    def __init__(self, rules: QuotaRules, evicts: Callable[[str], bool]) -> None:
        """`evicts` returns True if a topic gives up its oldest messages instead of refusing new ones."""
        self._rules, self._evicts = rules, evicts
        self._seen: Mapping[str, Quota] = {}
        self._free: set[str] = set()
        """Topics whose bytes no quota limits, or which give up their oldest messages instead of refusing sends."""
        self._topics: dict[str, Backlog] = {}
        self._measuring: dict[int, Backlog] = {}
        """Id -> backlog of each topic that is being measured."""
        rules.judges.append(self.all)

    @property
    def active(self) -> bool:
        """True if any quota limits what a topic keeps."""
        return self._rules.has(BACKLOG_BYTES)

    def forget(self) -> None:
        """Forgets all backlogs. Called when this node has become leader."""
        self._topics.clear()
        self._free.clear()

    def topic_changed(self, topic: str) -> None:
        """Forgets the backlog of a topic. Called when the topic is created, changed or deleted."""
        self._topics.pop(topic, None)
        self._free.discard(topic)

    def of(self, topic: str, topic_id: int) -> Backlog | None:
        """Returns the backlog that limits sends to a topic; None if sends are not limited by one."""
        if self._rules.rows is not self._seen:
            self._seen = self._rules.rows
            self._free.clear()
        if topic in self._free:
            return None
        known = self._topics.get(topic)
        if known is None or known.rows is not self._seen:
            return self._found(topic, topic_id, known)
        return known

    def _found(self, topic: str, topic_id: int, known: Backlog | None) -> Backlog | None:
        rule = self._rules.of_topic(BACKLOG_BYTES, topic)
        if rule is None or self._evicts(topic):
            if len(self._free) >= TOPICS_MAX:
                self._free.clear()
            self._topics.pop(topic, None)
            self._free.add(topic)
            return None
        if known is None:
            if len(self._topics) >= TOPICS_MAX:
                self._topics.clear()
            known = self._topics[topic] = Backlog(rule, topic_id)
        known.judge_by(rule, self._seen)
        return known

    def due(self, now_ms: int) -> list[int]:
        """Returns the ids of the topics to measure now, at most MEASURED_AT_ONCE: topics that were never measured
        first, then those measured longest ago. Marks their measurements as begun."""
        due = [each for each in self._topics.values() if each.is_due(now_ms)]
        due.sort(key=lambda each: (each.measured_ms, each.topic_id))
        found = {each.topic_id: each for each in due[:MEASURED_AT_ONCE]}
        for each in found.values():
            each.begin(now_ms)
        self._measuring |= found
        return list(found)

    def measured(self, sizes: Mapping[int, int]) -> None:
        """Records the results of the begun measurements. `sizes`: id of a topic -> its bytes."""
        for topic_id, size in sizes.items():
            if (backlog := self._measuring.get(topic_id)) is not None:
                backlog.measured(size)
        self._measuring = {}

    def all(self) -> Iterable[Refusals]:
        """Returns all known backlogs. Some may be of topics whose quota was deleted since."""
        return self._topics.values()

"""Decides about sends of clients to a group of brokers that drains (docs/adr/0113), or to a topic that is only read
there (docs/adr/0114). They are accepted for a while, and then refused.

A client learns from its next route, which it asks for every 30 s, that the group takes no new messages. The messages
that it sends until then are stored and read like any others. If they were refused, an asynchronous RocketMQ producer
would not send them to another group.
"""

from __future__ import annotations

from typing import Final

from cluster.runtime.environment import ROUTE_AGE_MS
from statemachine.broker_state import BrokerState
from statemachine.cluster_wide.broker_groups import is_inactive
from statemachine.topics.topics import DERIVED_NAMES

GRACE_MS: Final = ROUTE_AGE_MS
"""Milliseconds for which a leader accepts sends after it has learnt that its group drains."""


class DrainGrace:
    """Decides whether the node's group refuses sends of clients because it drains. Event loop only."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._since_ms: int | None = None
        self.refuses = False
        """True if clients' sends are refused."""
        self._gathered: frozenset[str] = frozenset()

    @property
    def drains(self) -> bool:
        """True if the node's group drains, as far as this node has applied the log."""
        groups = self._state.broker_groups
        return is_inactive(groups.by_number, groups.own)

    def remark(self, topic: str = "") -> str:
        """Returns the reason for a refusal. `topic`: the topic of the send, so that the reason may also be that the
        topic is only read here."""
        own = self._state.broker_groups.own
        if topic and not self.drains:
            return f"topic {topic} takes no new messages in group {own}; ask for its route again"
        if self.is_closed:
            return f"group {own} has retired; ask for the topic's route again"
        return f"group {own} is drained and takes no new messages; ask for the topic's route again"

    @property
    def is_closed(self) -> bool:
        """True if the node's log accepts no more messages, neither from clients nor from the broker itself."""
        return self._state.closed_log.is_closed

    def takes(self, topic: str) -> bool:
        """Returns True if sends to the topic are not refused. Sends to topics of messages whose consumption failed are
        accepted until the log is closed."""
        if topic in self._gathered and ((found := self._state.topics.get(topic)) is None or found.is_read_out):
            return False
        return not self.refuses or topic.startswith(DERIVED_NAMES)

    def refuse_topics(self, gathered: frozenset[str]) -> bool:
        """Sets the topics to which sends are refused: they are only read in this group, and their clients have had time
        to learn that. Returns True if the set has changed."""
        changed, self._gathered = gathered != self._gathered, gathered
        return changed

    def look(self, now_ms: int) -> bool:
        """Records whether the group drains at this monotonic time; returns True if `refuses` has changed."""
        if not self.drains:
            self._since_ms = None
        elif self._since_ms is None:
            self._since_ms = now_ms
        refuses = self._since_ms is not None and now_ms - self._since_ms >= GRACE_MS
        changed, self.refuses = refuses is not self.refuses, refuses
        return changed

    def left_ms(self, now_ms: int) -> int:
        """Returns for how many more milliseconds sends are accepted although the group drains."""
        if self.refuses or not self.drains:
            return 0
        return GRACE_MS if self._since_ms is None else max(0, self._since_ms + GRACE_MS - now_ms)

    def begin(self) -> None:
        """Begins a new term of leadership: the grace period starts again."""
        self._since_ms, self.refuses, self._gathered = None, False, frozenset()

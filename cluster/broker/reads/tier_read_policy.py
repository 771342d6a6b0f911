"""Decides which pulls are answered from the tier (copies of the log in an object store, `cluster.tier`) although this
node still has their messages: `tier.read`, for the cluster and for each topic (docs/adr/0071).

The levels have the names of RocketMQ's `tieredStorageLevel`. They decide where messages are read, never which messages
a pull gets: messages that the tier cannot deliver are read from this node's log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from statemachine.tier import TierState

if TYPE_CHECKING:
    from cluster.config.config import Config
    from statemachine.broker_state import BrokerState

ATTRIBUTE: Final = "tier.read"
"""The attribute of a topic that overrides the cluster's level. A value that is not one of LEVELS is ignored, because an
older release accepted any value."""
NOT_IN_DISK: Final = "NOT_IN_DISK"
"""The level at which the tier serves only messages that this node no longer has."""
NOT_IN_MEM: Final = "NOT_IN_MEM"
"""The level at which the tier also serves messages that probably are not in this node's memory: those further behind
the end of the log than `modes.access_message_in_memory_max_ratio` percent of the memory. Reading them here would read
the disk."""
FORCE: Final = "FORCE"
"""The level at which the tier serves every message that it has."""
LEVELS: Final = (NOT_IN_DISK, NOT_IN_MEM, FORCE)
PAUSE_MS: Final = 10_000
"""Milliseconds after a failure of the store during which this node reads its own log, so that no pull waits for the
store."""


class ReadLevels:
    """Decides for this node's pulls whether they are read from the tier. Event loop only."""

    def __init__(
        self,
        config: Config,
        state: BrokerState,
        now_ms: Callable[[], int],
        memory: Callable[[], int],
    ) -> None:
        """`now_ms` returns the monotonic time. `memory` returns the bytes of memory of the machine."""
        self._state = state
        self._now_ms = now_ms
        self._memory_bytes = memory()
        self._resumes_ms = 0
        self.reload(config)

    def reload(self, config: Config) -> None:
        """Applies another configuration."""
        self._level: str = config.tier.read
        self._hot_bytes = self._memory_bytes * config.modes.access_message_in_memory_max_ratio // 100

    def prefers_tier(self, topic_id: int, queue_id: int, offset: int) -> bool:
        """Returns True if the message at the offset, which this node has, should be read from the tier."""
        topic = self._state.topics_by_id.get(topic_id)
        level = self._level if topic is None else topic.attributes.get(ATTRIBUTE, self._level)
        if level not in LEVELS:
            level = self._level
        if level == NOT_IN_DISK or self._now_ms() < self._resumes_ms:
            return False
        items = self._state.fetch(topic_id, queue_id, offset, 1)
        if not items:
            return False
        position = items[0].position
        if level == NOT_IN_MEM and self._state.applied_mark.end_position - position <= self._hot_bytes:
            return False
        row = self._state.tier.at(position)
        return row is not None and row.state is TierState.VERIFIED

    def failed(self) -> None:
        """Records that the store failed to deliver an object that it has. The tier is then not preferred for
        PAUSE_MS."""
        self._resumes_ms = self._now_ms() + PAUSE_MS

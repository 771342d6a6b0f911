"""The reads of a state about queues: their bounds, and the items between them.

A deleted topic has no queues for these reads, even while its rows are still in the store.
"""

from __future__ import annotations

from raftlog.errors import InvariantViolationError
from statemachine import queue_reads
from statemachine.consume_queue import ConsumeQueues
from statemachine.family import Reads, family_of
from statemachine.queue_reads import QueueItem
from statemachine.removals import Removals
from statemachine.topics.topics import TopicConfig, Topics


class QueueReads(Reads):
    """The reads of queues, on any thread."""

    _queues = family_of(ConsumeQueues)

    def stored_queues(self, topic: TopicConfig) -> int:
        """Returns the number of queues that the topic has or had: those that it lost when their number was reduced
        count as long as they have rows. Their messages are kept like all others, and can be read again once the topic
        has the queue again."""
        return self._queues.stored_queues(topic.id, topic.queues)

    def max_offset(self, topic_id: int, queue_id: int) -> int:
        """Returns the offset that the queue's next message gets; 0 if it never had messages, or for a deleted topic.
        Offsets below it, down to `min_offset`, can be fetched."""
        return self._queues.max_offset(topic_id, queue_id)

    def min_offset(self, topic_id: int, queue_id: int) -> int:
        """Returns the first offset of the queue that this node's log still has; `max_offset` if it has none."""
        return self._queues.min_offset(topic_id, queue_id)

    def kept_offset(self, topic_id: int, queue_id: int) -> int:
        """Returns the first offset of the queue that is kept on this node or in the tier. It is below `min_offset` if
        messages were evicted to the tier; the lowest of those may be gone from there as well."""
        if topic_id in self[Removals].topics:
            return 0
        return queue_reads.kept_offset(self._kv, topic_id, queue_id)

    def fetch(self, topic_id: int, queue_id: int, queue_offset: int, count_max: int) -> list[QueueItem]:
        """Returns up to `count_max` items of the queue from `queue_offset` on; [] outside min_offset..max_offset."""
        return queue_reads.unpack_items(self.fetch_packed(topic_id, queue_id, queue_offset, count_max), queue_offset)

    def fetch_packed(self, topic_id: int, queue_id: int, queue_offset: int, count_max: int) -> bytes:
        """Returns the same items as `fetch`, packed (`payload.ITEM`) and back to back."""
        if queue_offset < self.min_offset(topic_id, queue_id):
            return b""
        end = min(queue_offset + count_max, self.max_offset(topic_id, queue_id))
        try:
            return queue_reads.fetch_packed(self._kv, topic_id, queue_id, queue_offset, end)
        except InvariantViolationError:
            if topic_id in self[Topics].by_id:
                raise
            return b""  # the topic was deleted after `max_offset` was read

    def offset_by_time(self, topic_id: int, queue_id: int, timestamp_ms: int, upper: bool) -> int:
        """Returns the queue's first offset stored at or after the time (max_offset if none); with `upper`, the last one
        stored at or before it (min_offset if none)."""
        low, high = self.min_offset(topic_id, queue_id), self.max_offset(topic_id, queue_id)
        return queue_reads.offset_by_time(self._kv, topic_id, queue_id, timestamp_ms, upper, low, high)

"""The families of rows of one state, and what readers on any thread may ask of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from raftlog.errors import InvariantViolationError
from raftlog.membership import Membership
from statemachine import queue_reads
from statemachine.access.users import Access
from statemachine.cluster_level import ClusterLevel
from statemachine.command_table import FAMILIES
from statemachine.consume_queue import ConsumeQueues
from statemachine.consuming.consumer_offsets import ConsumerOffsets
from statemachine.consuming.groups import GroupConfig, Groups
from statemachine.consuming.offset_resets import OffsetReset, OffsetResets
from statemachine.consuming.queue_locks import QueueLock, QueueLocks
from statemachine.consuming.queue_rows import Queue
from statemachine.dedup import Dedup, ProducerSession, UniqueMessage
from statemachine.delivery.half_messages import HalfMessages
from statemachine.delivery.staged_writes import StagedWrites
from statemachine.delivery.timers import Timers
from statemachine.family import Family
from statemachine.members import Members
from statemachine.message_index import MessageIndex
from statemachine.queue_reads import QueueItem
from statemachine.removal_slices import RemovalSlices
from statemachine.removals import Removals
from statemachine.rows.kv import KV
from statemachine.rows.sorted_map import SortedMap
from statemachine.settings import Settings
from statemachine.tier import TierSegment, TierSegments
from statemachine.topics import TopicConfig, Topics
from statemachine.trim import Kept, Sweep, TrimMark, TrimState


class StateReads:
    """All families of one state, and the reads of them. Any thread may use the public members; those that are families
    name the members that any thread may use."""

    def __init__(self, kv: KV, known_level: int) -> None:
        """Makes the families, each after those that it needs. Raises KVError if the state has a level above
        `known_level`."""
        self._kv = kv
        self._level = level = ClusterLevel(kv, known_level)
        self._topics = topics = Topics(kv, level.staged)
        self._groups = groups = Groups(kv, level.staged)
        self._removals = removals = Removals(kv)
        self._resets = OffsetResets(kv, removals, topics)
        self._offsets = ConsumerOffsets(kv, removals, topics, groups, self._resets)
        self._locks = QueueLocks(kv, removals, topics, groups)
        self._queues = ConsumeQueues(kv, removed=removals.topics)
        self._dedup = Dedup(kv)
        self.writes = StagedWrites(kv, removals)
        """Messages of staged writes (Spark), which wait for a commit."""
        self._slices = RemovalSlices(
            topics, groups, removals, self._queues, self._dedup, self._offsets, self._locks, self._resets, self.writes
        )
        self._index = MessageIndex(kv)
        self.timers = Timers(kv, self.writes)
        """Scheduled messages, which wait until they are due, and the rows of messages of staged writes."""
        self.halves = HalfMessages(kv)
        """Half messages, whose transactions are open."""
        self._trim = TrimState(kv)
        self.tier = TierSegments(kv, self._trim)
        """The log's segments in object storage."""
        self.settings = Settings(kv)
        """The configuration of the cluster."""
        self.access = Access(kv, level.staged)
        """Users and their rules."""
        self._members = Members(kv)
        made = [each for each in vars(self).values() if isinstance(each, Family)]
        self._families = tuple(sorted(made, key=lambda family: FAMILIES.index(type(family))))

    @property
    def topics(self) -> SortedMap[str, TopicConfig]:
        """Every topic by name. The apply thread changes the map while others read it; `SortedMap` says which keys an
        iteration meets."""
        return self._topics.by_name

    @property
    def topics_by_id(self) -> SortedMap[int, TopicConfig]:
        """Every topic by id, in a map that changes like `topics`."""
        return self._topics.by_id

    @property
    def queue_count(self) -> int:
        """The number of queues of all topics together."""
        return self._topics.queues

    @property
    def groups(self) -> SortedMap[str, GroupConfig]:
        """Every consumer group by name, in a map that changes like `topics`."""
        return self._groups.by_name

    @property
    def membership(self) -> Membership | None:
        """The newest MEMBERSHIP entry that was applied; None as long as the members are those of GENESIS, the first
        entry."""
        return self._members.membership

    @property
    def acknowledged(self) -> int:
        """Index of the newest MEMBERSHIP event that an operator acknowledged; 0 for none."""
        return self._members.acknowledged

    @property
    def level(self) -> int:
        """The level of the cluster: its log may contain commands up to this level (`Command.LEVEL`)."""
        return self._level.level

    def locks_of_group(self, group: str) -> Mapping[Queue, QueueLock]:
        """Returns the queue locks of the consumer group by queue, expired ones included."""
        return self._locks.of_group(group)

    def resets_of_group(self, group: str) -> Mapping[Queue, OffsetReset]:
        """Returns the group's offset resets, by queue, of which its consumers have not been told."""
        return self._resets.of_group(group)

    @property
    def has_resets(self) -> bool:
        """True if any group has an offset reset of which its consumers have not been told."""
        return not self._resets.is_empty

    @property
    def trim_mark(self) -> TrimMark:
        """The beginning of the log, and the TRIM that set it."""
        return self._trim.mark

    @property
    def sweep(self) -> Sweep | None:
        """The cut of the log's beginning that is being carried out slice by slice; None if there is none."""
        return self._trim.sweep

    @property
    def removing(self) -> int:
        """The number of deleted topics, deleted groups and other removals whose rows are not all gone yet."""
        return self._removals.pending

    @property
    def trim_position(self) -> int:
        """The position in the log below which the state refers to nothing; 0 if the log was never trimmed."""
        return self._trim.mark.position

    @property
    def trim_index(self) -> int:
        """Index of the entry at `trim_position`."""
        return self._trim.mark.first_index

    @property
    def kept(self) -> Kept:
        """The beginning of the log that is still kept, on this node or in the tier. It is below `trim_position` if
        segments were evicted, and so are only in the tier."""
        return self._trim.kept

    @property
    def kept_segments(self) -> tuple[TierSegment, ...]:
        """The segments in the tier that hold something of the log that is still kept. Segments that a TRIM removed for
        everybody are not among them: their objects may be gone."""
        return self.tier.above(self.kept.position)

    def offset(self, group: str, topic_id: int, queue_id: int) -> int | None:
        """Returns the group's committed offset of the queue, the next to consume; None if the group never committed
        one."""
        return self._offsets.get(group, topic_id, queue_id)

    def offsets_of_group(self, group: str) -> list[tuple[int, int, int]]:
        """Returns (topic_id, queue_id, offset) of every queue for which the group has committed an offset,
        ascending."""
        return self._offsets.sorted_of_group(group)

    def offsets_by_topic(self, group: str) -> dict[int, Mapping[int, int]]:
        """Returns topic id -> queue id -> offset of every queue for which the group has committed an offset, in no
        order. Takes one step per topic."""
        return self._offsets.by_topic(group)

    def stored_queues(self, topic: TopicConfig) -> int:
        """Returns the number of queues that the topic has or had: those that it lost when their number was reduced
        count as long as they have rows. Their messages are kept like all others, and are there again once the topic has
        the queue again."""
        return self._queues.stored_queues(topic.id, topic.queues)

    def max_offset(self, topic_id: int, queue_id: int) -> int:
        """Returns the offset that the queue's next message gets, 0 if it never had messages. Offsets below it, down to
        `min_offset`, can be fetched."""
        return self._queues.max_offset(topic_id, queue_id)

    def min_offset(self, topic_id: int, queue_id: int) -> int:
        """Returns the first offset of the queue that this node's log still has; `max_offset` if it has none."""
        return self._queues.min_offset(topic_id, queue_id)

    def kept_offset(self, topic_id: int, queue_id: int) -> int:
        """Returns the first offset of the queue that is kept on this node or in the tier. It is below `min_offset` if
        messages were evicted to the tier; the lowest of those may be gone from there as well."""
        if topic_id in self._removals.topics:
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
            if topic_id in self._topics.by_id:
                raise
            return b""  # it was deleted since the end was looked up

    def offset_by_time(self, topic_id: int, queue_id: int, timestamp_ms: int, upper: bool) -> int:
        """Returns the queue's first offset stored at or after the time (max_offset if none); with `upper`, the last one
        stored at or before it (min_offset if none)."""
        low, high = self.min_offset(topic_id, queue_id), self.max_offset(topic_id, queue_id)
        return queue_reads.offset_by_time(self._kv, topic_id, queue_id, timestamp_ms, upper, low, high)

    @property
    def message_index(self) -> MessageIndex:
        """The index of messages by key. Callers use its `bucket_below` and `candidates`."""
        return self._index

    def session(self, producer_id: bytes) -> ProducerSession | None:
        """Returns the session of the producer with this id (16 bytes); None if it is unknown or expired."""
        return self._dedup.session(producer_id)

    def max_sequence(self, producer_id: bytes) -> int:
        """Returns the highest sequence number of the producer that is stored; 0 if the producer is unknown or
        expired."""
        return self._dedup.max_sequence(producer_id)

    def session_at_hand(self, producer_id: bytes) -> ProducerSession | None:
        """Returns the producer's session. Raises SessionUnreadError if the session is long and not in memory; the
        caller then calls `read_session` first."""
        return self._dedup.session_at_hand(producer_id)

    def read_session(self, producer_id: bytes) -> Iterator[None]:
        """Reads a long session into memory in short steps, so that `session_at_hand` finds it. Only one reader per
        producer at a time."""
        return self._dedup.read_session(producer_id)

    def unique(self, topic_id: int, key_hash: int, body_crc: int) -> UniqueMessage | None:
        """Returns the place of the stored message with this key and body, in a topic with dedup=strict; None if there
        is none."""
        if topic_id in self._removals.topics:
            return None
        return self._dedup.unique(topic_id, key_hash, body_crc)

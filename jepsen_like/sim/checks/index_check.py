"""Checks that every message is found by each of its keys. A comparison of the replicas' digests does not detect an
index row that all replicas lack."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cluster.replication.message_head import UNIQUE_MARK, key_words, property_of
from raftlog.errors import DamagedLogError
from raftmq_wire.message_format import MessageFormatError, decode_message
from statemachine.broker_state import BrokerState
from statemachine.queue_reads import QueueItem
from statemachine.topics.topics import TopicConfig

ReadLog = Callable[[int, int], bytes]
IsDamaged = Callable[[int, int], bool]


def not_found(state: BrokerState, read_log: ReadLog, is_damaged: IsDamaged) -> Iterator[str]:
    """Yields a line for each pair of a message and one of its keys for which a query by the key does not find the
    message. A bit of an entry may have flipped on the replica's disk before anything read the entry. Its damaged bytes
    may then hold other keys, which the index does not have. `is_damaged(position, size)` recognizes such entries by
    their checksum, and they are skipped.
    """
    for topic in list(state.topics_by_id.values()):
        for queue_id in range(topic.queues):
            first, end = state.min_offset(topic.id, queue_id), state.max_offset(topic.id, queue_id)
            for item in state.fetch(topic.id, queue_id, first, end - first):
                missing = list(_not_found(state, topic, item, read_log))
                if missing and not is_damaged(item.position, item.size):
                    yield from missing


def _not_found(state: BrokerState, topic: TopicConfig, item: QueueItem, read_log: ReadLog) -> Iterator[str]:
    what = f"{topic.name} offset {item.queue_offset} at {item.position}"
    try:
        properties = decode_message(read_log(item.position, item.size))[0].properties
    except (MessageFormatError, DamagedLogError) as error:
        yield f"{what} cannot be read: {error}"
        return
    bucket = state.message_index.bucket_below(item.position + 1)
    for key in dict.fromkeys([property_of(properties, UNIQUE_MARK), *key_words(properties)]):
        batches = [] if bucket is None else state.message_index.candidates(bucket, topic.id, key)
        if not any(item.position in positions for positions in batches):
            yield f"{what} is not found by its key {key!r}"

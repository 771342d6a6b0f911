"""Finds messages by position or key in a node's applied state. `message_queries` has the clients' queries.

Positions come from clients and from an index of hashes, so a position alone proves nothing: a message counts only if
the consume queue of an existing topic names exactly that position, and its bytes match the CRC there.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, NamedTuple

from cluster.replication.message_head import KEYS_MARK, UNIQUE_MARK
from cluster.runtime.request_limits import INT64_MAX, TOPIC_LENGTH_MAX
from raftlog.errors import OutOfRangeError, StorageError
from raftlog.frame import FRAME_LENGTH_MAX
from raftlog.kept_errors import bare
from raftlog.work import charge_text
from raftmq_wire.checksums import crc32c
from raftmq_wire.message_format import (
    CLAIM_BYTES,
    HEAD,
    MAGIC_V1,
    MAGIC_V2,
    Message,
    MessageClaim,
    MessageFormatError,
    claim_in,
    decode_message,
    stored_at,
)
from raftmq_wire.properties import values_of
from statemachine.delivery.staged_writes import attempt_of
from statemachine.rows.keys import U64_MAX
from statemachine.topics.topics import TopicConfig

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from statemachine.queue_reads import QueueItem

CANDIDATES_MAX = 1024
"""The most messages that one lookup reads. Only keys that were made to collide in the index have so many candidates."""
BYTES_MAX = 8 << 20
"""The bytes of found messages above which a lookup ends: half of the largest frame that clients accept."""

_SYS_FLAG_AT = 36
_I64 = struct.Struct(">q")
_I32 = struct.Struct(">i")


class UnreadableError(Exception):
    """Raised if no intact message can be read at the position: no message begins there, or its bytes have changed."""


class StoredMessage(NamedTuple):
    """A message, its bytes as they are stored, and the topic of its row."""

    message: Message
    data: bytes
    topic: str
    """Name of the topic in whose queue the message is, or will be. It decides who may read the message."""


class KeyQuery(NamedTuple):
    """A search for a key, between two times in milliseconds of log time, both inclusive."""

    key: str
    unique: bool
    """If True, the key is compared with the property UNIQ_KEY only; otherwise also with each word of KEYS."""
    count_max: int
    begin_ms: int = 0
    end_ms: int = INT64_MAX

    @property
    def shown(self) -> str:
        """The key for use in a text. It is cut, because a key may be as long as properties can be."""
        return self.key[:255]


class QueryResult(NamedTuple):
    """The result of a lookup; `messages` has the newest first."""

    messages: list[StoredMessage]
    unreadable: int | None
    """The position of a candidate that cannot be read intact on this node; None if all could be read."""
    stopped: bool
    """True if there may be more: CANDIDATES_MAX messages were read, the reply is full, or the tier cannot be asked."""

    @property
    def may_miss(self) -> bool:
        """True if messages that match the query may be missing from the result."""
        return self.stopped or self.unreadable is not None


def message_at(
    node: Services, position: int, topic: TopicConfig | None = None, *, waiting: bool = False
) -> StoredMessage | None:
    """Returns the message whose first byte is at `position`; None if it is in no queue of `topic`, or of its own topic.
    With `waiting`, messages that are not delivered yet are found too. If such a message was appended again to free the
    log, it is returned in the form in which it was first stored.

    Raises UnreadableError if no intact message can be read at the position: perhaps no message begins there, perhaps
    its bytes have changed.
    """
    unreadable: UnreadableError | None = None
    try:
        found = _queued_at(node, position, topic)
    except UnreadableError as error:
        found, unreadable = None, bare(error)
    if found is None and waiting and 0 <= position < node.state.applied_mark.end_position:
        found = _waiting_at(node, position)
    if found is None and unreadable is not None:
        raise unreadable
    return found


def _queued_at(node: Services, position: int, topic: TopicConfig | None) -> StoredMessage | None:
    """Returns the message if it is in a queue, else None. The row of the message is looked up before the message is
    read, because bytes that only look like a message may claim any size."""
    claim, state = _claim_at(node, position), node.state
    topic = topic or state.topics.get(_topic_of(node, position, claim))
    if topic is None or not 0 <= claim.queue_id < state.stored_queues(topic) or claim.queue_offset < 0:
        return None
    items = state.fetch(topic.id, claim.queue_id, claim.queue_offset, 1)
    if not items or items[0].position != position:
        return None
    return _stored(node, items[0])._replace(topic=topic.name)


def _waiting_at(node: Services, position: int) -> StoredMessage | None:
    """Returns the message if it waits for its delivery and lies at the position now, or lay there before it was carried
    forward; else None."""
    state = node.state
    scheduled, half = state.timers.at(position), state.halves.at(position)
    if scheduled is not None and attempt_of(scheduled[0].due_ms) is not None:
        return None  # a staged message, which nobody sees before it is committed
    if scheduled is not None:
        topic_id, item = scheduled[0].topic_id, scheduled[1]
    elif half is not None:
        topic_id, item = half.topic_id, half.stored
    else:
        return None
    topic = state.topics_by_id.get(topic_id)
    if topic is None:
        return None  # its topic was deleted, so the message is never delivered
    stored = _stored(node, item)
    return StoredMessage(stored.message._replace(position=position), stored_at(stored.data, position), topic.name)


def _stored(node: Services, item: QueueItem) -> StoredMessage:
    """Returns the message of a row. Raises UnreadableError if its bytes cannot be read, or do not match the CRC in the
    row."""
    data = _read(node, item.position, item.size)
    if item.crc32c != crc32c(data):
        raise UnreadableError(f"the message at position {item.position} does not match its checksum")
    try:
        return StoredMessage(decode_message(data)[0], data, "")
    except MessageFormatError as error:
        raise UnreadableError(str(error)) from error


def why_none(node: Services, position: int, error: UnreadableError | None = None) -> str:
    """Returns the text for a client that gets no message for its position. The text is the same whether there is no
    message or the client may not read it, so that it reveals nothing. `error`: the reason why nothing could be read
    there."""
    if error is not None and isinstance(error.__cause__, (StorageError, OutOfRangeError)):
        return str(error)  # the log cannot be read there, whether there is a message or not
    return _outside(node, position) or f"no message that you may read begins at position {position}"


def _outside(node: Services, position: int) -> str:
    """Returns the reason why the position is not within this node's log; "" if it is."""
    state = node.state
    end = state.applied_mark.end_position
    if 0 <= position < state.trim_position:
        return f"position {position} was trimmed: the log begins at {state.trim_position}"
    if not 0 <= position <= end - HEAD.size:
        return f"position {position} is not within the log, which ends at {end}"
    return ""


def _claim_at(node: Services, position: int) -> MessageClaim:
    """Returns what the bytes at the position claim about the message that begins there. Raises UnreadableError if the
    position is outside the log, if its bytes cannot be read, or if they are not the beginning of a message."""
    if why := _outside(node, position):
        raise UnreadableError(why)
    head = _read(node, position, HEAD.size)
    size, left = HEAD.unpack(head)[0], node.state.applied_mark.end_position - position
    try:
        if not HEAD.size <= size <= min(left, FRAME_LENGTH_MAX):
            raise MessageFormatError(f"a message of {size} bytes does not fit")
        return claim_in(head + _read(node, position + HEAD.size, min(CLAIM_BYTES, size) - HEAD.size))
    except MessageFormatError as error:
        raise UnreadableError(f"no message begins at position {position}") from error


def _topic_of(node: Services, position: int, claim: MessageClaim) -> str:
    size = min(claim.length_bytes + TOPIC_LENGTH_MAX, claim.size - claim.topic_at)
    return claim.topic_in(_read(node, position + claim.topic_at, size))


def _read(node: Services, position: int, size: int) -> bytes:
    """Returns `size` bytes of the log at the position. Raises UnreadableError if they cannot be read."""
    try:
        return node.read_log(position, size)
    except (StorageError, OutOfRangeError) as error:
        raise UnreadableError(f"position {position}: {error}") from error


def store_ms_at(node: Services, position: int) -> int:
    """Returns the store time in milliseconds from the head of the message at a position that the index names. Raises
    UnreadableError if the bytes cannot be read, or if no message begins there."""
    try:
        head = node.read_log(position, HEAD.size + 28)
        if HEAD.unpack_from(head)[1] not in (MAGIC_V1, MAGIC_V2):
            raise UnreadableError(f"no message begins at position {position}")
        born_host = 20 if _I32.unpack_from(head, _SYS_FLAG_AT)[0] & 0x10 else 8
        store_ms: int = _I64.unpack_from(head, HEAD.size + born_host)[0]
    except (StorageError, OutOfRangeError, struct.error) as error:
        raise UnreadableError(f"position {position}: {error}") from error
    return store_ms


class KeyLookup:
    """One search for a topic's messages with a key, in steps."""

    def __init__(self, node: Services, topic: TopicConfig, query: KeyQuery) -> None:
        self._node = node
        self._topic = topic
        self._query = query
        self._key = query.key.encode("utf-8", "replace")
        self._found: list[StoredMessage] = []
        self._bytes = 0
        self._unreadable: int | None = None
        self._stopped = False

    def steps(self) -> Generator[None, None, QueryResult]:
        """Searches in steps, each of one message or one bucket of the index. Returns the result."""
        yield from self._steps()
        return QueryResult(self._found, self._unreadable, self._stopped)

    def _steps(self) -> Iterator[None]:
        """Searches, and yields after each bucket and each message."""
        state = self._node.state
        index, now_ms = state.message_index, state.applied_mark.timestamp_ms
        query = self._query
        read, below = 0, U64_MAX
        while (bucket := index.bucket_below(below)) is not None and bucket.last_ms >= query.begin_ms:
            below = bucket.base
            if bucket.first_ms <= query.end_ms:
                within = query.begin_ms <= bucket.first_ms and min(bucket.last_ms, now_ms) <= query.end_ms
                for batch in index.candidates(bucket, self._topic.id, self._key):
                    for position in reversed(batch if within else self._in_time(batch)):
                        if read == CANDIDATES_MAX or len(self._found) == query.count_max or self._bytes > BYTES_MAX:
                            self._stopped = True
                            return
                        read += 1
                        self._take(position)
                        yield
                    yield
            yield

    def _in_time(self, positions: list[int]) -> list[int]:
        """Returns those of the positions whose messages were stored within the query's times. Store times never
        decrease along the log."""

        def stored(position: int) -> int:
            return store_ms_at(self._node, position)

        try:
            start = bisect_left(positions, self._query.begin_ms, key=stored)
            return positions[start : bisect_right(positions, self._query.end_ms, lo=start, key=stored)]
        except UnreadableError:
            return positions  # the messages are then judged one by one

    def _take(self, position: int) -> None:
        if position < self._node.state.trim_position:
            return  # the bucket was dropped meanwhile
        try:
            stored = message_at(self._node, position, self._topic)
        except UnreadableError:
            self._unreadable = position
            return
        if stored is not None and is_wanted(stored.message, self._topic.name, self._query):
            self._found.append(stored)
            self._bytes += len(stored.data)


def is_wanted(message: Message, topic: str, query: KeyQuery) -> bool:
    """Returns True if the message is of the topic, has the key, and was stored within the times.

    If a property occurs twice, the index has its last value; earlier releases indexed the first. Here each value
    counts, so that everything in the index is found.
    """
    if message.topic != topic or not query.begin_ms <= message.store_ms <= query.end_ms:
        return False
    key = query.key.encode("utf-8", "replace")
    properties = message.properties
    charge_text(len(properties))
    if any(_text_equal(value, key) for value in values_of(properties, UNIQUE_MARK)):
        return True
    return not query.unique and any(key in value.split(b" ") for value in values_of(properties, KEYS_MARK))


def _text_equal(found: bytes, wanted: bytes) -> bool:
    """Returns True if the texts are equal. `found`: the bytes of a property; bytes that are not UTF-8 count as the
    replacement character, as in the index."""
    return found == wanted or found.decode("utf-8", "replace").encode() == wanted

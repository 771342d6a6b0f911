"""The row keys of all families, drawn. `meta_keys` has those of the family meta. All integers big-endian, so byte order
is numeric order. ::

    family   key                                                           value
    topics   topic_id u32                                                  msgpack array, topics.py
    groups   group name (ASCII)                                            msgpack array, groups.py
    offsets  group name | 00 | topic_id u32 | queue_id u32                 u64, next queue offset to consume
    locks    group name | 00 | topic_id u32 | queue_id u32                 u64, expires at, log time | FF | user u64,
                                                                           both only with a user | client id, UTF-8
    resets   group name | 00 | topic_id u32 | queue_id u32                 offset u64 | number u64, offset_resets.py
    cq       topic_id u32 | queue_id u32                                   bounds row (below), of a trimmed queue
             topic_id u32 | queue_id u32 | base_offset u64                 1..256 items of 32 bytes, payload.py
    dedup    "p" | producer_id 16                                          low u64 | max u64 | last_ms u64; of a lone
                                                                           part then entry index u64 | its 1..4
                                                                           session rows, and no "s" row (dedup.py)
             "s" | producer_id 16 | entry index u64                        session rows of 32 bytes, payload.py
             "u" | topic_id u32 | key_hash u64 | body_crc u32              queue_id u32 | queue_offset u64 |
                                                                           position u64 | time_ms u64
             "t" | time_ms u64 | topic_id u32 | key_hash u64 | body_crc u32   empty: when a "u" row may expire
    index    bucket u64 | 00                                               first_ms u64 | last_ms u64
             bucket u64 | 01 | partition u8 | first entry's position u64   merged records of 8 bytes, message_index.py
             bucket u64 | 02 | entry's position u64                        records of 8 bytes of one entry
    timer    "d" | due_ms u64 | name u64                                   topic_id u32 | queue_id u32 |
                                                                           1..256 items of 32 bytes, payload.py;
                                                                           if carried, then for each item the
                                                                           position u64 it first had, then
                                                                           position u64 of the first item | 01
             "p" | position u64 of the first item                          due_ms u64; if carried | name u64
             "o" | name u64                                                due_ms u64; only if carried
             "c"                                                           messages waiting u64 | their bytes u64 |
                                                                           delivered u64 | dropped u64 | recalled u64
    trans    "p" | name u64                                                half row (below), unless carried
             "c" | name u64                                                half row | position u64, if carried
             "m" | position u64                                            name u64, if carried
             "d" | check_ms u64 | name u64                                 empty: when its producer is asked next
             "o" | name u64                                                user u64 whose the half message is
             "n"                                                           count u64 | bytes u64, of all half rows
             "a" | number u64                                              attempt row (below)
             "b"                                                           u64, number of the next attempt
             "w" | name of a write, UTF-8                                  write u64 | messages u64 | committed_ms u64
             "q" | decider u64                                             prepared row (below)
             "g" | decider u64                                             decision row (below)
    tier     base u64                                                      msgpack array, tier.py

    bounds row (16 or 24 bytes)
      min_offset u64 | first chunk at u64 | first offset in the tier u64, only if it is lower than min_offset
    half row (28 bytes)
      topic_id u32 | queue_id u32 | size u32 | crc32c u32 | check_ms u64 | checks u32
    attempt row (49 bytes, and the name of the write, UTF-8; staged_writes.py)
      state u8 | write u64 | messages u64 | of those left u64 | their bytes u64 | opened_ms u64 | staged_ms u64
    prepared row (33 bytes, and the name of the write, UTF-8; prepared_writes.py)
      state u8 | write u64 | attempts u64 | messages u64 | prepared_ms u64
    decision row (24 bytes, and the name of the write, UTF-8)
      write u64 | committed_ms u64 | groups u64: bit g - 1 is set if group g has still to follow

A due_ms from 2^63 on is not a time. It is 2^63 + the number of the attempt for which the row's messages are staged.

The name of a timer or half row is the position that its first message had when it was first stored. The name stays when
the messages are carried forward (docs/adr/0054), that is, stored again at a later position.

Group names contain neither 00 nor bytes above 7F (groups.py checks), so 00 ends a name and no name is a prefix of
another's keys.
"""

from __future__ import annotations

import struct

Queue = tuple[int, int]
"""A queue: (topic_id, queue_id)."""

FIRST = b""
LAST = b"\xff" * 64
"""A key above every key of every family."""


def within(prefix: bytes) -> tuple[bytes, bytes]:
    """Returns the range [start, end) of the keys that begin with `prefix`, which must not end in FF; of all keys for
    b""."""
    return prefix, prefix[:-1] + bytes((prefix[-1] + 1,)) if prefix else LAST


FORMAT = 10
"""The version of the rows' format. It is raised when rows change in a way that an older version would misread."""


U32 = struct.Struct(">I")
U64 = struct.Struct(">Q")
RESET = struct.Struct(">QQ")
PRODUCER = struct.Struct(">QQQ")
UNIQUE_VALUE = struct.Struct(">IQQQ")
INDEX_BUCKET = struct.Struct(">QQ")
TIMER_COUNTS_KEY = b"c"
TIMER_QUEUE = struct.Struct(">II")
HALF = struct.Struct(">IIIIQI")
HALF_PENDING = struct.Struct(">QQ")
ATTEMPT = struct.Struct(">BQQQQQQ")
WRITE = struct.Struct(">QQQ")
PREPARED = struct.Struct(">BQQQQ")
DECISION = struct.Struct(">QQQ")
NEXT_ATTEMPT_KEY = b"b"
PREPARED_PREFIX, DECISION_PREFIX = b"q", b"g"
ATTEMPTS, WRITES = (b"a", b"b"), (b"w", b"x")
"""Keys [start, end) of all attempts at staged writes, and of all names with a committed write."""

_BOUNDS = struct.Struct(">QQ")
_CQ = struct.Struct(">IIQ")
_QUEUE = struct.Struct(">II")
_SESSION = struct.Struct(">s16sQ")
_UNIQUE = struct.Struct(">sIQI")
_UNIQUE_TIME = struct.Struct(">sQIQI")
_TIMER = struct.Struct(">sQQ")
_TIMER_COUNTS = struct.Struct(">5Q")
_INDEX_BUCKET = struct.Struct(">Qx")
_INDEX_MERGED = struct.Struct(">QBBQ")
_INDEX_ENTRY = struct.Struct(">QBQ")
_HALF = struct.Struct(">sQ")
_HALF_CHECK = struct.Struct(">sQQ")

U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1


cq_key = _CQ.pack
"""(topic_id, queue_id, base_offset) -> key of a chunk of a consume queue."""


def cq_base(key: bytes) -> int:
    """Returns the base offset in the key of a chunk."""
    base: int = _CQ.unpack(key)[2]
    return base


cq_bounds_key = _QUEUE.pack
"""(topic_id, queue_id) -> key of the bounds of a trimmed queue, the first of the queue's rows."""

CQ_BOUNDS_KEY_SIZE = _QUEUE.size


def pack_bounds(first: int, chunk: int, kept: int) -> bytes:
    """Packs the bounds of a queue: its first offset, the base offset of the chunk with that offset, and its first
    offset in the tier."""
    return _BOUNDS.pack(first, chunk) + (U64.pack(kept) if kept < first else b"")


def unpack_bounds(row: bytes) -> tuple[int, int, int]:
    """Returns the bounds of a queue: (first offset, base offset of the first chunk, first offset in the tier). The last
    is at most the first."""
    first, chunk = _BOUNDS.unpack_from(row)
    return first, chunk, first if len(row) == _BOUNDS.size else U64.unpack_from(row, _BOUNDS.size)[0]


def cq_queue(key: bytes) -> tuple[int, int]:
    """Returns (topic_id, queue_id) of any key of the family cq."""
    topic_id, queue_id = _QUEUE.unpack_from(key)
    return topic_id, queue_id


def cq_after_queue(topic_id: int, queue_id: int) -> bytes:
    """Returns the lowest key above every row of the queue."""
    return (int.from_bytes(_QUEUE.pack(topic_id, queue_id)) + 1).to_bytes(_QUEUE.size)


def cq_topic_range(topic_id: int) -> tuple[bytes, bytes]:
    """Returns the keys [start, end) of all rows of a topic in the family cq: chunks and bounds."""
    return U32.pack(topic_id), U32.pack(topic_id) + b"\xff" * 16


def cq_after_topic(topic_id: int) -> bytes:
    """Returns the lowest key above every row of the topic."""
    return U32.pack(topic_id + 1)


def offset_key(group: str, topic_id: int, queue_id: int) -> bytes:
    """Returns the key of a group's consumer offset, queue lock or offset reset."""
    return group.encode("ascii") + b"\0" + _QUEUE.pack(topic_id, queue_id)


def parse_offset_key(key: bytes) -> tuple[str, int, int]:
    """Returns (group, topic_id, queue_id) of a key made by `offset_key`."""
    topic_id, queue_id = _QUEUE.unpack(key[-8:])
    return key[:-9].decode("ascii"), topic_id, queue_id


def offsets_range(group: str) -> tuple[bytes, bytes]:
    """Returns the keys [start, end) of a group's offsets, queue locks or resets."""
    name = group.encode("ascii")
    return name + b"\0", name + b"\x01"


PRODUCERS = (b"p", b"q")
"""Keys [start, end) of the rows of all producers."""


def producer_key(producer_id: bytes) -> bytes:
    """Returns the key of a producer's own row."""
    return b"p" + producer_id


def session_key(producer_id: bytes, index: int) -> bytes:
    """Returns the key of the session rows that one entry stored for a producer."""
    return _SESSION.pack(b"s", producer_id, index)


def sessions_of(producer_id: bytes) -> tuple[bytes, bytes]:
    """Returns the keys [start, end) of a producer's session rows."""
    return _SESSION.pack(b"s", producer_id, 0), _SESSION.pack(b"s", producer_id, U64_MAX)


def parse_session_key(key: bytes) -> tuple[bytes, int]:
    """Returns (producer_id, entry index) of a key made by `session_key`."""
    _, producer_id, index = _SESSION.unpack(key)
    return producer_id, index


def unique_key(topic_id: int, key_hash: int, body_crc: int) -> bytes:
    """Returns the key of the row for a message of a topic with dedup=strict (a unique row)."""
    return _UNIQUE.pack(b"u", topic_id, key_hash, body_crc)


def unique_topic_range(topic_id: int) -> tuple[bytes, bytes]:
    """Returns the keys [start, end) of a topic's unique rows."""
    start = b"u" + U32.pack(topic_id)
    return start, start + b"\xff" * 13


def unique_time_key(time_ms: int, topic_id: int, key_hash: int, body_crc: int) -> bytes:
    """Returns the key that finds a unique row by the log time at which it was written."""
    return _UNIQUE_TIME.pack(b"t", time_ms, topic_id, key_hash, body_crc)


def unique_time_range(before_ms: int) -> tuple[bytes, bytes]:
    """Returns the keys [start, end) by time of the unique rows written before `before_ms`."""
    return b"t", b"t" + U64.pack(before_ms)


def unique_key_of_time_key(key: bytes) -> tuple[bytes, int]:
    """Returns the unique row's key and its log time from a key made by `unique_time_key`."""
    _, time_ms, topic_id, key_hash, body_crc = _UNIQUE_TIME.unpack(key)
    return unique_key(topic_id, key_hash, body_crc), time_ms


def timer_key(due_ms: int, position: int) -> bytes:
    """Returns the key of a row of scheduled messages; due time and `position` are its name."""
    return _TIMER.pack(b"d", due_ms, position)


def parse_timer_key(key: bytes) -> tuple[int, int]:
    """Returns (due_ms, position) of a key made by `timer_key`."""
    _, due_ms, position = _TIMER.unpack(key)
    return due_ms, position


def timer_due_end(until_ms: int) -> bytes:
    """Returns a key above the keys of the timer rows that are due at or before `until_ms`, and below the others."""
    return b"d" + U64.pack(until_ms) + b"\xff" * 9


def pack_timer_counts(counts: tuple[int, ...]) -> bytes:
    """Packs the five counters of scheduled messages."""
    return _TIMER_COUNTS.pack(*counts)


def unpack_timer_counts(row: bytes) -> tuple[int, ...]:
    """Returns the counters of scheduled messages from their row."""
    return _TIMER_COUNTS.unpack(row)


def timer_position_key(position: int) -> bytes:
    """Returns the key that finds a timer row by the present position of its first message."""
    return b"p" + U64.pack(position)


def timer_origin_key(name: int) -> bytes:
    """Returns the key that finds a timer row by the position in its name, if its messages were carried forward."""
    return b"o" + U64.pack(name)


def timer_position(key: bytes) -> int:
    """Returns the position in a key made by `timer_position_key` or `timer_origin_key`."""
    position: int = U64.unpack_from(key, 1)[0]
    return position


def timer_position_range(until: int, first: int = 0) -> tuple[bytes, bytes]:
    """Returns the keys [start, end) of the timer rows whose first message lies between the positions, both included."""
    return timer_position_key(first), timer_position_key(until) + b"\0"


def timer_origin_range(until: int) -> tuple[bytes, bytes]:
    """Returns the keys [start, end) of the carried timer rows with this position or a lower one in their name."""
    return b"o", timer_origin_key(until) + b"\0"


def attempt_key(number: int) -> bytes:
    """Returns the key of an attempt at a staged write."""
    return b"a" + U64.pack(number)


def attempt_number(key: bytes) -> int:
    """Returns the number in the key of an attempt."""
    number: int = U64.unpack_from(key, 1)[0]
    return number


def write_key(name: str) -> bytes:
    """Returns the key of the newest committed write of the name."""
    return b"w" + name.encode()


def prepared_key(decider: int) -> bytes:
    """Returns the key of a write that a group has prepared."""
    return PREPARED_PREFIX + U64.pack(decider)


def decision_key(decider: int) -> bytes:
    """Returns the key of a decision about a write to several groups."""
    return DECISION_PREFIX + U64.pack(decider)


def decider_of(key: bytes) -> int:
    """Returns the number of the decider in a key made by `prepared_key` or `decision_key`."""
    decider: int = U64.unpack_from(key, 1)[0]
    return decider


INDEX_BUCKET_KEY_SIZE = _INDEX_BUCKET.size
index_bucket_key = _INDEX_BUCKET.pack
"""(base of a bucket of the message index) -> key of the bucket's own row, the first of its rows."""


def index_trim_range(position: int) -> tuple[bytes, bytes]:
    """Returns the keys [start, end) of all buckets whose base is below `position`."""
    return FIRST, U64.pack(position)


def index_merged_key(bucket: int, partition: int, position: int) -> bytes:
    """Returns the key of a partition's merged index records. `position`: the position of the first entry whose records
    were merged."""
    return _INDEX_MERGED.pack(bucket, 1, partition, position)


def index_entry_key(bucket: int, position: int) -> bytes:
    """Returns the key of the index records of the entry at `position`."""
    return _INDEX_ENTRY.pack(bucket, 2, position)


def index_base(key: bytes) -> int:
    """Returns the bucket's base in any key of the family index."""
    base: int = U64.unpack_from(key)[0]
    return base


def index_place(key: bytes) -> int:
    """Returns the entry's position in a key made by `index_entry_key`."""
    position: int = _INDEX_ENTRY.unpack(key)[2]
    return position


def index_partition_range(bucket: int, partition: int) -> tuple[bytes, bytes]:
    """Returns the keys [start, end) of a partition's merged records."""
    start = _INDEX_MERGED.pack(bucket, 1, partition, 0)
    return start, start[:10] + b"\xff" * 9


def index_entries_range(bucket: int) -> tuple[bytes, bytes]:
    """Returns the keys [start, end) of the bucket's records that are not merged yet."""
    start = _INDEX_ENTRY.pack(bucket, 2, 0)
    return start, start[:9] + b"\xff" * 9


HALF_PENDING_KEY = b"n"


def half_key(name: int) -> bytes:
    """Returns the key of a half message that lies where it was first stored."""
    return _HALF.pack(b"p", name)


def half_carried_key(name: int) -> bytes:
    """Returns the key of a half message that was carried forward."""
    return _HALF.pack(b"c", name)


def half_moved_key(position: int) -> bytes:
    """Returns the key that finds a carried half message by its present position."""
    return _HALF.pack(b"m", position)


def half_owner_key(name: int) -> bytes:
    """Returns the key of the row with the id of the user who sent the half message `name`."""
    return _HALF.pack(b"o", name)


def half_range(first: int, end: int) -> tuple[bytes, bytes]:
    """Returns the keys [start, end) of half messages that lie between the positions and were not carried forward."""
    return half_key(first), half_key(end)


def half_moved_range(first: int, end: int) -> tuple[bytes, bytes]:
    """Returns the keys [start, end) that find carried half messages whose present position is in [first, end)."""
    return half_moved_key(first), half_moved_key(end)


def half_position(key: bytes) -> int:
    """Returns the position or name in a key of a half message."""
    position: int = _HALF.unpack(key)[1]
    return position


def half_check_key(check_ms: int, position: int) -> bytes:
    """Returns the key that finds a half message by the time at which its producer is asked next."""
    return _HALF_CHECK.pack(b"d", check_ms, position)


def half_check_ms(key: bytes) -> int:
    """Returns the time in a key made by `half_check_key`."""
    check_ms: int = _HALF_CHECK.unpack(key)[1]
    return check_ms


def half_check_position(key: bytes) -> int:
    """Returns the position in a key made by `half_check_key`."""
    position: int = _HALF_CHECK.unpack(key)[2]
    return position


def half_check_range(first_ms: int, last_ms: int) -> tuple[bytes, bytes]:
    """Returns the keys [start, end) of the checks from `first_ms` to `last_ms`, both included."""
    return half_check_key(first_ms, 0), half_check_key(last_ms, U64_MAX) + b"\0"

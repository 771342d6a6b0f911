"""The message index: finds the positions of messages by key (docs/adr/0020-message-index.md).

The leader writes one record per key into an entry's payload. Apply stores all records of an entry as one row, without
reading them. When a bucket has RECORDS_MAX records in such rows, these are *merged*: distributed over at most 256 rows
by the first byte of the hash. A bucket covers one segment of the log. It is closed with the segment, and all its rows
share a prefix, so trimming the log drops whole buckets. The rows depend on the log alone, not on how entries were
grouped into runs.

A record is 8 bytes: hash of topic and key (u32), then the low half of the message's position (u32). A bucket spans at
most 4 GiB, so the base of the bucket and the low half together give the position. Equal hashes do not mean equal keys:
a lookup compares the key in the message.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from operator import call
from typing import NamedTuple

from raftmq_wire.crc import crc32
from statemachine.family import Family, Reads, family_of
from statemachine.rows import keys
from statemachine.rows.kv import INDEX, KV
from statemachine.rows.write_batch import Stage

RECORD = struct.Struct(">II")
"""The format of a record: the hash of topic and key, and the low half of the message's position."""
RECORDS_MAX = 16_384
"""The most records of a bucket that are not distributed by hash yet: at most 128 KiB of memory, which a lookup reads in
addition to one partition."""
BUCKET_SPAN = 1 << 32
"""The most bytes of log that one bucket may cover."""

_LOW = BUCKET_SPAN - 1
_HASH = struct.Struct(">I")


def key_hash(topic_id: int, key: bytes) -> int:
    """Returns the 32-bit hash of a topic id and a message key. It is on disk in every log: never change it."""
    return crc32(key, topic_id)


class Bucket(NamedTuple):
    """One part of the index, which covers one segment of the log, or as much of it as was written with an index."""

    base: int
    """Position of the first indexed entry of the bucket."""
    first_ms: int
    last_ms: int
    """The log time after which no message in the bucket was stored; U64_MAX while the bucket is open."""


class _Open:
    """The open bucket, to which records are added. Since the last merge, `pieces` has the packed records of each entry,
    and `places` the positions of these entries."""

    __slots__ = ("base", "first_ms", "pieces", "places", "size")

    def __init__(self, base: int, first_ms: int, places: list[int], pieces: list[bytes]) -> None:
        self.base = base
        self.first_ms = first_ms
        self.places = places
        self.pieces = pieces
        self.size = sum(map(len, pieces))


class _View(NamedTuple):
    """The readers' view of the open bucket. Lists only grow, so `pieces[:count]` never changes."""

    base: int
    pieces: list[bytes]
    count: int  # type: ignore[assignment]


_NO_VIEW = _View(-1, [], 0)


class MessageIndex(Family):
    """All buckets of the index. Any thread may call `bucket_below` and `candidates`. All other members are for the
    apply thread only."""

    ROWS = ((INDEX, b""),)

    def __init__(self, kv: KV) -> None:
        self._kv = kv
        self._open = _load_open(kv)
        self._view = _NO_VIEW
        self.changed: bool = True
        self.publish()

    # -- apply lane

    def add(self, stage: Stage, position: int, end_position: int, time_ms: int, records: bytes) -> None:
        """Adds the index records of the entry at `position`. Positions ascend from call to call."""
        bucket = self._open
        if bucket is not None and end_position - bucket.base > BUCKET_SPAN:
            self.roll(stage, time_ms)
            bucket = None
        if bucket is None:
            bucket = self._open = _Open(position, time_ms, [], [])
            stage.put_new(INDEX, keys.index_bucket_key(position), keys.INDEX_BUCKET.pack(time_ms, keys.U64_MAX))
        stage.put_new(INDEX, keys.index_entry_key(bucket.base, position), records)
        bucket.places.append(position)
        bucket.pieces.append(records)
        bucket.size += len(records)
        if bucket.size >= RECORDS_MAX * RECORD.size:
            _merge(stage, bucket)
        self.changed = True

    def begin_segment(self, stage: Stage, time_ms: int) -> None:
        """Closes the open bucket (`roll`): no bucket has messages of two segments."""
        self.roll(stage, time_ms)

    def roll(self, stage: Stage, time_ms: int) -> None:
        """Closes the open bucket, if there is one, because the next entry, stored at `time_ms`, begins a segment."""
        bucket = self._open
        if bucket is None:
            return
        _merge(stage, bucket)
        key, first_ms = keys.index_bucket_key(bucket.base), bucket.first_ms
        stage.put(INDEX, key, keys.INDEX_BUCKET.pack(first_ms, time_ms))
        stage.before[INDEX].setdefault(key, keys.INDEX_BUCKET.pack(first_ms, keys.U64_MAX))
        self._open = None
        self.changed = True

    def trim(self, stage: Stage, position: int) -> None:
        """Drops the buckets of segments below `position`, where a segment begins. The open bucket always stays."""
        stage.delete_range(INDEX, *keys.index_trim_range(self._end_of_trim(position)))

    def trim_slice(self, stage: Stage, position: int, start: bytes, rows_max: int) -> bytes | None:
        """Drops at most `rows_max` rows of the buckets below `position`, from the key `start` on. Returns the key at
        which to continue, None at the end. A reader that finds a bucket partly dropped misses only messages below
        `position`."""
        end = keys.index_trim_range(self._end_of_trim(position))[1]
        for count, (key, value) in enumerate(self._kv.scan(INDEX, start, end)):
            if count == rows_max:
                return key
            stage.delete(INDEX, key)
            stage.before[INDEX].setdefault(key, value)
        return None

    def _end_of_trim(self, position: int) -> int:
        return position if self._open is None else min(position, self._open.base)

    def publish(self) -> None:
        """Shows the records of the applied batch to readers; called after the batch is written."""
        if self.changed:
            bucket = self._open
            self._view = _NO_VIEW if bucket is None else _View(bucket.base, bucket.pieces, len(bucket.pieces))
            self.changed = False

    # -- any thread

    def bucket_below(self, position: int) -> Bucket | None:
        """Returns the newest bucket whose base is below `position`; None if there is none."""
        row = self._kv.seek_last(INDEX, keys.FIRST, keys.index_bucket_key(position))
        if row is None:
            return None
        base = keys.index_base(row[0])
        value = self._kv.get(INDEX, keys.index_bucket_key(base))
        return None if value is None else Bucket(base, *keys.INDEX_BUCKET.unpack(value))

    def candidates(self, bucket: Bucket, topic_id: int, key: bytes) -> Iterator[list[int]]:
        """Yields lists of positions of messages in the bucket that may have the key `key`. The newest list comes first;
        within a list positions ascend. A list comes from one row or from the open records, and is read when the caller
        asks for it."""
        hashed = key_hash(topic_id, key)
        wanted, base = _HASH.pack(hashed), bucket.base
        view, lowest = self._view, keys.U64_MAX
        if view.base == base:
            found = _positions(base, b"".join(view.pieces[: view.count]), wanted, lowest)
            if found:
                lowest = found[0]
                yield found
        for data in self._merged(base, hashed >> 24):
            # Open records that were yielded above may have been merged since: yield only positions below these.
            found = _positions(base, data, wanted, lowest)
            if found:
                lowest = found[0]
                yield found

    def _merged(self, base: int, partition: int) -> Iterator[bytes]:
        """Yields the merged rows of a bucket's partition, newest first. A partition has the records whose hash begins
        with the same byte."""
        low, high = keys.index_partition_range(base, partition)
        row = self._kv.seek_last(INDEX, low, high)
        while row is not None:
            yield row[1]
            row = self._kv.seek_last(INDEX, low, row[0])


class IndexReads(Reads):
    """Read access to what a state holds about messages by key."""

    message_index = family_of(MessageIndex)
    """The index of messages by key. Callers use its `bucket_below` and `candidates`."""


def _merge(stage: Stage, bucket: _Open) -> None:
    """Replaces a bucket's rows of single entries by one row for each first byte of a hash. Records stay in the order of
    the log."""
    data = b"".join(bucket.pieces)
    partitions: list[list[int]] = [[] for _ in range(256)]
    to = [partition.append for partition in partitions]
    records = struct.unpack(f">{len(data) // RECORD.size}Q", data)
    # Calls to[first byte](record) for each of some 16,000 records; `map` runs this loop in C.
    deque(map(call, map(to.__getitem__, data[:: RECORD.size]), records), maxlen=0)
    for number, found in enumerate(partitions):
        if found:
            key = keys.index_merged_key(bucket.base, number, bucket.places[0])
            stage.put_new(INDEX, key, struct.pack(f">{len(found)}Q", *found))
    before = stage.before[INDEX]
    for place, piece in zip(bucket.places, bucket.pieces, strict=True):
        key = keys.index_entry_key(bucket.base, place)
        stage.unput(INDEX, key)
        before.setdefault(key, piece)
    bucket.places, bucket.pieces, bucket.size = [], [], 0


def _positions(base: int, data: bytes, wanted: bytes, below: int) -> list[int]:
    """Returns the positions below `below` of the records in `data` with the hash `wanted`, ascending."""
    found: list[int] = []
    at = data.find(wanted)
    while at >= 0:
        if at % RECORD.size:
            at = data.find(wanted, at + 1)
            continue
        position = base + (RECORD.unpack_from(data, at)[1] - base & _LOW)
        if position < below:
            found.append(position)
        at = data.find(wanted, at + RECORD.size)
    return found


def _load_open(kv: KV) -> _Open | None:
    """Reads the open bucket from the store; returns None if the last one is closed."""
    last = kv.seek_last(INDEX, keys.FIRST, keys.LAST)
    if last is None:
        return None
    base = keys.index_base(last[0])
    row = kv.get(INDEX, keys.index_bucket_key(base))
    first_ms, last_ms = (0, 0) if row is None else keys.INDEX_BUCKET.unpack(row)
    if last_ms != keys.U64_MAX:
        return None
    places, pieces = [], []
    for key, records in kv.scan(INDEX, *keys.index_entries_range(base)):
        places.append(keys.index_place(key))
        pieces.append(records)
    return _Open(base, first_ms, places, pieces)

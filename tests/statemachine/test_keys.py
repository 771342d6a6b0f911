"""Row keys: frozen bytes, order, and ranges that hold exactly what they name."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from statemachine.rows import keys, meta_keys
from tests.support.rows import each_row

PRODUCER = bytes(range(16))
u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)


@each_row(
    ("key", "expected"),
    [
        (meta_keys.APPLIED_KEY, b"applied".hex()),
        (
            meta_keys.APPLIED.pack(1, 2, 3, 4, 5),
            "000000000000000100000000000000020000000000000003000000000000000400000005",
        ),
        (keys.cq_key(1, 2, 256), "00000001000000020000000000000100"),
        (keys.offset_key("g", 1, 2), "67000000000100000002"),
        (keys.producer_key(PRODUCER), "70000102030405060708090a0b0c0d0e0f"),
        (keys.PRODUCER.pack(1, 2, 3), "000000000000000100000000000000020000000000000003"),
        (keys.session_key(PRODUCER, 9), "73000102030405060708090a0b0c0d0e0f0000000000000009"),
        (keys.unique_key(1, 2, 3), "7500000001000000000000000200000003"),
        (keys.UNIQUE_VALUE.pack(1, 2, 3, 4), "00000001000000000000000200000000000000030000000000000004"),
        (keys.unique_time_key(4, 1, 2, 3), "74000000000000000400000001000000000000000200000003"),
    ],
)
def test_frozen_bytes(key: bytes, expected: str) -> None:
    """These bytes are on disk in every state database: they may only change together with FORMAT."""
    assert key.hex() == expected


chunk = st.tuples(u32, u32, u64)


@given(chunk, chunk)
def test_cq_keys_sort_like_their_numbers(a: tuple[int, int, int], b: tuple[int, int, int]) -> None:
    assert (keys.cq_key(*a) < keys.cq_key(*b)) == (a < b)
    start, end = keys.cq_topic_range(a[0])
    assert start <= keys.cq_key(*a) < end
    assert (start <= keys.cq_key(*b) < end) == (a[0] == b[0])


names = st.text("%|aZ0_-", min_size=1, max_size=4)


@given(names, names, u32, u32)
def test_offset_ranges_hold_one_group(group: str, other: str, topic_id: int, queue_id: int) -> None:
    start, end = keys.offsets_range(group)
    key = keys.offset_key(other, topic_id, queue_id)
    assert (start <= key < end) == (group == other)
    assert keys.parse_offset_key(key) == (other, topic_id, queue_id)


@given(u32, u64, u32, u32)
def test_unique_ranges_hold_one_topic(topic_id: int, key_hash: int, crc: int, other: int) -> None:
    start, end = keys.unique_topic_range(topic_id)
    assert start <= keys.unique_key(topic_id, key_hash, crc) < end
    assert (start <= keys.unique_key(other, key_hash, crc) < end) == (other == topic_id)


@given(u64, u64, u32)
def test_unique_time_ranges_hold_what_is_older(time_ms: int, before_ms: int, topic_id: int) -> None:
    start, end = keys.unique_time_range(before_ms)
    key = keys.unique_time_key(time_ms, topic_id, 1, 2)
    assert (start <= key < end) == (time_ms < before_ms)
    assert keys.unique_key_of_time_key(key) == (keys.unique_key(topic_id, 1, 2), time_ms)

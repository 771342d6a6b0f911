"""Batches become bytes of an entry alike in both kernels: of clients, of messages that wait, and of copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.replication import message_batch
from cluster.replication.message_head import DeliverySchedule, topic_field
from statemachine import payload
from statemachine.payload import RowKind
from tests.support.kernels import Pair

V4, V6 = b"\x0a\x00\x00\x02\x00\x00\x2a\x9f", bytes(range(16)) + b"\x00\x00\x00\x07"
NAMES = ("add_messages", "add_plain", "QueueCursor")
"""Names that the builder finds in its module."""
RECORDS = ("BatchMessage", "MessageHead", "Send", "TopicSlot")

hosts = st.sampled_from([V4, V6])
i31 = st.integers(0, 2**31 - 1)
i32 = st.integers(-(2**31), 2**31 - 1)
i63 = st.integers(0, 2**63 - 1)
heads = st.none() | st.tuples(i31, i63, hosts, i31, i63)
words = st.sampled_from([b"", b"KEYS\x01a b\x02", b"TAGS\x01t\x02KEYS\x01c\x02", b"XKEYS\x01no\x02"])
messages = st.tuples(i32, st.binary(max_size=40), words, i32, st.sampled_from([0, 7]), st.binary(max_size=9), heads)


class Batch(NamedTuple):
    """The fields of a send that differ between the examples."""

    topic: str
    queue_id: int
    waits: bool
    born_host: bytes
    messages: list[tuple[Any, ...]]


batches = st.builds(
    Batch,
    st.sampled_from(["T", "t" * 128]),
    st.integers(0, 1),
    st.booleans(),
    hosts,
    st.lists(messages, min_size=1, max_size=4),
)
MANY = Batch("T", 0, True, V4, [(0, b"b", b"KEYS\x01k\x02", 5, 0, b"u", None)] * 150)


@pytest.fixture(scope="module")
def records(both_kernels: Callable[[str], Pair]) -> dict[str, Pair]:
    return {name: both_kernels(name) for name in (*NAMES, *RECORDS)}


def built_by(records: dict[str, Any], sends: list[Batch], dedup: str, store_host: bytes) -> tuple[Any, ...]:
    """Returns the builder's result for the sends when it has these functions and classes."""
    with pytest.MonkeyPatch.context() as patched:
        for name in NAMES:
            patched.setattr(message_batch, name, records[name])
        cursors: dict[tuple[int, int], Any] = {}

        def cursor(topic_id: int, queue_id: int) -> Any:
            return cursors.setdefault((topic_id, queue_id), records["QueueCursor"](topic_id, queue_id, 100))

        slots = {
            name: records["TopicSlot"](name, number, 2, 2, 6, dedup, cursor)
            for number, name in enumerate(("T", "t" * 128), 1)
        }
        built = message_batch.build(
            [send_of(records, slots[one.topic], one) for one in sends],
            entry_position=1 << 40,
            store_ms=1_700_000_000_001,
            store_host=store_host,
        )
    ends = {name: (one.next_offset, one.bytes, one.items) for name, one in cursors.items()}
    return built.payload, built.offsets, built.positions, built.message_count, ends


def send_of(records: dict[str, Any], slot: Any, batch: Batch) -> Any:
    waits = DeliverySchedule(topic_field("RAFTMQ_SYS_STAGED"), 3, due_ms=(1 << 63) + 5) if batch.waits else None
    parts = [
        records["BatchMessage"](*fields, None if head is None else records["MessageHead"](*head))
        for *fields, head in batch.messages
    ]
    return records["Send"](
        connection=None,
        size=0,
        origin=None,
        oneway=True,
        slot=slot,
        queue_id=batch.queue_id,
        flag=0,
        sys_flag=1,
        born_ms=77,
        born_host=batch.born_host,
        reconsume_times=2,
        body=b"",
        properties=b"",
        tag_hash=0,
        unique_key="",
        kind=RowKind.SCHEDULED if batch.waits else RowKind.DELIVERED,
        producer_id=bytes(16),
        sequence=1,
        low_sequence=1,
        batch=tuple(parts),
        received_ms=0,
        schedule=waits,
    )


@given(st.lists(batches, min_size=1, max_size=4), st.sampled_from(["retry", "strict"]), hosts)
@example([MANY, MANY], "retry", V4)
def test_both_kernels_store_batches_alike(
    records: dict[str, Pair], sends: list[Batch], dedup: str, store_host: bytes
) -> None:
    native = built_by({name: pair.native for name, pair in records.items()}, sends, dedup, store_host)
    assert native == built_by({name: pair.python for name, pair in records.items()}, sends, dedup, store_host)


def test_what_waits_is_divided_into_runs_and_has_no_records(records: dict[str, Pair]) -> None:
    """The content that the comparison above compares is there."""
    native = built_by({name: pair.native for name, pair in records.items()}, [MANY, MANY], "retry", V4)
    content = payload.decode(native[0])
    assert [run.count for run in content.decoded_runs()] == [256, 44]
    assert (content.keys, native[1]) == (b"", [0, 0])


def test_a_part_that_a_batch_does_not_have_is_refused(records: dict[str, Pair]) -> None:
    make = {name: pair.native for name, pair in records.items()}
    slot = make["TopicSlot"]("T", 1, 2, 2, 6, "retry", make["QueueCursor"])
    builder = message_batch._Builder(0, 0, V4, True)
    send = send_of(make, slot, Batch("T", 0, False, V4, MANY.messages[:2]))
    with pytest.raises(IndexError, match="no messages 1 to 3"):
        make["add_messages"](builder, send, 1, 3, make["QueueCursor"](1, 0, 0))


def test_a_topic_without_queues_in_this_group_has_a_first_one_for_copies(records: dict[str, Pair]) -> None:
    for name in ("native", "python"):
        make = {record: getattr(pair, name) for record, pair in records.items()}
        slot = make["TopicSlot"]("T", 1, 0, 0, 6, "retry", lambda *at: at)
        assert (slot.write_queues, slot.queues, slot.open_cursor(0)) == (1, 0, (1, 0)), name

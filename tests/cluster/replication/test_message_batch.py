"""The batch builder beside its bytes (those: test_message_twin.py): offsets, runs, sessions, taking back."""

from __future__ import annotations

from typing import Any

from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from cluster.replication.message_batch import (
    BatchMessage,
    QueueCursor,
    Send,
    TopicSlot,
    build,
    key_hash_of,
    message_size,
    normal_kind,
)
from cluster.replication.message_head import (
    KEYS_MARK,
    SCHEDULE_TOPIC,
    DeliverySchedule,
    MessageHead,
    key_words,
    property_of,
    topic_field,
)
from raftmq_wire import message_format
from statemachine import commands, payload
from statemachine.command_table import unpack
from statemachine.dedup import EndSessions
from statemachine.delivery.half_messages import EndHalves
from statemachine.delivery.timers import DeliverTimers
from statemachine.message_index import RECORD, key_hash
from statemachine.payload import MESSAGES_AT, SESSION_ROW, RowKind

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
A, B = bytes(16), bytes(range(16))


def slot_of(name: str = "T", topic_id: int = 1, base: int = 100, dedup: str = "retry") -> TopicSlot:
    return TopicSlot(name, topic_id, 4, 4, 6, dedup, lambda topic, queue: QueueCursor(topic, queue, base))


def send(slot: TopicSlot, queue_id: int = 0, *, pid: bytes = b"", seq: int = 0, low: int = 0, **fields: Any) -> Send:
    values: dict[str, Any] = {
        "connection": None,
        "size": 0,
        "origin": None,
        "oneway": False,
        "flag": 0,
        "sys_flag": 0,
        "born_ms": 1,
        "born_host": HOST,
        "reconsume_times": 0,
        "body": b"body",
        "properties": b"",
        "tag_hash": 0,
        "unique_key": "",
        "kind": 0,
        "batch": (),
        "received_ms": 0,
    }
    values |= fields
    return Send(slot=slot, queue_id=queue_id, producer_id=pid, sequence=seq, low_sequence=low, **values)


def built_of(*sends: Send, position: int = 1 << 40) -> Any:
    return build(sends, entry_position=position, store_ms=5, store_host=HOST)


def test_the_hash_of_a_unique_key_is_the_same_in_every_release() -> None:
    """It is in the rows by which strict topics know a message again, under any later leader."""
    assert key_hash_of("7F00000100002A9F18B4AAC2DB7C0000") == 0xB90A7862CA3F1F78
    assert key_hash_of("é") == 0x1BAB8DDC0E048D3E


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_offsets_continue_per_queue(wanted: list[tuple[int, int]]) -> None:
    """(queue, messages of a batch; 0: a single message): offsets are dense, positions ascend."""
    slot = slot_of()
    one = BatchMessage(0, b"b", b"", 0, 0)
    sends = [send(slot, queue_id, batch=(one,) * count) for queue_id, count in wanted]
    built = built_of(*sends)
    ends = dict.fromkeys(range(4), 100)
    for (queue_id, count), offset, positions in zip(wanted, built.offsets, built.positions, strict=True):
        assert offset == ends[queue_id]
        ends[queue_id] += count or 1
        assert isinstance(positions, tuple) == bool(count)
        assert not count or len(positions) == count
    flat = [at for part in built.positions for at in (part if isinstance(part, tuple) else (part,))]
    assert flat == sorted(set(flat))
    assert flat[0] == (1 << 40) + MESSAGES_AT
    runs = {run.queue_id: (run.base_offset, run.count) for run in payload.decode(built.payload).decoded_runs()}
    assert runs == {queue_id: (100, end - 100) for queue_id, end in ends.items() if end > 100}
    assert built.message_count == sum(end - 100 for end in ends.values())


def test_offsets_continue_over_entries_and_are_taken_back() -> None:
    slot = slot_of()
    first = built_of(send(slot), send(slot, 1))
    second = built_of(send(slot), send(slot))
    assert (first.offsets, second.offsets) == ([100, 100], [101, 102])
    second.rewind()
    again = built_of(send(slot), send(slot))
    assert again.offsets == [101, 102]
    assert again.payload == second.payload, "as if it had never been built"


def test_sessions_hold_every_named_send_by_sequence() -> None:
    slot, other = slot_of(), slot_of("U", 2)
    sends = [
        send(slot, pid=A, seq=9, low=4),
        send(slot),
        send(other, 2, pid=B, seq=1, low=1),
        send(slot, 1, pid=A, seq=7, low=5),
        send(slot, pid=A, seq=8, low=5),
    ]
    built = built_of(*sends)
    sessions = {one.producer_id: one for one in payload.decode(built.payload).iter_sessions()}
    assert set(sessions) == {A, B}
    assert (sessions[A].low_sequence, sessions[A].max_sequence) == (5, 9)
    rows = [SESSION_ROW.unpack_from(sessions[A].rows, at) for at in range(0, len(sessions[A].rows), SESSION_ROW.size)]
    assert rows == [
        (7, 1, 1, 100, built.positions[3]),
        (8, 1, 0, 102, built.positions[4]),
        (9, 1, 0, 100, built.positions[0]),
    ]


def test_unique_rows_only_for_strict_topics() -> None:
    fields: dict[str, Any] = {"unique_key": "K", "batch": ()}
    assert not list(payload.decode(built_of(send(slot_of(), **fields)).payload).iter_unique())
    strict = slot_of("S", 3, dedup="strict")
    (row,) = payload.decode(built_of(send(strict, 2, **fields)).payload).iter_unique()
    assert (row.topic_id, row.queue_id, row.queue_offset, row.position) == (3, 2, 100, (1 << 40) + MESSAGES_AT)


def test_d4_every_key_has_a_record() -> None:
    """UNIQ_KEY and each word of KEYS, of single messages and of batches; nothing if the index is off."""
    slot = slot_of("T", 7)
    words = b"KEYS\x01a b  a\x02MYKEYS\x01no\x02"
    one = send(slot, unique_key="U1", properties=b"UNIQ_KEY\x01U1\x02" + words)
    named = BatchMessage(0, b"", b"UNIQ_KEY\x01U2\x02", 0, 0, b"U2")
    batch = send(slot, 1, batch=(named, BatchMessage(0, b"", words, 0, 0)))
    built = built_of(one, batch)
    first, (second, third) = built.positions
    expected = [(b"U1", first), (b"a", first), (b"b", first), (b"U2", second), (b"a", third), (b"b", third)]
    records = list(RECORD.iter_unpack(payload.decode(built.payload).keys))
    assert records == [(key_hash(7, key), position & 0xFFFFFFFF) for key, position in expected]
    off = build([one, batch], entry_position=0, store_ms=5, store_host=HOST, index=False)
    assert payload.decode(off.payload).keys == b""


def test_a_property_is_found_by_its_whole_name() -> None:
    properties = b"XKEYS\x01no\x02KEYS\x01yes\x02"
    assert property_of(properties, KEYS_MARK) == b"yes"
    assert property_of(b"KEYS\x01last", KEYS_MARK) == b"last"
    assert property_of(b"XKEYS\x01no\x02", KEYS_MARK) == b""
    assert key_words(b"KEYS\x01 one  two one \x02") == [b"one", b"two"]


def test_kinds_follow_the_topic() -> None:
    assert [normal_kind(name) for name in ("T", "%RETRY%g", "%DLQ%g")] == [
        RowKind.NORMAL,
        RowKind.RETRY,
        RowKind.DEAD_LETTER,
    ]
    retry = slot_of("%RETRY%g", 4)
    (run,) = payload.decode(built_of(send(retry, kind=RowKind.RETRY)).payload).decoded_runs()
    assert run.kind == RowKind.RETRY


@given(st.sampled_from(["T", "t" * 127, "%RETRY%" + "g" * 200]), st.binary(max_size=99), st.binary(max_size=99))
def test_the_size_for_cutting_is_an_upper_bound(topic: str, body: bytes, properties: bytes) -> None:
    one = send(slot_of(topic), body=body, properties=properties, born_host=bytes(20))
    assert len(payload_messages(built_of(one))) <= message_size(one, one.slot)


def payload_messages(built: Any) -> bytes:
    decoded = payload.decode(built.payload)
    messages: bytes = built.payload[payload.HEAD.size : payload.HEAD.size + decoded.messages_len]
    return messages


def scheduled(slot: TopicSlot, queue_id: int = 0, *, delay_ms: int = 0, due_ms: int = 0, **fields: Any) -> Send:
    plan = DeliverySchedule(topic_field(SCHEDULE_TOPIC), 2, delay_ms, due_ms, names_due=bool(due_ms))
    return send(slot, queue_id, kind=RowKind.SCHEDULED, schedule=plan, **fields)


def test_scheduled_messages_share_runs_by_what_they_wait_for_and_advance_no_queue() -> None:
    slot = slot_of()
    sends = [
        scheduled(slot, delay_ms=10, unique_key="a"),
        send(slot),
        scheduled(slot, due_ms=15, pid=A, seq=7),
        scheduled(slot, queue_id=1, delay_ms=10),
    ]
    built = built_of(*sends)
    content = payload.decode(built.payload)
    runs = [(run.queue_id, run.base_offset, run.count, run.kind) for run in content.decoded_runs()]
    assert sorted(runs) == [(0, 15, 2, RowKind.SCHEDULED), (0, 100, 1, RowKind.NORMAL), (1, 15, 1, RowKind.SCHEDULED)]
    assert content.message_count == 4
    assert built.offsets == [0, 100, 0, 0]
    assert not content.keys, "keys are indexed when the message is delivered"
    (session,) = content.iter_sessions()
    assert SESSION_ROW.unpack(session.rows) == (7, 1, 0, 0, built.positions[2])
    data = built.payload[40 : 40 + content.messages_len]
    at = built.positions[2] - (1 << 40) - MESSAGES_AT
    stored = next(message_format.decode_messages(data[at:]))
    assert (stored.topic, stored.queue_id, stored.queue_offset) == (SCHEDULE_TOPIC, 2, 0)
    assert property_of(stored.properties, b"TIMER_OUT_MS\x01") == b"15"


def test_a_run_of_scheduled_messages_has_at_most_256() -> None:
    slot = slot_of()
    built = built_of(*[scheduled(slot, delay_ms=10) for _ in range(257)])
    assert [run.count for run in payload.decode(built.payload).decoded_runs()] == [256, 1]


def test_copies_bring_the_commands_that_take_effect_with_them() -> None:
    slot = slot_of(dedup="strict")
    first = send(slot, kind=RowKind.DELIVERED, effect=(DeliverTimers, (1, 2)), unique_key="a", prepared_position=77)
    second = send(slot, kind=RowKind.COMMITTED, effect=(EndHalves, 5))
    third = send(slot, kind=RowKind.DELIVERED, effect=(DeliverTimers, (3, 4)))
    built = build(
        [first, second, third],
        entry_position=0,
        store_ms=5,
        store_host=HOST,
        effects=commands.pack([EndSessions([])]),
    )
    content = payload.decode(built.payload)
    assert unpack(content.effects) == [
        EndSessions([]),
        DeliverTimers([(1, 2), (3, 4)]),
        EndHalves([5]),
    ]
    assert not content.unique, "a copy takes no part in dedup"
    stored = list(message_format.decode_messages(built.payload[40 : 40 + content.messages_len]))
    assert [message.prepared_position for message in stored] == [77, 0, 0]


def test_copies_of_one_row_keep_their_own_heads() -> None:
    slot = slot_of()
    heads = [MessageHead(1, 1000 + number, HOST, number) for number in range(2)]
    batch = tuple(BatchMessage(0, b"b", b"", 0, 0, b"", head) for head in heads)
    built = built_of(send(slot, 3, kind=RowKind.DELIVERED, batch=batch, effect=(DeliverTimers, (1, 2))))
    content = payload.decode(built.payload)
    stored = list(message_format.decode_messages(built.payload[40 : 40 + content.messages_len]))
    assert [(m.born_ms, m.reconsume_times, m.sys_flag & 1, m.queue_offset) for m in stored] == [
        (1000, 0, 1, 100),
        (1001, 1, 1, 101),
    ]


def test_a_failure_leaves_a_row_by_which_its_report_is_recognised() -> None:
    slot = slot_of("%RETRY%g")
    built = built_of(
        scheduled(slot, delay_ms=10, failure=(123, 9)), send(slot, kind=RowKind.DEAD_LETTER, failure=(4, 9))
    )
    rows = list(payload.decode(built.payload).iter_unique())
    assert [(row.key_hash, row.topic_id, row.body_crc, row.position) for row in rows] == [
        (123, 1, 9, built.positions[0]),
        (4, 1, 9, built.positions[1]),
    ]


def test_messages_that_are_carried_change_nothing_but_their_position() -> None:
    """Born in IPv6, stored in IPv4 and the other way round: the store time is that of the first time."""
    first = []
    for born in (HOST, bytes(16) + HOST[4:]):
        waits = send(
            slot_of(), kind=RowKind.SCHEDULED, schedule=DeliverySchedule(topic_field(SCHEDULE_TOPIC), 2, delay_ms=7)
        )
        waits.born_host = born
        built = built_of(waits)
        (run,) = payload.decode(built.payload).decoded_runs()
        first.append(built.payload[payload.HEAD.size : payload.HEAD.size + payload.ITEM.unpack(run.items)[1]])
    copies = tuple(BatchMessage(0, stored, b"", 9, 0) for stored in first)
    carried = send(slot_of(), 3, kind=RowKind.CARRIED_TIMERS, batch=copies, carried=4711)
    position = 1 << 50
    built = build([carried, send(slot_of())], entry_position=position, store_ms=99, store_host=HOST)
    runs = payload.decode(built.payload).decoded_runs()
    (run,) = [run for run in runs if run.kind == RowKind.CARRIED_TIMERS]
    assert (run.topic_id, run.queue_id, run.base_offset, run.count) == (1, 3, 4711, 2)
    at = position + MESSAGES_AT
    for (place, size, crc, tag, store_ms), stored in zip(payload.ITEM.iter_unpack(run.items), first, strict=True):
        data = built.payload[place - position - 64 :][:size]
        message, _ = message_format.decode_message(data)
        before, _ = message_format.decode_message(stored)
        assert (place, tag, store_ms) == (at, 9, 5)
        assert crc == crc32c(data)
        assert message == before._replace(position=at)
        at += size
    assert {run.kind: run.count for run in runs} == {RowKind.NORMAL: 1, RowKind.CARRIED_TIMERS: 2}
    assert payload.decode(built.payload).keys == b""

"""The send path's inlined encoder against `message_format`, byte for byte, and its rows against its messages."""

from __future__ import annotations

from typing import Any, cast

import google_crc32c
from hypothesis import given
from hypothesis import strategies as st

from cluster.replication.message_batch import BatchMessage, Built, QueueCursor, Send, TopicSlot, build
from raftmq_wire.message_format import Message, decode_messages, encode_host, encode_message
from statemachine import payload

ENTRY_AT = 1 << 33
STORE_MS = 1_700_000_000_001

u31 = st.integers(0, 2**31 - 1)
hosts = st.sampled_from([("10.0.0.2", 50000), ("2001:db8::7", 1), ("0.0.0.0", 65535)])
messages = st.tuples(
    st.integers(-(2**31), 2**31 - 1), st.binary(max_size=60), st.binary(max_size=60), st.integers(-(2**31), 2**31 - 1)
)
sends = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["T", "t" * 127, "%RETRY%" + "g" * 121]),
        "queue_id": st.integers(0, 2),
        "sys_flag": u31.map(lambda flag: flag & ~0x30),
        "born_ms": st.integers(0, 2**63 - 1),
        "born_host": hosts,
        "reconsume_times": u31,
        "messages": st.lists(messages, min_size=1, max_size=3),
        "is_batch": st.booleans(),
    }
)


def to_send(fields: dict[str, Any], slot: TopicSlot) -> Send:
    flag, body, properties, tag_hash = fields["messages"][0]
    batch = tuple(BatchMessage(*message, key_hash=0) for message in fields["messages"]) if fields["is_batch"] else ()  # type: ignore[misc]
    return Send(
        connection=cast(Any, None),
        size=0,
        origin=None,
        oneway=False,
        slot=slot,
        queue_id=fields["queue_id"],
        flag=flag,
        sys_flag=fields["sys_flag"],
        born_ms=fields["born_ms"],
        born_host=encode_host(fields["born_host"]),
        reconsume_times=fields["reconsume_times"],
        body=body,
        properties=properties,
        tag_hash=tag_hash,
        unique_key="",
        kind=0,
        producer_id=b"",
        sequence=0,
        low_sequence=0,
        batch=batch,
        received_ms=0,
    )


def expected(all_fields: list[dict[str, Any]], store_host: tuple[str, int]) -> list[bytes]:
    """The same messages by the readable encoder: positions dense, offsets counted per queue from 100."""
    ends: dict[Any, int] = {}
    position, encoded = ENTRY_AT + payload.MESSAGES_AT, []
    for fields in all_fields:
        queue = (fields["topic"], fields["queue_id"])
        for flag, body, properties, _ in fields["messages"] if fields["is_batch"] else fields["messages"][:1]:
            offset = ends.get(queue, 100)
            ends[queue] = offset + 1
            message = Message(
                topic=fields["topic"],
                body=body,
                properties=properties,
                queue_id=fields["queue_id"],
                flag=flag,
                queue_offset=offset,
                position=position,
                sys_flag=fields["sys_flag"],
                born_ms=fields["born_ms"],
                born_host=fields["born_host"],
                store_ms=STORE_MS,
                store_host=store_host,
                reconsume_times=fields["reconsume_times"],
            )
            encoded.append(encode_message(message))
            position += len(encoded[-1])
    return encoded


def build_all(all_fields: list[dict[str, Any]], store_host: tuple[str, int]) -> Built:
    topics = sorted({fields["topic"] for fields in all_fields})
    slots = {
        topic: TopicSlot(topic, at, 3, 3, 6, "off", lambda topic_id, queue_id: QueueCursor(topic_id, queue_id, 100))
        for at, topic in enumerate(topics, 1)
    }
    run = [to_send(fields, slots[fields["topic"]]) for fields in all_fields]
    return build(run, entry_position=ENTRY_AT, store_ms=STORE_MS, store_host=encode_host(store_host))


@given(st.lists(sends, min_size=1, max_size=4), hosts)
def test_stored_messages_are_the_same_bytes(all_fields: list[dict[str, Any]], store_host: tuple[str, int]) -> None:
    built = build_all(all_fields, store_host)
    decoded = payload.decode(built.payload)
    stored = built.payload[payload.HEAD.size : payload.HEAD.size + decoded.messages_len]
    assert stored == b"".join(expected(all_fields, store_host))
    assert built.message_count == len(list(decode_messages(stored)))


@given(st.lists(sends, min_size=1, max_size=4), hosts)
def test_rows_point_at_their_messages(all_fields: list[dict[str, Any]], store_host: tuple[str, int]) -> None:
    built = build_all(all_fields, store_host)
    by_queue: dict[tuple[int, int], list[Message]] = {}
    topics = {topic: at for at, topic in enumerate(sorted({fields["topic"] for fields in all_fields}), 1)}
    for message in decode_messages(b"".join(expected(all_fields, store_host))):
        by_queue.setdefault((topics[message.topic], message.queue_id), []).append(message)
    runs = payload.decode(built.payload).decoded_runs()
    assert {(run.topic_id, run.queue_id) for run in runs} == set(by_queue)
    for run in runs:
        rows = [payload.ITEM.unpack_from(run.items, at * payload.ITEM.size) for at in range(run.count)]
        wanted = by_queue[run.topic_id, run.queue_id]
        assert (run.base_offset, run.count) == (100, len(wanted))
        for (position, size, crc, _, store_ms), message in zip(rows, wanted, strict=True):
            at = position - ENTRY_AT - 64
            assert (position, store_ms) == (message.position, message.store_ms)
            assert crc == google_crc32c.value(built.payload[at : at + size])

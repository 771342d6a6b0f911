"""Columns made of raw frames equal the messages that the client reads one by one."""

from __future__ import annotations

import datetime
import zlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftmq.arrow import batches
from raftmq.arrow.batches import to_batches
from raftmq.arrow.columns import DEFAULT_COLUMNS, arrow_schema
from raftmq.arrow.frames import Frames, are_of_topic, parse_frames
from raftmq.arrow.ranges import Unreadable
from raftmq.arrow.undecodable import FAIL, RAW, SKIP, Undecodable
from raftmq.client import message as rows
from raftmq.client.errors import Failed, RaftMQError
from raftmq_wire.message_format import Message, MessageFormatError, encode_message

TOPIC = "orders"
I64 = st.integers(-(2**63), 2**63 - 1)
TIMES = st.integers(0, 4_000_000_000_000)
HOSTS = st.sampled_from([("127.0.0.1", 9876), ("fe80::1", 1)])
NAMES = st.sampled_from([b"KEYS", b"TAGS", b"UNIQ_KEY", b"WAIT", b"KEY", b"", b"\xff", "ключ".encode()])
VALUES = st.one_of(st.sampled_from([b"", b"a", b"a b", b"\x01", b"\xe2\x82", "€".encode()]), st.binary(max_size=6))
ENTRIES = st.lists(
    st.builds(lambda name, between, value: name + between + value, NAMES, st.sampled_from([b"\x01", b""]), VALUES),
    max_size=5,
)
PROPERTIES = st.one_of(
    st.binary(max_size=12), ENTRIES.map(b"\x02".join), ENTRIES.map(lambda e: b"\x02".join(e) + b"\x02")
)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    body = draw(st.binary(max_size=40))
    compressed = draw(st.booleans())
    return Message(
        topic=TOPIC,
        body=zlib.compress(body) if compressed else body,
        properties=draw(PROPERTIES),
        queue_id=draw(st.integers(0, 2**31 - 1)),
        queue_offset=draw(I64),
        position=draw(I64),
        sys_flag=rows.COMPRESSED if compressed else 0,
        born_ms=draw(I64),
        born_host=draw(HOSTS),
        store_ms=draw(TIMES),
        store_host=draw(HOSTS),
        reconsume_times=draw(st.integers(0, 99)),
    )


def by_rows(data: bytes) -> list[dict[str, Any]]:
    """Returns the rows of the client's own messages, one by one."""
    return [
        {
            "topic": message.topic,
            "queue_id": message.queue_id,
            "queue_offset": message.queue_offset,
            "body": message.body,
            "tag": message.tag,
            "keys": message.key,
            "message_id": message.message_id,
            "born_ms": message.born_ms,
            "store_ms": message.store_ms,
            "position": message.position,
            "properties": list(message.properties.items()),
            "store_time": datetime.datetime.fromtimestamp(0, datetime.UTC)
            + datetime.timedelta(milliseconds=message.store_ms),
        }
        for message in rows.decode_messages(data)
    ]


def table(frames: Frames, names: Sequence[str], undecodable: Undecodable | None = None) -> pa.Table:
    return pa.Table.from_batches(to_batches(frames, TOPIC, names, undecodable), arrow_schema(names))


def by_columns(data: bytes) -> list[dict[str, Any]]:
    frames = parse_frames(data)
    if not are_of_topic(frames, TOPIC).all():
        raise MessageFormatError("another topic")
    found: list[dict[str, Any]] = table(frames, DEFAULT_COLUMNS, Undecodable(RAW)).to_pylist()
    return found


@settings(max_examples=150, deadline=None)
@given(st.lists(messages(), max_size=6))
def test_columns_equal_rows(sent: list[Message]) -> None:
    data = b"".join(map(encode_message, sent))
    assert by_columns(data) == by_rows(data)


@settings(max_examples=300, deadline=None)
@given(st.lists(messages(), min_size=1, max_size=3), st.data())
def test_a_changed_or_cut_byte_is_refused_or_read_alike(sent: list[Message], data: st.DataObject) -> None:
    """Both ways read the same rows of damaged bytes, or both refuse them."""
    whole = bytearray(b"".join(map(encode_message, sent)))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(0, 255))
    damaged = bytes(whole[: data.draw(st.sampled_from([len(whole), place]))])
    try:
        expected = by_rows(damaged)
    except (RaftMQError, OverflowError) as error:  # OverflowError: a time that Python has no datetime for
        if isinstance(error, RaftMQError):
            with pytest.raises((MessageFormatError, Failed)):
                by_columns(damaged)
        return
    if any(row["topic"] != TOPIC for row in expected):  # a batch is of one topic
        with pytest.raises(MessageFormatError):
            by_columns(damaged)
    else:
        assert by_columns(damaged) == expected


def test_both_versions_of_the_format_are_read() -> None:
    long_topic = "t" * 200
    data = encode_message(Message(TOPIC, b"one")) + encode_message(Message(long_topic, b"two"))
    frames = parse_frames(data)
    topics = [data[at:end].decode() for at, end in zip(frames.topic_at, frames.topic_end, strict=True)]
    assert topics == [TOPIC, long_topic]
    assert are_of_topic(frames, TOPIC).tolist() == [True, False]
    assert are_of_topic(frames, long_topic).tolist() == [False, True]
    assert are_of_topic(frames, "others").tolist() == [False, False]
    assert table(frames, ("body",)).column("body").to_pylist() == [b"one", b"two"]


def test_no_frames_are_a_batch_without_rows() -> None:
    batch = table(parse_frames(b""), ("tag", "body", "properties"))
    assert batch.num_rows == 0
    assert batch.schema == arrow_schema(("tag", "body", "properties"))


def test_columns_are_those_asked_for_in_that_order() -> None:
    data = encode_message(Message(TOPIC, b"x", b"TAGS\x01new\x02", queue_offset=7))
    assert table(parse_frames(data), ("tag", "queue_offset")).to_pydict() == {
        "tag": ["new"],
        "queue_offset": [7],
    }


def sent_with_one_bad() -> bytes:
    good = zlib.compress(b"good")
    return b"".join(
        encode_message(Message(TOPIC, body, b"TAGS\x01t%d\x02" % at, sys_flag=flag, queue_offset=at))
        for at, (body, flag) in enumerate(
            [(b"plain", 0), (good, rows.COMPRESSED), (b"bad", rows.COMPRESSED | 5 << 8), (good, rows.COMPRESSED)]
        )
    )


def test_a_body_that_cannot_be_decompressed_is_an_error_with_its_place() -> None:
    frames = parse_frames(sent_with_one_bad())
    for undecodable in (None, Undecodable(FAIL)):
        with pytest.raises(Unreadable, match="orders queue 0 offset 2") as found:
            list(to_batches(frames, TOPIC, ("body",), undecodable))
        assert "onUndecodable" in (found.value.hint or "")
    assert table(frames, ("tag",)).num_rows == 4, "only what is shown is decompressed"


@pytest.mark.parametrize("most", [1, 9, 1000])
def test_such_a_body_is_raw_or_its_row_is_left_out(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if bodies are so large that each takes a batch of its own."""
    monkeypatch.setattr(batches, "MAX_BODIES_BYTES", most)
    frames = parse_frames(sent_with_one_bad())
    for choice, bodies in ((RAW, [b"plain", b"good", b"bad", b"good"]), (SKIP, [b"plain", b"good", b"good"])):
        undecodable = Undecodable(choice)
        found = table(frames, ("queue_offset", "body", "tag"), undecodable)
        assert found["body"].to_pylist() == bodies
        assert found["tag"].to_pylist() == [f"t{at}" for at in found["queue_offset"].to_pylist()]
        assert undecodable.count == 1
        assert len(found["body"].chunks) == {1: len(bodies), 9: 2, 1000: 1}[most]


def test_another_word_than_the_choices_is_refused() -> None:
    with pytest.raises(ValueError, match="on_undecodable='ignore' is not one of fail, raw, skip"):
        Undecodable("ignore")

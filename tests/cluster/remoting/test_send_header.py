"""Send headers of both forms: what a client may write is read, whatever else is a CodecError."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.remoting.handlers.send import SendHeader, decode_send_header
from raftmq_wire.codec import BINARY, JSON, CodecError, Header, decode_header, encode_frame
from tests.support.rows import each_row

LONG = {
    "producerGroup": "g",
    "topic": "T",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "-1",
    "sysFlag": "0",
    "bornTimestamp": "1700000000000",
    "flag": "-5",
    "properties": "A\x01b\x02",
    "reconsumeTimes": "2",
    "maxReconsumeTimes": "16",
    "batch": "true",
}
SHORT = dict(zip("abcdefghijlm", LONG.values(), strict=True))
IDENTITY = {"raftmqPid": "00" * 16, "raftmqSeq": "7", "raftmqLow": "3"}


def header_of(code: int, ext: dict[str, Any], serialize_type: int = JSON) -> Header:
    frame = encode_frame(code, 1, 0, ext=ext, serialize_type=serialize_type)
    return decode_header(frame[4], frame[8 : 8 + int.from_bytes(frame[5:8], "big")])


@each_row("serialize_type", [JSON, BINARY])
@each_row(("code", "ext"), [(10, LONG), (310, SHORT), (320, SHORT)])
def test_both_names_both_forms(code: int, ext: dict[str, str], serialize_type: int) -> None:
    fields = decode_send_header(header_of(code, ext | IDENTITY, serialize_type))
    assert (fields.topic, fields.queue_id, fields.message_flag, fields.properties) == ("T", -1, -5, "A\x01b\x02")
    assert (fields.is_batch, fields.reconsume_times, fields.born_ms) == (True, 2, 1_700_000_000_000)
    assert (fields.producer_id, fields.sequence, fields.low_sequence) == ("00" * 16, 7, 3)


def test_numbers_and_booleans_may_be_bare() -> None:
    """C++ and JavaScript clients write them so."""
    ext = {"b": "T", "e": 3, "g": 1700000000000, "m": True, "j": None, "unknown": "x"}
    header = Header(310, extFields=msgspec.Raw(json.dumps(ext).encode()))
    fields = decode_send_header(header)
    assert (fields.queue_id, fields.is_batch, fields.reconsume_times) == (3, True, None)


@each_row(
    ("name", "value"),
    [
        ("e", "x"),
        ("e", str(1 << 31)),
        ("e", str(-(1 << 31) - 1)),
        ("f", "-1"),
        ("f", str(1 << 31)),
        ("g", "-1"),
        ("g", str(1 << 63)),
        ("h", str(1 << 31)),
        ("j", "-1"),
        ("j", str(1 << 31)),
        ("m", "maybe"),
        ("d", "1.5"),
        ("raftmqSeq", "-1"),
        ("raftmqSeq", str(1 << 63)),
        ("raftmqLow", str(1 << 63)),
        ("raftmqSeq", "9" * 5000),
    ],
)
@each_row("serialize_type", [JSON, BINARY])
def test_refused(name: str, value: str, serialize_type: int) -> None:
    with pytest.raises(CodecError, match="bad send header"):
        decode_send_header(header_of(310, SHORT | {name: value}, serialize_type))


def test_the_topic_is_required() -> None:
    with pytest.raises(CodecError, match="`b`"):
        decode_send_header(header_of(310, {"a": "g"}))
    with pytest.raises(CodecError, match="`topic`"):
        decode_send_header(header_of(10, {"producerGroup": "g"}))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


@given(st.sampled_from([10, 310, 320]), st.dictionaries(st.sampled_from([*SHORT, *LONG, *IDENTITY]), anything))
def test_any_fields_are_a_header_or_a_codec_error(code: int, fields: dict[str, Any]) -> None:
    decode_or_codec_error(Header(code, extFields=msgspec.Raw(json.dumps(fields).encode())))


@given(st.sampled_from([10, 310]), st.binary(max_size=60))
def test_any_bytes_are_a_header_or_a_codec_error(code: int, data: bytes) -> None:
    decode_or_codec_error(Header(code, extFields=msgspec.Raw(data)))


@given(st.sampled_from([JSON, BINARY, 2]), st.data())
def test_a_damaged_header_is_a_header_or_a_codec_error(serialize_type: int, data: st.DataObject) -> None:
    frame = encode_frame(310, 1, 0, ext=SHORT | IDENTITY, serialize_type=serialize_type & 1)
    damaged = bytearray(frame[8:])
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        header = decode_header(serialize_type, bytes(damaged))
    except CodecError:
        return
    decode_or_codec_error(header)


def decode_or_codec_error(header: Header) -> None:
    try:
        fields = decode_send_header(header)
    except CodecError:
        return
    assert isinstance(fields.topic, str)
    assert type(fields).__struct_fields__ == SendHeader.__struct_fields__
    assert -(1 << 31) <= fields.queue_id < 1 << 31

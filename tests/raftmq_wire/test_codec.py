"""Frames and headers: vectors, what each client sends, and what no client should."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq_wire.codec import (
    BINARY,
    FLAG_RESPONSE,
    JSON,
    LANGUAGES,
    AlikeHeads,
    CodecError,
    decode_header,
    encode_frame,
    encode_head,
    ext_of,
    is_true,
)
from raftmq_wire.message_format import java_hash
from tests.support.rows import each_row

VECTOR = bytes.fromhex(
    "000000250100002100690001df0000000100000000000000000000000c0005746f7069630000000154"
)  # request 105, version 479, opaque 1, flag 0, ext topic=T


def split(frame: bytes) -> tuple[int, bytes, bytes]:
    """serialize type, header, body of one whole frame; checks both lengths."""
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    end = 8 + int.from_bytes(frame[5:8], "big")
    return frame[4], frame[8:end], frame[end:]


def test_binary_vector() -> None:
    frame = encode_frame(105, 1, 0, ext={"topic": "T"}, serialize_type=BINARY, language="JAVA", version=479)
    assert frame == VECTOR
    kind, data, body = split(VECTOR)
    header = decode_header(kind, data)
    assert (kind, body) == (BINARY, b"")
    assert (header.code, header.opaque, header.flag, header.version, header.language) == (105, 1, 0, 479, "JAVA")
    assert ext_of(header) == {"topic": "T"}


def test_json_reply_bytes() -> None:
    kind, data, body = split(encode_frame(0, 9, 1, remark="ok", body=b"xyz", language="JAVA", version=477))
    assert (kind, body) == (JSON, b"xyz")
    assert data == (
        b'{"code":0,"extFields":{},"flag":1,"language":"JAVA","opaque":9,"remark":"ok",'
        b'"serializeTypeCurrentRPC":"JSON","version":477}'
    )


def test_cpp_and_js_send_numbers_and_booleans() -> None:
    header = decode_header(
        JSON,
        b'{"opaque":3,"code":10,"extFields":{"queueId":0,"k":false,"m":true,"batch":"0","x":null,"big":9007199254740993},'
        b'"language":"CPP","version":63,"unknown":[{}]}',
    )
    assert ext_of(header) == {
        "queueId": "0",
        "k": "false",
        "m": "true",
        "batch": "0",
        "big": "9007199254740993",
    }
    assert [is_true(value) for value in ("true", "True", "1", "false", "0", "", None)] == [True] * 3 + [False] * 4


@pytest.mark.parametrize("data", [b'{"code":105}', b'{"code":105,"extFields":null}', b'{"code":105,"extFields":{}}'])
def test_absent_ext_is_empty(data: bytes) -> None:
    assert ext_of(decode_header(JSON, data)) == {}


@each_row(
    ("kind", "data"),
    [
        (JSON, b""),
        (JSON, b"{"),
        (JSON, b"null"),
        (JSON, b"[]"),
        (JSON, b"{}"),
        (JSON, b'{"code":null}'),
        (JSON, b'{"code":1.5}'),
        (JSON, b'{"code":1,"opaque":"x"}'),
        (JSON, b'{"code":1,"remark":"\xff"}'),
        (JSON, b'{"code":1,"extFields":[]}'),
        (JSON, b'{"code":1,"extFields":7}'),
        (JSON, b'{"code":1,"x":' + b"[" * 100_000),
        (2, b"{}"),
        (255, b""),
        (BINARY, b""),
        (BINARY, VECTOR[8:-1]),
        (BINARY, VECTOR[8:] + b"x"),
        (BINARY, VECTOR[8:21] + b"\x7f\xff\xff\xff" + VECTOR[25:]),  # remark longer than the header
        (BINARY, VECTOR[8:21] + b"\xff\xff\xff\xff" + VECTOR[25:]),  # remark of negative length
        (BINARY, VECTOR[8:29] + b"\x7f\xff" + VECTOR[31:]),  # key longer than the header
        (BINARY, VECTOR[8:29] + b"\xff\xff" + VECTOR[31:]),  # key of negative length
        (BINARY, VECTOR[8:36] + b"\x00\x00\x00\x02" + VECTOR[40:]),  # value longer than the header
        (BINARY, VECTOR[8:36] + b"\xff\xff\xff\xff" + VECTOR[40:]),  # value of negative length
        (BINARY, VECTOR[8:40] + b"\xff"),  # not UTF-8
    ],
)
def test_malformed_headers(kind: int, data: bytes) -> None:
    with pytest.raises(CodecError):
        ext_of(decode_header(kind, data))


@given(st.sampled_from([JSON, BINARY]), st.binary(max_size=200))
def test_noise_raises_only_codec_errors(kind: int, data: bytes) -> None:
    with contextlib.suppress(CodecError):
        assert all(type(value) is str for value in ext_of(decode_header(kind, data)).values())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {"code": json_values, "extFields": json_values | st.dictionaries(st.text(max_size=4), json_values)},
        optional={"opaque": json_values, "flag": json_values, "version": json_values, "language": json_values},
    )
)
def test_any_json_raises_only_codec_errors(header: dict[str, object]) -> None:
    with contextlib.suppress(CodecError):
        decoded = decode_header(JSON, json.dumps(header).encode())
        assert all(type(value) is str for value in ext_of(decoded).values())


@given(st.data())
def test_damaged_binary_headers_raise_only_codec_errors(data: st.DataObject) -> None:
    damaged = bytearray(VECTOR[8:])
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CodecError):
        ext_of(decode_header(BINARY, bytes(damaged)))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(
    st.sampled_from([JSON, BINARY]),
    st.integers(0, 32767),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 3),
    st.dictionaries(texts, texts, max_size=5),
    texts,
    st.binary(max_size=50),
    st.sampled_from(LANGUAGES),
)
def test_frames_round_trip(
    kind: int, code: int, opaque: int, flag: int, ext: dict[str, str], remark: str, body: bytes, language: str
) -> None:
    frame = encode_frame(
        code, opaque, flag, ext=ext, remark=remark, body=body, serialize_type=kind, language=language, version=401
    )
    seen_kind, data, seen_body = split(frame)
    header = decode_header(seen_kind, data)
    assert (seen_kind, seen_body, ext_of(header)) == (kind, body, ext)
    assert (header.remark or "") == remark.replace("%", "\uff05")
    assert (header.code, header.opaque, header.flag, header.version, header.language) == (
        code,
        opaque,
        flag,
        401,
        language,
    )


@given(
    st.integers(0, 32767),
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4),
    st.dictionaries(
        st.one_of(texts, st.just("opaque")), st.one_of(texts, st.sampled_from(["0", '"opaque":0,'])), max_size=5
    ),
    st.one_of(texts, st.just('","opaque":0,"')),
    st.integers(0, 1 << 24),
)
def test_alike_heads_are_those_of_single_answers(
    code: int, opaques: list[int], ext: dict[str, str], remark: str, body_size: int
) -> None:
    heads = AlikeHeads(code, body_size, ext=ext, remark=remark)
    for opaque in opaques:
        expected = encode_head(code, opaque, FLAG_RESPONSE, body_size, ext=ext, remark=remark, language="JAVA")
        assert heads.head(opaque) == expected


@pytest.mark.parametrize("kind", [JSON, BINARY])
def test_no_remark_is_a_printf_format(kind: int) -> None:
    """The C++ client prints the remark of an error as a format: "%RETRY%sales" read a string that is not there."""
    frame = encode_frame(22, 1, 1, remark="no offset of %RETRY%sales", serialize_type=kind, reader="CPP")
    assert b"%" not in frame
    assert decode_header(*split(frame)[:2]).remark == "no offset of \uff05RETRY\uff05sales"


@pytest.mark.parametrize("reader", ["JAVA", "GO"])
def test_who_shows_a_remark_as_it_is_gets_it_so(reader: str) -> None:
    frame = encode_frame(22, 1, 1, remark="no offset of %RETRY%sales", reader=reader)
    assert decode_header(*split(frame)[:2]).remark == "no offset of %RETRY%sales"


@each_row(
    ("text", "value"),
    [("", 0), ("TagA", 2598919), ("polygenelubricants", -2147483648), ("t#k", 112668), ("ä", 228), ("😀", 1772899)],
)
def test_java_hash(text: str, value: int) -> None:
    assert java_hash(text) == value

"""Wire forms of messages, and what the client refuses to believe."""

from __future__ import annotations

import sys
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.client import message as m
from raftmq.client.errors import Failed, RaftMQError
from raftmq.client.producing.send_frame import FrameWriter, MessageIds, build_batch, build_copy, build_single
from raftmq_wire.codec import decode_header, ext_of
from raftmq_wire.message_format import Message as StoredMessage
from raftmq_wire.message_format import encode_message
from raftmq_wire.properties import parse_properties
from raftmq_wire.signature import Credentials

VECTOR = bytes.fromhex(
    "00000065daa320a758932aac000000030000000000000000000000050000000000001000000000000000018bcfe568000a0000020000c350"
    "0000018bcfe568010a00000100002a9f0000000000000000000000000000000268690154000754414753016102"
)
"""`hi` to topic T, tag a, queue 3, queue offset 5, position 4096 (docs/wire-protocol.md)."""


def test_stored_message_vector() -> None:
    (found,) = m.decode_messages(VECTOR)
    assert (found.topic, found.queue_id, found.queue_offset, found.position) == ("T", 3, 5, 4096)
    assert (found.body, found.tag, found.key, found.keys) == (b"hi", "a", None, ())
    assert (found.born_ms, found.store_ms) == (1_700_000_000_000, 1_700_000_000_001)


@given(st.integers(0, len(VECTOR) - 1), st.integers(1, 255), st.integers(0, 3))
def test_damaged_messages_never_raise_anything_else(at: int, flip: int, copies: int) -> None:
    damaged = bytearray(VECTOR)
    damaged[at] ^= flip
    try:
        m.decode_messages(VECTOR * copies + bytes(damaged))
    except RaftMQError:
        return
    assert at >= 12  # size, magic and checksum cannot be changed without notice


@given(st.binary(max_size=200))
def test_any_bytes_are_messages_or_failed(data: bytes) -> None:
    try:
        m.decode_messages(data)
    except Failed:
        return
    assert not data


def test_a_body_that_does_not_match_its_checksum_is_failed() -> None:
    with pytest.raises(Failed, match="CRC"):
        m.decode_messages(VECTOR.replace(b"hi", b"ho"))


def test_a_compressed_body_is_inflated(stored: Any, stored_message: Any) -> None:
    body = b"a long story " * 100
    data = stored("T", 0, 0, stored_message(zlib.compress(body), "", 1, m.COMPRESSED))
    assert m.decode_messages(data)[0].body == body


@pytest.mark.parametrize(("kind", "codec"), [(1, "lz4"), (2, "zstd")])
def test_a_body_in_lz4_or_zstd_is_inflated(
    stored: Any, stored_message: Any, kind: int, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The body is in the form that Java's setCompressType writes: frames of LZ4 and of ZSTD, their kind in the
    message's flags."""
    pyarrow = pytest.importorskip("pyarrow")
    body = b"a long story " * 100
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, codec) as stream:
        stream.write(body)
    packed = sink.getvalue().to_pybytes()
    flags = m.COMPRESSED | kind << 8
    assert m.decode_messages(stored("T", 0, 0, stored_message(packed, "", 1, flags)))[0].body == body
    for damaged in (packed[: len(packed) // 2], b"neither"):
        kept(m.decode_messages(stored("T", 0, 0, stored_message(damaged, "", 1, flags))), damaged, "does not inflate")
    found = m.decode_messages(stored("T", 0, 0, stored_message(b"", "", 1, flags)))
    kept(found, b"", "cut short")
    with pytest.raises(m.UnreadableError, match="more than 1000 bytes"):
        m.decompress(packed, kind, 1000)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    found = m.decode_messages(stored("T", 0, 0, stored_message(packed, "", 1, flags)))
    kept(found, packed, f"compressed with {codec}, which this client reads where pyarrow is installed")


def kept(found: list[m.Message], body: bytes, why: str) -> None:
    """Checks that the message has its body as stored, and says why."""
    (one,) = found
    assert one.body == body
    assert why in one.undecoded
    assert one.compression & m.COMPRESSED
    assert one.decoded() is one, "it is not tried again"


def test_properties_that_are_not_utf_8_do_not_hide_the_message() -> None:
    """Any producer can write them, and a consumer that fails on one never gets past it."""
    stored = encode_message(StoredMessage("T", b"body", b"TAGS\x01a\x02name\x01\xff\x02"))
    (found,) = m.decode_messages(stored)
    assert (found.body, found.tag, found.properties["name"]) == (b"body", "a", "\ufffd")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (zlib.compress(bytes(m.MAX_INFLATED_BYTES + 1)), f"more than {m.MAX_INFLATED_BYTES} bytes"),
        (zlib.compress(b"x" * 500)[:-6], "cut short"),
        (b"no zlib", "does not inflate"),
    ],
)
def test_a_bad_or_huge_compressed_body_is_kept_as_stored(
    stored: Any, stored_message: Any, body: bytes, why: str
) -> None:
    kept(m.decode_messages(stored("T", 0, 0, stored_message(body, "", 1, m.COMPRESSED))), body, why)


def test_a_body_is_inflated_when_it_is_asked_for(stored: Any, stored_message: Any) -> None:
    packed = zlib.compress(b"a long story")
    (one,) = m.decode_messages(stored("T", 0, 0, stored_message(packed, "", 1, m.COMPRESSED)), as_stored=True)
    assert (one.body, one.compression, one.undecoded) == (packed, m.COMPRESSED, "")
    plain = one.decoded()
    assert (plain.body, plain.compression, plain.undecoded) == (b"a long story", 0, "")


def test_a_copy_has_the_body_and_flags_of_its_original(stored: Any, stored_message: Any) -> None:
    """And properties that no send would take: whatever is stored can be sent again."""
    flags = m.COMPRESSED | 5 << 8
    text = "KEYS\x01a\x01b\x02odd\x01\x01x\x02"
    (one,) = m.decode_messages(stored("T", 0, 0, stored_message(b"?", text, 1, flags)), as_stored=True)
    request = build_copy(MessageIds(bytes(10)), "T", one, one.properties)
    for credentials in (None, Credentials("user", "secret")):
        frame = FrameWriter("g", bytes(16), credentials).frame(request, 7, 5, 3, 11)
        size = int.from_bytes(frame[5:8], "big")
        ext = ext_of(decode_header(0, frame[8 : 8 + size]))
        assert (ext["f"], ext["e"], frame[8 + size :]) == (str(flags), "7", b"?")
        assert one.properties.items() <= parse_properties(ext["i"]).items()


@given(st.dictionaries(st.text('abc%"\\ é', min_size=1), st.text('xyz\n"%\\ü', min_size=1), max_size=5))
def test_properties_round_trip_through_a_frame(properties: dict[str, str]) -> None:
    request = build_single(
        MessageIds(bytes(10)),
        "t%d",
        b"body",
        key=["a", "b"],
        tag="T",
        queue_id=None,
        ordering_key=None,
        properties=properties,
    )
    frame = FrameWriter("g%s", bytes(16)).frame(request, 7, 5, 3, 11)
    size = int.from_bytes(frame[5:8], "big")
    ext = ext_of(header := decode_header(0, frame[8 : 8 + size]))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert (header.code, header.opaque, frame[8 + size :]) == (310, 5, b"body")
    assert (ext["a"], ext["b"], ext["e"], ext["g"], ext["m"]) == ("g%s", "t%d", "7", "11", "false")
    assert (ext["raftmqPid"], ext["raftmqSeq"], ext["raftmqLow"]) == ("0" * 32, "5", "3")
    found = parse_properties(ext["i"])
    assert found.pop("KEYS") == "a b"
    assert found.pop("TAGS") == "T"
    assert found.pop("UNIQ_KEY") == request.message_ids[0]
    assert found.pop("WAIT") == "true"
    assert found == properties


def test_batch_body_layout() -> None:
    request = build_batch(
        MessageIds(bytes(10)), "t", [b"abc"], key=None, tag=None, queue_id=None, ordering_key=None, properties=None
    )
    (message_id,) = request.message_ids
    properties = f"UNIQ_KEY\x01{message_id}\x02WAIT\x01true\x02".encode()
    expected = (20 + 3 + 2 + len(properties), 0, 0, 0, 3)
    head = b"".join(n.to_bytes(4, "big") for n in expected)
    assert request.body == head + b"abc" + len(properties).to_bytes(2, "big") + properties


def test_position_of_an_offset_message_id() -> None:
    assert m.position_of("0A00000100002A9F0000000000001000") == 4096
    assert m.position_of("") == -1
    assert m.position_of("not an id") == -1

"""The stored form of a message and the formats around it, against frozen vectors, round trips and damaged bytes."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq_wire.message_format import (
    CLAIM_BYTES,
    MAGIC_V2,
    SYS_FLAG_BORN_IPV6,
    SYS_FLAG_STORE_IPV6,
    BatchItem,
    Message,
    MessageFormatError,
    body_crc,
    build_batch,
    claim_in,
    decode_host,
    decode_message,
    decode_message_id,
    decode_messages,
    encode_host,
    encode_message,
    encode_message_id,
    java_hash,
    stored_properties,
)
from raftmq_wire.properties import parse_properties
from tests.support.message_bytes import build_properties, split_batch
from tests.support.rows import each_row

VECTOR = bytes.fromhex(
    "00000065daa320a758932aac000000030000000000000000000000050000000000001000000000000000018bcfe568000a000002"
    "0000c3500000018bcfe568010a00000100002a9f0000000000000000000000000000000268690154000754414753016102"
)
MESSAGE = Message(
    topic="T",
    body=b"hi",
    properties=b"TAGS\x01a\x02",
    queue_id=3,
    queue_offset=5,
    position=4096,
    born_ms=1700000000000,
    born_host=("10.0.0.2", 50000),
    store_ms=1700000000001,
    store_host=("10.0.0.1", 10911),
)


def test_frozen_vectors() -> None:
    assert encode_message(MESSAGE) == VECTOR
    assert decode_message(VECTOR) == (MESSAGE, 101)
    assert body_crc(b"hello") == 907060870
    assert java_hash("TagA") == 2598919
    assert java_hash("polygenelubricants") == -2147483648
    assert java_hash("t#k") == 112668
    assert encode_message_id(("10.0.0.1", 10911), 4096) == "0A00000100002A9F0000000000001000"


i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
# One address has several spellings ("::ffff:0:0"): only the one inet_ntop writes comes back.
hosts = st.tuples(st.ip_addresses().map(str), st.integers(0, 65535)).map(lambda host: decode_host(encode_host(host)))
messages = st.builds(
    Message,
    topic=st.text(max_size=100),
    body=st.binary(max_size=300),
    properties=st.binary(max_size=300),
    queue_id=i32,
    flag=i32,
    queue_offset=i64,
    position=i64,
    sys_flag=i32,
    born_ms=i64,
    born_host=hosts,
    store_ms=i64,
    store_host=hosts,
    reconsume_times=i32,
    prepared_position=i64,
)


@given(st.lists(messages, max_size=4))
def test_messages_round_trip(batch: list[Message]) -> None:
    back = list(decode_messages(b"".join(map(encode_message, batch))))
    ipv6 = SYS_FLAG_BORN_IPV6 | SYS_FLAG_STORE_IPV6
    assert [m._replace(sys_flag=m.sys_flag & ~ipv6) for m in back] == [
        m._replace(sys_flag=m.sys_flag & ~ipv6) for m in batch
    ]
    for message in back:
        assert bool(message.sys_flag & SYS_FLAG_BORN_IPV6) == (":" in message.born_host[0])
        assert bool(message.sys_flag & SYS_FLAG_STORE_IPV6) == (":" in message.store_host[0])


@given(messages)
def test_hosts_are_passed_over_for_those_who_do_not_want_them(message: Message) -> None:
    encoded = encode_message(message)
    whole, end = decode_message(encoded)
    unknown = ("0.0.0.0", 0)
    assert decode_message(encoded, hosts=False) == (whole._replace(born_host=unknown, store_host=unknown), end)


@given(messages, st.data())
def test_damage_raises_only_format_errors(message: Message, data: st.DataObject) -> None:
    encoded = bytearray(encode_message(message))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(encoded[: data.draw(st.integers(0, len(encoded)))])
    for damaged in (bytes(encoded), cut):
        with contextlib.suppress(MessageFormatError):
            list(decode_messages(damaged))
        with contextlib.suppress(MessageFormatError):
            stored_properties(damaged)
        with contextlib.suppress(MessageFormatError):
            claim_in(damaged).topic_in(damaged[:7])


@given(messages)
def test_properties_are_found_without_decoding_the_rest(message: Message) -> None:
    assert stored_properties(encode_message(message)) == message.properties


@given(messages)
def test_the_ends_of_a_message_say_where_its_row_is(message: Message) -> None:
    """And nothing else is needed to look for the row: a body that looks like a message has none."""
    stored = encode_message(message)
    claim = claim_in(stored[:CLAIM_BYTES])
    assert (claim.size, claim.queue_id, claim.queue_offset) == (len(stored), message.queue_id, message.queue_offset)
    assert claim.topic_in(stored[claim.topic_at :]) == message.topic


@each_row("forged", [b"", b"x" * 48, b"x" * 200])
def test_what_is_no_message_says_nothing(forged: bytes) -> None:
    with pytest.raises(MessageFormatError):
        claim_in(forged)


def test_a_changed_body_fails_its_crc() -> None:
    at = VECTOR.index(b"hi")
    with pytest.raises(MessageFormatError, match="CRC"):
        decode_message(VECTOR[:at] + b"ho" + VECTOR[at + 2 :])


def test_only_long_topics_are_version_2() -> None:
    assert encode_message(MESSAGE._replace(topic="t" * 127))[4:8] == VECTOR[4:8]
    long = MESSAGE._replace(topic="t" * 128)
    encoded = encode_message(long)
    assert struct.unpack_from(">I", encoded, 4)[0] == MAGIC_V2
    assert decode_message(encoded)[0] == long


def test_fields_that_cannot_be_stored_are_refused() -> None:
    with pytest.raises(MessageFormatError, match="32767"):
        encode_message(MESSAGE._replace(properties=b"x" * 32768))
    with pytest.raises(MessageFormatError, match="65535"):
        encode_message(MESSAGE._replace(topic="t" * 65536))
    with pytest.raises(MessageFormatError, match="numeric"):
        encode_host(("broker.example", 1))


def test_properties() -> None:
    assert parse_properties(b"a\x011\x02b\x012") == {"a": "1", "b": "2"}
    assert parse_properties("a\x011\x02a\x012\x02\x02x\x02\x01y\x02z\x01\x02") == {"a": "2"}
    assert parse_properties(b"k\x01\xff\x02") == {"k": "�"}
    assert build_properties({"TAGS": "a", "KEYS": "ä"}) == "TAGS\x01a\x02KEYS\x01ä\x02".encode()


def test_batch_body_vector() -> None:
    one = bytes.fromhex("00000019 00000000 00000000 00000007 00000002 6869 0001 61".replace(" ", ""))
    assert len(one) == 25
    assert build_batch([BatchItem(7, b"hi", b"a")]) == one
    assert list(split_batch(one + one)) == [BatchItem(7, b"hi", b"a")] * 2


@given(st.lists(st.builds(BatchItem, i32, st.binary(max_size=50), st.binary(max_size=50)), max_size=5))
def test_batches_round_trip(items: list[BatchItem]) -> None:
    assert list(split_batch(build_batch(items))) == items


@given(hosts, st.integers(0, 2**63 - 1))
def test_message_ids_round_trip(host: tuple[str, int], position: int) -> None:
    text = encode_message_id(host, position)
    assert len(text) == (56 if ":" in host[0] else 32)
    assert decode_message_id(text) == (host, position)
    assert decode_host(encode_host(host)) == host


@each_row("text", ["", "0A", "zz" * 16, "0A00000100002A9F00000000000010", "0A " * 16])
def test_bad_message_ids_are_refused(text: str) -> None:
    with pytest.raises(MessageFormatError, match="message id"):
        decode_message_id(text)

"""The format of a message as RocketMQ stores it and as a pull returns it, and related small formats: batches, message
ids and recall handles. Pure functions.

All integers big-endian; `h` is 8 bytes (IPv4) or 20 (IPv6): address, then port as int32. ::

     0  total size    u32  this field included        48        born host     h
     4  magic         u32  v1 or v2                   48+h      store ms      i64
     8  body crc      u32  crc32 & 0x7fffffff         56+h      store host    h
    12  queue id      i32                             56+2h     reconsumed    i32
    16  user flag     i32                             60+2h     prepared pos  i64
    20  queue offset  i64                             68+2h     body          u32 length, bytes
    28  position      i64  of byte 0, in the log      ...       topic         u8 (v1) or u16 (v2) length, bytes
    36  sys flag      i32                             ...       properties    i16 length, bytes
    40  born ms       i64

v2 is used only for topics of more than 127 bytes. The body is stored as it was sent, compressed or not; the CRC covers
it in that form. Source: MessageDecoder, MessageVersion; facts and vectors in docs/wire-protocol.md.
"""

from __future__ import annotations

import base64
import binascii
import functools
import socket
import struct
import sys
import zlib
from collections.abc import Iterator
from operator import mul
from typing import NamedTuple

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
TOPIC_BYTES_V1 = 127
PROPERTIES_BYTES_MAX = 32767

SYS_FLAG_BORN_IPV6 = 0x10
SYS_FLAG_STORE_IPV6 = 0x20

HEAD = struct.Struct(">IIIiiqqiq")
"""The fields from the total size up to the born time, 48 bytes."""
BODY_HEAD = struct.Struct(">iqI")
"""The fields before the body: reconsume times, prepared position, body length."""
_MAGIC_AT, _POSITION_AT, _SYS_FLAG_AT = 4, 28, 36
_I64 = struct.Struct(">q")
_U32 = struct.Struct(">I")
_U16 = struct.Struct(">H")
_PORT = struct.Struct(">i")
_BATCH_HEAD = struct.Struct(">iiiii")

Host = tuple[str, int]
"""An address: numeric IP address, port."""
_NO_HOST: Host = ("0.0.0.0", 0)


class MessageFormatError(ValueError):
    """The bytes do not follow the format; the text says what does not fit."""


class Message(NamedTuple):
    """One stored message. `properties` is the raw string that `raftmq_wire.properties` reads."""

    topic: str
    body: bytes
    properties: bytes = b""
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    position: int = 0
    sys_flag: int = 0
    born_ms: int = 0
    born_host: Host = _NO_HOST
    store_ms: int = 0
    store_host: Host = _NO_HOST
    reconsume_times: int = 0
    prepared_position: int = 0


def body_crc(body: bytes) -> int:
    """Returns the CRC field of a body: its CRC-32 without the top bit, because Java keeps the number positive."""
    return zlib.crc32(body) & 0x7FFFFFFF


@functools.lru_cache(maxsize=4096)
def encode_host(host: Host) -> bytes:
    """Encodes an address as 8 bytes for IPv4, 20 for IPv6. Raises MessageFormatError if it is not numeric."""
    ip, port = host
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    try:
        return socket.inet_pton(family, ip.partition("%")[0]) + _PORT.pack(port)
    except (OSError, struct.error) as error:
        raise MessageFormatError(f"{ip}:{port} is not a numeric address and port") from error


def decode_host(data: bytes) -> Host:
    """Decodes an address that `encode_host` encoded; `data` is exactly 8 or 20 bytes."""
    if len(data) not in (8, 20):
        raise MessageFormatError(f"a host has 8 or 20 bytes, not {len(data)}")
    family = socket.AF_INET if len(data) == 8 else socket.AF_INET6
    (port,) = _PORT.unpack_from(data, len(data) - 4)
    return socket.inet_ntop(family, data[:-4]), port


def encode_message(message: Message) -> bytes:
    """Encodes a message in its stored form. Sets the IPv6 bits of the sys flag to match the addresses. Raises
    MessageFormatError for a topic or properties that are too long, and for an address that is not numeric."""
    topic = message.topic.encode()
    if len(topic) <= TOPIC_BYTES_V1:
        magic, topic_length = MAGIC_V1, bytes((len(topic),))
    elif len(topic) <= 0xFFFF:
        magic, topic_length = MAGIC_V2, _U16.pack(len(topic))
    else:
        raise MessageFormatError(f"a topic has at most 65535 bytes, not {len(topic)}")
    if len(message.properties) > PROPERTIES_BYTES_MAX:
        raise MessageFormatError(f"properties have at most {PROPERTIES_BYTES_MAX} bytes, not {len(message.properties)}")
    born, store = encode_host(message.born_host), encode_host(message.store_host)
    sys_flag = message.sys_flag & ~(SYS_FLAG_BORN_IPV6 | SYS_FLAG_STORE_IPV6)
    sys_flag |= (SYS_FLAG_BORN_IPV6 if len(born) == 20 else 0) | (SYS_FLAG_STORE_IPV6 if len(store) == 20 else 0)
    after_head = (
        born,
        _I64.pack(message.store_ms),
        store,
        BODY_HEAD.pack(message.reconsume_times, message.prepared_position, len(message.body)),
        message.body,
        topic_length,
        topic,
        _U16.pack(len(message.properties)),
        message.properties,
    )
    total = HEAD.size + sum(map(len, after_head))
    head = HEAD.pack(
        total,
        magic,
        body_crc(message.body),
        message.queue_id,
        message.flag,
        message.queue_offset,
        message.position,
        sys_flag,
        message.born_ms,
    )
    return b"".join((head, *after_head))


def decode_message(data: bytes, at: int = 0, *, hosts: bool = True) -> tuple[Message, int]:
    """Decodes the message that starts at the offset `at` of `data`; returns it and the offset of its end. Raises
    MessageFormatError, also for a wrong body CRC.

    Without `hosts`, born and store host are left at their defaults, because turning two addresses into text costs as
    much as all the rest.
    """
    if at < 0 or at + HEAD.size > len(data):
        raise MessageFormatError(f"no room for a message at {at} of {len(data)} bytes")
    total, magic, crc, queue_id, flag, queue_offset, position, sys_flag, born_ms = HEAD.unpack_from(data, at)
    end = at + total
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise MessageFormatError(f"magic {magic:#010x} at {at} is not a message's")
    if total < HEAD.size or end > len(data):
        raise MessageFormatError(f"the message at {at} says {total} bytes and {len(data) - at} are there")
    try:
        store_ms_at = at + HEAD.size + (20 if sys_flag & SYS_FLAG_BORN_IPV6 else 8)
        (store_ms,) = _I64.unpack_from(data, store_ms_at)
        body_head_at = store_ms_at + 8 + (20 if sys_flag & SYS_FLAG_STORE_IPV6 else 8)
        reconsume_times, prepared_position, body_length = BODY_HEAD.unpack_from(data, body_head_at)
        body_at = body_head_at + BODY_HEAD.size
        topic_at = body_at + body_length + (1 if magic == MAGIC_V1 else 2)
        topic_length = data[topic_at - 1] if magic == MAGIC_V1 else _U16.unpack_from(data, topic_at - 2)[0]
        properties_at = topic_at + topic_length + 2
        (properties_length,) = _U16.unpack_from(data, properties_at - 2)
        if properties_at + properties_length != end:
            raise MessageFormatError(f"the lengths inside the message at {at} do not add up to its {total} bytes")
        topic = data[topic_at : topic_at + topic_length].decode()
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MessageFormatError(f"bad message at {at}: {error}") from error
    body = data[body_at : body_at + body_length]
    if body_crc(body) != crc:
        raise MessageFormatError(f"the body of the message at {at} fails its CRC")
    message = Message(
        topic,
        body,
        data[properties_at:end],
        queue_id,
        flag,
        queue_offset,
        position,
        sys_flag,
        born_ms,
        decode_host(data[at + HEAD.size : store_ms_at]) if hosts else _NO_HOST,
        store_ms,
        decode_host(data[store_ms_at + 8 : body_head_at]) if hosts else _NO_HOST,
        reconsume_times,
        prepared_position,
    )
    return message, end


def stored_at(stored: bytes, position: int) -> bytes:
    """Returns a copy of the stored message `stored` whose position field is `position`."""
    return stored[:_POSITION_AT] + _I64.pack(position) + stored[_POSITION_AT + _I64.size :]


def born_host_of(stored: bytes, at: int = 0) -> bytes:
    """Returns the packed address (as `encode_host` encodes it) of a stored message's producer."""
    born_v6 = _U32.unpack_from(stored, at + _SYS_FLAG_AT)[0] & SYS_FLAG_BORN_IPV6
    return stored[at + HEAD.size : at + HEAD.size + (20 if born_v6 else 8)]


def store_ms_of(stored: bytes) -> int:
    """Returns the store time of a stored message, in milliseconds since the epoch."""
    born_v6 = _U32.unpack_from(stored, _SYS_FLAG_AT)[0] & SYS_FLAG_BORN_IPV6
    store_ms: int = _I64.unpack_from(stored, HEAD.size + (20 if born_v6 else 8))[0]
    return store_ms


def decode_messages(data: bytes, *, hosts: bool = True) -> Iterator[Message]:
    """Yields every message of a pull reply's body; `hosts` is passed to `decode_message`. Raises MessageFormatError at
    the first bytes that do not fit."""
    at = 0
    while at < len(data):
        message, at = decode_message(data, at, hosts=hosts)
        yield message


def body_begin(sys_flag: int) -> int:
    """Returns the number of bytes before the body in a stored message with these flags."""
    hosts = (20 if sys_flag & SYS_FLAG_BORN_IPV6 else 8) + (20 if sys_flag & SYS_FLAG_STORE_IPV6 else 8)
    return HEAD.size + hosts + _I64.size + BODY_HEAD.size


class MessageClaim(NamedTuple):
    """The fields of a message as the bytes of the log at its beginning claim them. A client may have sent such bytes in
    the body of a message, so a claim counts only if a row of the state confirms it."""

    size: int
    queue_id: int
    queue_offset: int
    topic_at: int
    """The offset in the message, in bytes, of the length of its topic."""
    length_bytes: int
    """The number of bytes of the topic's length field: 1 or 2."""

    def topic_in(self, tail: bytes) -> str:
        """Returns the topic from `tail`, the message's bytes from `topic_at` on. The name is wrong if `tail` ends
        within it."""
        at = self.length_bytes
        return tail[at : at + int.from_bytes(tail[:at], "big")].decode("utf-8", "replace")


CLAIM_BYTES = HEAD.size + 20 + _I64.size + 20 + BODY_HEAD.size
"""The most bytes at the beginning of a message from which `claim_in` reads."""


def claim_in(head: bytes) -> MessageClaim:
    """Returns the claim in `head`, the first CLAIM_BYTES bytes of a message, or all of a shorter one. Raises
    MessageFormatError if no message can begin so."""
    try:
        total, magic, _, queue_id, _, queue_offset, _, sys_flag, _ = HEAD.unpack_from(head)
        body_at = body_begin(sys_flag)
        topic_at = body_at + _U32.unpack_from(head, body_at - _U32.size)[0]
    except struct.error as error:
        raise MessageFormatError(f"bad message: {error}") from error
    if magic not in (MAGIC_V1, MAGIC_V2) or topic_at >= total:
        raise MessageFormatError("no message begins here")
    return MessageClaim(total, queue_id, queue_offset, topic_at, 1 if magic == MAGIC_V1 else 2)


def stored_properties(data: bytes) -> bytes:
    """Returns the raw properties of one stored message without checking the rest. Raises MessageFormatError."""
    try:
        (magic,), (sys_flag,) = _U32.unpack_from(data, _MAGIC_AT), _U32.unpack_from(data, _SYS_FLAG_AT)
        body_at = body_begin(sys_flag)
        topic_at = body_at + _U32.unpack_from(data, body_at - _U32.size)[0]
        if magic == MAGIC_V1:
            properties_at = topic_at + 1 + data[topic_at] + _U16.size
        else:
            properties_at = topic_at + _U16.size + _U16.unpack_from(data, topic_at)[0] + _U16.size
        (length,) = _U16.unpack_from(data, properties_at - _U16.size)
    except (struct.error, IndexError) as error:
        raise MessageFormatError(f"bad message: {error}") from error
    if properties_at + length != len(data):
        raise MessageFormatError(f"the lengths inside the message do not add up to its {len(data)} bytes")
    return data[properties_at:]


# --- batch body: size · magic · crc · flag · body length (i32 each) · body · i16 length · properties, repeated ---


class BatchItem(NamedTuple):
    """One message of a batch. Fields that all messages of the batch share, such as the topic, are in the request
    header."""

    flag: int
    body: bytes
    properties: bytes


def build_batch(items: list[BatchItem]) -> bytes:
    """Returns the body of a batch, as clients send it: magic and CRC are 0. Raises MessageFormatError."""
    parts: list[bytes] = []
    for flag, body, properties in items:
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise MessageFormatError(f"properties have at most {PROPERTIES_BYTES_MAX} bytes, not {len(properties)}")
        size = _BATCH_HEAD.size + len(body) + 2 + len(properties)
        parts += (_BATCH_HEAD.pack(size, 0, 0, flag, len(body)), body, _U16.pack(len(properties)), properties)
    return b"".join(parts)


# --- ids ---


def encode_message_id(store_host: Host, position: int) -> str:
    """Returns the offsetMsgId of a send reply: upper-case hex of host and position, 32 (IPv4) or 56 characters."""
    return (encode_host(store_host) + _I64.pack(position)).hex().upper()


def decode_message_id(text: str) -> tuple[Host, int]:
    """Decodes an offsetMsgId into (store host, position). Raises MessageFormatError."""
    try:
        data = bytes.fromhex(text)
    except ValueError as error:
        raise MessageFormatError(f"message id {text!r} is not hex") from error
    if len(data) not in (16, 28) or len(text) != 2 * len(data):
        raise MessageFormatError(f"message id {text!r} has not 32 or 56 characters")
    (position,) = _I64.unpack_from(data, len(data) - 8)
    return decode_host(data[:-8]), position


_ENCODING = f"utf-16-{sys.byteorder[0]}e"
_MASK = 0xFFFFFFFF
SHORT, BLOCK = 64, 256
"""SHORT: the length, in UTF-16 units, up to which a simple loop is quicker. BLOCK: the number of units that are hashed
at once in a longer text."""
_POWERS = [pow(31, BLOCK - 1 - at, 1 << 32) for at in range(BLOCK)]


def java_hash(text: str) -> int:
    """Returns Java's String.hashCode of a text: 32-bit signed, over UTF-16 units."""
    units = memoryview(text.encode(_ENCODING, "surrogatepass")).cast("H")
    h = 0
    if len(units) <= SHORT:
        for unit in units:
            h = (31 * h + unit) & _MASK
    else:
        for at in range(0, len(units), BLOCK):
            block = units[at : at + BLOCK]
            h = (h * pow(31, len(block), 1 << 32) + sum(map(mul, block, _POWERS[-len(block) :]))) & _MASK
    return h - 0x100000000 if h & 0x80000000 else h


# The handle of a message with delayed delivery, which the answer to its send returns and a RECALL_MESSAGE request
# names.
#
# It is RocketMQ's version 1 with one more field: base64url of `v1 topic brokerName timestamp uniqKey position`,
# separated by spaces. Clients read the broker's name and send the rest back unchanged; RocketMQ's own parser ignores
# everything after the fifth field. Source: RecallMessageHandle.

_VERSION = "v1"
_NUMBERS_MAX = 1 << 63


class RecallHandle(NamedTuple):
    """The fields of a recall handle."""

    topic: str
    broker_name: str
    due_ms: int
    """The time of delivery, in log time (ms)."""
    unique_key: str
    position: int
    """The position in the log at which the message was first stored."""

    def encode(self) -> str:
        """Returns the handle as text, in the form that clients get."""
        text = f"{_VERSION} {self.topic} {self.broker_name} {self.due_ms} {self.unique_key} {self.position}"
        return base64.urlsafe_b64encode(text.encode("utf-8", "replace")).decode()


def decode_recall_handle(handle: str) -> RecallHandle:
    """Decodes a handle. Raises ValueError if it is not one of RaftMQ's."""
    try:
        text = base64.b64decode(handle.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise ValueError("recall handle is invalid") from error
    fields = text.split(" ")
    if fields[0] != _VERSION or len(fields) < 6 or not (_is_number(fields[3]) and _is_number(fields[-1])):
        raise ValueError("recall handle is invalid")
    # A unique key that a client chose may contain spaces.
    return RecallHandle(fields[1], fields[2], int(fields[3]), " ".join(fields[4:-1]), int(fields[-1]))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 19 and int(text) < _NUMBERS_MAX

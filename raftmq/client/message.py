"""Messages as users see them, and their three wire forms: properties, batch body, stored message.

Stored message, version 1 (big-endian; docs/wire-protocol.md)::

    total i32 | magic i32 | body crc u32 | queue id i32 | flag i32 | queue offset i64 | position i64 | sys flag i32 |
    born ms i64 | born host 8 or 20 | store ms i64 | store host 8 or 20 | reconsume times i32 | prepared offset i64 |
    body length i32, body | topic length u8 (version 2: u16), topic | properties length i16, properties
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from cluster.wire.codes import ResponseCode
from raftmq.client.errors import Failed, Refused

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
COMPRESSED = 0x1
_BORN_IPV6 = 0x10
_STORE_IPV6 = 0x20
_COMPRESSION_SHIFT = 8
_COMPRESSION_MASK = 0x7
_ZLIB = (0, 3)
MAX_PROPERTIES_BYTES = 32767
MAX_BODY_BYTES = 15 << 20
"""What fits a 16 MiB frame with its header, whatever the server is configured to: more ends the connection. The
server's own limit for a message and for a batch is 4 MiB unless configured; its refusal (13) names it."""
MAX_INFLATED_BYTES = 64 << 20
"""Cap on a compressed body once inflated: a small message must not fill the reader's memory."""

RESERVED = frozenset(("KEYS", "TAGS", "UNIQ_KEY"))
_HEAD = struct.Struct(">iIIiiqqiq")
_I64 = struct.Struct(">q")
_TAIL = struct.Struct(">iqi")
_U16 = struct.Struct(">H")
_BATCH_ITEM = struct.Struct(">iiiii")


class SendResult(NamedTuple):
    """Where a message is. `position` is its byte position in the commit log, -1 if the server did not say (messages
    after the first of a batch whose first reply was lost)."""

    message_id: str
    queue_id: int
    queue_offset: int
    position: int


class Message(msgspec.Struct, frozen=True, gc=False):
    """A stored message. Times are milliseconds since the epoch: born at the producer, stored in log time."""

    topic: str
    queue_id: int
    queue_offset: int
    position: int
    body: bytes
    key: str | None
    """All keys, separated by blanks; None without any."""
    tag: str | None
    properties: dict[str, str]
    message_id: str
    born_ms: int
    store_ms: int
    reconsume_times: int = 0

    @property
    def keys(self) -> tuple[str, ...]:
        """Each key by itself."""
        return tuple(self.key.split()) if self.key else ()


def encode_properties(
    message_id: str, key: str | Sequence[str] | None, tag: str | None, properties: Mapping[str, str] | None
) -> str:
    """`name \\x01 value \\x02` repeated. Raises Refused for what this form cannot hold."""
    text = f"UNIQ_KEY\x01{message_id}\x02WAIT\x01true\x02"
    if key is not None:
        text += _pair("KEYS", key if isinstance(key, str) else _joined(key))
    if tag is not None:
        text += _pair("TAGS", tag)
    if properties:
        for name, value in properties.items():
            if name in RESERVED:
                why = f"property {name} is set by the client; use key= or tag="
                raise Refused(why, code=ResponseCode.MESSAGE_ILLEGAL)
            text += _pair(name, value)
    if len(text) * 3 > MAX_PROPERTIES_BYTES and len(text.encode()) > MAX_PROPERTIES_BYTES:
        raise Refused(
            f"the properties take {len(text.encode())} bytes, at most {MAX_PROPERTIES_BYTES} are possible",
            code=ResponseCode.MESSAGE_ILLEGAL,
            hint="Put large values into the body.",
        )
    return text


def _joined(keys: Any) -> str:
    try:
        return " ".join(keys)
    except TypeError:
        if not isinstance(keys, Sequence):
            fix = f"not {type(keys).__name__}: write key={str(keys)!r}"
        else:
            fix = f"and {keys!r} holds something else"
        raise TypeError(f"key= is a str or a list of str, {fix}") from None


def _pair(name: str, value: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"property {name} must be a str, not {type(value).__name__}")
    if not name or not value or "\x01" in name + value or "\x02" in name + value:
        raise Refused(
            f"property {name!r} is empty or holds \\x01 or \\x02, which separate properties",
            code=ResponseCode.MESSAGE_ILLEGAL,
            hint="Leave it out, or encode the value.",
        )
    return f"{name}\x01{value}\x02"


def decode_properties(text: str) -> dict[str, str]:
    """The pairs; entries without a name or a value are skipped, as RocketMQ does."""
    found = {}
    for pair in text.split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            found[name] = value
    return found


def encode_batch(items: Iterable[tuple[bytes, str]]) -> bytes:
    """The body of SEND_BATCH_MESSAGE from (body, properties) pairs: size, magic 0, crc 0, flag 0, body, properties."""
    parts: list[bytes] = []
    for body, properties in items:
        encoded = properties.encode()
        size = _BATCH_ITEM.size + len(body) + _U16.size + len(encoded)
        parts += (_BATCH_ITEM.pack(size, 0, 0, 0, len(body)), body, _U16.pack(len(encoded)), encoded)
    return b"".join(parts)


def decode_messages(data: bytes) -> list[Message]:
    """Every message of a pull reply's body. Raises Failed on bytes that are not whole, sound stored messages."""
    messages: list[Message] = []
    at = 0
    try:
        while at < len(data):
            message, at = _decode_one(data, at)
            messages.append(message)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise Failed(f"a pulled message is cut short at byte {at} of {len(data)}: {error}") from error
    return messages


def _decode_one(data: bytes, start: int) -> tuple[Message, int]:
    total, magic, crc, queue_id, _, offset, position, sys_flag, born_ms = _HEAD.unpack_from(data, start)
    end = start + total
    if magic not in (MAGIC_V1, MAGIC_V2) or total < _HEAD.size or end > len(data):
        raise Failed(f"not a stored message at byte {start} of a pull reply: magic {magic:08x}, size {total}")
    at = start + _HEAD.size + (20 if sys_flag & _BORN_IPV6 else 8)
    (store_ms,) = _I64.unpack_from(data, at)
    at += 8 + (20 if sys_flag & _STORE_IPV6 else 8)
    reconsume, _, body_len = _TAIL.unpack_from(data, at)
    at += _TAIL.size
    body = data[at : at + body_len] if body_len >= 0 else b""
    at += body_len
    topic_len, width = (data[at], 1) if magic == MAGIC_V1 else (_U16.unpack_from(data, at)[0], 2)
    at += width
    topic = data[at : at + topic_len].decode()
    at += topic_len
    (properties_len,) = _U16.unpack_from(data, at)
    at += 2
    if body_len < 0 or at + properties_len != end:
        raise Failed(f"lengths inside the message at byte {start} of a pull reply do not add up to its size {total}")
    properties = decode_properties(data[at:end].decode())
    if zlib.crc32(body) & 0x7FFFFFFF != crc:
        raise Failed(f"the body of {topic} queue {queue_id} offset {offset} does not match its checksum")
    if sys_flag & COMPRESSED:
        kind = sys_flag >> _COMPRESSION_SHIFT & _COMPRESSION_MASK
        body = _inflate(body, kind, f"{topic} queue {queue_id} offset {offset}")
    return (
        Message(
            topic,
            queue_id,
            offset,
            position,
            body,
            properties.get("KEYS"),
            properties.get("TAGS"),
            properties,
            properties.get("UNIQ_KEY", ""),
            born_ms,
            store_ms,
            reconsume,
        ),
        end,
    )


def _inflate(body: bytes, kind: int, where: str) -> bytes:
    if kind not in _ZLIB:
        raise Failed(f"{where} is compressed in a way (type {kind}) that this client does not read")
    try:
        stream = zlib.decompressobj()
        plain = stream.decompress(body, MAX_INFLATED_BYTES)
    except zlib.error as error:
        raise Failed(f"{where} does not inflate: {error}") from error
    if stream.unconsumed_tail:
        raise Failed(f"{where} inflates to more than {MAX_INFLATED_BYTES} bytes")
    if not stream.eof:
        raise Failed(f"{where} is cut short inside its compressed body")
    return plain


def position_of(offset_message_id: str) -> int:
    """The commit log position inside an offsetMsgId (its last 16 hex digits); -1 if it is none."""
    try:
        return int(offset_message_id[-16:], 16) if len(offset_message_id) in (32, 56) else -1
    except ValueError:
        return -1

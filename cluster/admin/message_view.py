"""A stored message as JSON. Its body may be as long as the limit allows, and six times that as JSON: it is made in
slices."""

from __future__ import annotations

import base64
import codecs
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from cluster.wire.message_format import encode_message_id, parse_properties
from raftlog.work import charge_bytes, charge_text

if TYPE_CHECKING:
    from cluster.admin.call import Call
    from cluster.wire.message_format import Message

SLICE_BYTES: Final = 48 << 10
"""Of a body, in one step. A multiple of three, so that slices of base64 can be joined."""
_QUOTED: Final = 16
"""More than the name of the body's field, the quotes and the comma."""


class MessageView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stored message. Its body is `body` if it is UTF-8 text, else `body_base64`, as it was sent; only the beginning
    of it where `body_cut` is true."""

    topic: str
    queue_id: int
    queue_offset: int
    position: int
    id: str
    """RocketMQ's offsetMsgId."""
    store_ms: int
    born_ms: int
    reconsume_times: int = 0
    properties: dict[str, str]
    body: str | None = None
    body_base64: str | None = None
    body_bytes: int
    """The size of the whole body."""
    body_cut: bool = False


class _Body(NamedTuple):
    """A body as JSON, or the beginning of it."""

    field: bytes
    parts: list[bytes]
    cut: bool


async def message_parts(call: Call, message: Message, body_bytes: int, room: int = sys.maxsize) -> list[bytes]:
    """The JSON of a message with at most `body_bytes` of its body: less, if the whole would take more than `room` bytes
    of JSON. What it says besides its body is never cut."""
    charge_text(len(message.properties))
    properties = parse_properties(message.properties)
    left = room - len(msgspec.json.encode(_view(message, properties, cut=True))) - _QUOTED
    body = await _as_text(call, message.body, body_bytes, left)
    if body is None:
        body = await _as_base64(call, message.body, body_bytes, left)
    head = msgspec.json.encode(_view(message, properties, body.cut))
    return [head[:-1], b',"%s":"' % body.field, *body.parts, b'"}']


async def _as_text(call: Call, body: bytes, body_bytes: int, room: int) -> _Body | None:
    """None if the body is not UTF-8, wherever that shows."""
    decode = codecs.getincrementaldecoder("utf-8")().decode
    shown = min(len(body), body_bytes)
    parts: list[bytes] = []
    try:
        for start in range(0, len(body), SLICE_BYTES):
            await call.breathe()
            end = min(start + SLICE_BYTES, len(body))
            wanted = max(start, min(end, shown))
            charge_bytes(end - start)
            charge_text(wanted - start)
            part = msgspec.json.encode(decode(body[start:wanted]))[1:-1]
            if len(part) <= room:
                parts.append(part)
                room -= len(part)
            else:
                shown = start
            decode(body[wanted:end])  # the rest has to be text too; the cut may go through a character
        decode(b"", final=True)
    except UnicodeDecodeError:
        return None
    return _Body(b"body", parts, shown < len(body))


async def _as_base64(call: Call, body: bytes, body_bytes: int, room: int) -> _Body:
    shown = min(len(body), body_bytes, max(0, room) // 4 * 3)
    parts = []
    for start in range(0, shown, SLICE_BYTES):
        await call.breathe()
        charge_bytes(2 * SLICE_BYTES)
        parts.append(base64.b64encode(body[start : min(start + SLICE_BYTES, shown)]))
    return _Body(b"body_base64", parts, shown < len(body))


def _view(message: Message, properties: dict[str, str], cut: bool) -> MessageView:
    """Without its body."""
    return MessageView(
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        position=message.position,
        id=encode_message_id(message.store_host, message.position),
        store_ms=message.store_ms,
        born_ms=message.born_ms,
        reconsume_times=message.reconsume_times,
        properties=properties,
        body_bytes=len(message.body),
        body_cut=cut,
    )

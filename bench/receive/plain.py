"""The receive stage as a node without the native kernel has it: a frame at a time, two decodes, checks, a Send.

What is not plain raises NotImplementedError in every way: it would go on in Python.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec
from shapes import Context, Header, SendHeader, Slot, java_hash

_LENGTH = struct.Struct(">i")

_decode_header = msgspec.json.Decoder(Header, strict=False).decode
_decode_send = msgspec.json.Decoder(SendHeader, strict=False).decode


class Send:
    """A message on its way into the queue."""

    __slots__ = (
        "body",
        "born_ms",
        "flag",
        "key",
        "opaque",
        "producer",
        "properties",
        "queue_id",
        "reconsumes",
        "sequence",
        "size",
        "slot",
        "sys_flag",
        "tag",
    )

    def __init__(
        self,
        opaque: int,
        slot: Slot,
        queue_id: int,
        flag: int,
        sys_flag: int,
        born_ms: int,
        reconsumes: int,
        body: bytes,
        properties: bytes,
        tag: int,
        key: str,
        producer: bytes,
        sequence: int,
        size: int,
    ) -> None:
        self.opaque = opaque
        self.slot = slot
        self.queue_id = queue_id
        self.flag = flag
        self.sys_flag = sys_flag
        self.born_ms = born_ms
        self.reconsumes = reconsumes
        self.body = body
        self.properties = properties
        self.tag = tag
        self.key = key
        self.producer = producer
        self.sequence = sequence
        self.size = size


def frames(data: bytes, limit: int) -> list[tuple[int, int]]:
    """(start, stop) of the complete frames."""
    found: list[tuple[int, int]] = []
    at = 0
    end = len(data)
    while end - at >= 4:
        (length,) = _LENGTH.unpack_from(data, at)
        if not 0 <= length <= limit:
            raise ValueError(length)
        stop = at + 4 + length
        if stop > end:
            break
        found.append((at + 4, stop))
        at = stop
    return found


def check(context: Context, body_size: int, properties: bytes) -> tuple[bytes, bytes, int]:
    """Properties as stored, UNIQ_KEY and tag hash."""
    if body_size > context.body_max:
        raise ValueError("body")
    if properties and properties[-1] != 2:
        properties += b"\x02"
    if b"POP_CK\x01" in properties:
        raise NotImplementedError
    at = properties.find(b"UNIQ_KEY\x01")
    if at < 1 or properties[at - 1] != 2:
        raise NotImplementedError
    key = properties[at + 9 : properties.find(b"\x02", at)]
    stored = properties + context.suffix
    if len(stored) > context.properties_max:
        raise ValueError("properties")
    at = properties.find(b"TAGS\x01")
    if at < 0:
        return stored, key, 0
    tag = properties[at + 5 : properties.find(b"\x02", at)]
    known = context.tags.get(tag)
    if known is None:
        known = context.tags[tag] = java_hash(tag.decode())
    return stored, key, known


def one(context: Context, header: Any, body: bytes, size: int) -> Send:
    """The send of one frame."""
    wish = _decode_send(header.extFields)
    topic = wish.b
    queue_id: int = wish.e
    asked: str = wish.i
    if topic[:1] == "%":
        raise NotImplementedError
    slot = context.topics.get(topic)
    if slot is None or not slot.writable:
        raise ValueError("topic")
    if queue_id < 0:
        queue_id = slot.next_queue % slot.queues
        slot.next_queue = queue_id + 1
    elif queue_id >= slot.queues:
        raise ValueError("queue")
    if ("DELAY" in asked or "TIMER_D" in asked or "TRAN_MSG" in asked) and not wish.m:
        raise NotImplementedError
    properties, key, tag = check(context, len(body), asked.encode())
    context.sequence += 1
    context.inflight += size
    return Send(
        header.opaque,
        slot,
        queue_id,
        wish.h,
        wish.f & ~0x3C,
        wish.g,
        wish.j or 0,
        body,
        properties,
        tag,
        key.decode("utf-8", "replace"),
        context.prefix,
        context.sequence,
        size,
    )


def take(context: Context, data: bytes) -> list[Send]:
    """The sends of a read."""
    out: list[Send] = []
    for start, stop in frames(data, context.frame_max):
        if stop - start < 4:
            raise ValueError("header word")
        end = start + 4 + int.from_bytes(data[start + 1 : start + 4], "big")
        if end > stop:
            raise ValueError("header")
        header = _decode_header(data[start + 4 : end])
        if header.flag & 1 or header.code != 310:
            raise NotImplementedError
        out.append(one(context, header, data[end:stop], stop - start - 4))
    return out

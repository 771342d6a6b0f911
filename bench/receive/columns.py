"""The receive stage around columns: one decode for all headers of a read, and checks of whole columns."""

from __future__ import annotations

import struct

import msgspec
from shapes import Context, SendHeader, Slot, java_hash

_HEAD = struct.Struct(">ii")


class Header(msgspec.Struct, gc=False):
    """Of a send."""

    code: int
    extFields: SendHeader
    opaque: int = 0
    flag: int = 0
    version: int = 0
    language: str | int = "JAVA"
    remark: str | None = None


_decode = msgspec.json.Decoder(list[Header], strict=False).decode


class Columns:
    """Queued sends of one read, a list per field. Its 64 rows are objects nowhere."""

    __slots__ = (
        "bodies",
        "headers",
        "keys",
        "opaques",
        "properties",
        "queue_ids",
        "sizes",
        "slots",
        "tags",
    )


def take(context: Context, data: bytes) -> Columns:
    """The sends of a read."""
    texts, bodies, sizes = split(data, context.frame_max)
    headers = _decode(b"[%b]" % b",".join(texts))
    if [None for each in headers if each.code != 310 or each.flag & 1]:
        raise NotImplementedError
    wishes = [each.extFields for each in headers]
    slots: dict[str, Slot] = {}
    for topic in {wish.b for wish in wishes}:
        slot = context.topics.get(topic)
        if topic[:1] == "%" or slot is None or not slot.writable:
            raise NotImplementedError
        slots[topic] = slot
    asked = [wish.i for wish in wishes]
    together = "\0".join(asked)
    if "DELAY" in together or "TIMER_D" in together or "TRAN_MSG" in together or "POP_CK" in together:
        raise NotImplementedError
    if max(map(len, bodies)) > context.body_max:
        raise ValueError("body")
    out = Columns()
    out.opaques = [each.opaque for each in headers]
    out.slots = [slots[wish.b] for wish in wishes]
    queue_ids = out.queue_ids = [wish.e for wish in wishes]
    for at, (queue_id, slot) in enumerate(zip(queue_ids, out.slots, strict=True)):
        if not 0 <= queue_id < slot.queues:
            if queue_id >= 0:
                raise ValueError("queue")
            queue_ids[at] = slot.next_queue % slot.queues
            slot.next_queue = queue_ids[at] + 1
    out.properties, out.keys, out.tags = properties_of(context, asked)
    out.headers, out.bodies, out.sizes = headers, bodies, sizes
    context.sequence += len(headers)
    context.inflight += sum(sizes)
    return out


def split(data: bytes, frame_max: int) -> tuple[list[bytes], list[bytes], list[int]]:
    """Headers, bodies and sizes of the frames of a read."""
    at, end = 0, len(data)
    texts, bodies, sizes = [], [], []
    unpack = _HEAD.unpack_from
    while end - at >= 8:
        length, word = unpack(data, at)
        stop = at + 4 + length
        if not 4 <= length <= frame_max or word >> 24:
            raise ValueError(length)
        if stop > end:
            break
        begin = at + 8
        middle = begin + word
        if middle > stop:
            raise ValueError("header")
        texts.append(data[begin:middle])
        bodies.append(data[middle:stop])
        sizes.append(length - 4)
        at = stop
    return texts, bodies, sizes


def properties_of(context: Context, asked: list[str]) -> tuple[list[bytes], list[bytes], list[int]]:
    """Properties as stored, UNIQ_KEYs and tag hashes."""
    suffix, tags = context.suffix, context.tags
    stored, keys, hashes = [], [], []
    for text in asked:
        properties = text.encode()
        if properties[-1] != 2:
            properties += b"\x02"
        at = properties.find(b"UNIQ_KEY\x01")
        if at < 1 or properties[at - 1] != 2:
            raise NotImplementedError
        keys.append(properties[at + 9 : properties.find(b"\x02", at)])
        stored.append(properties + suffix)
        at = properties.find(b"TAGS\x01")
        if at < 0:
            hashes.append(0)
            continue
        tag = properties[at + 5 : properties.find(b"\x02", at)]
        known = tags.get(tag)
        if known is None:
            known = tags[tag] = java_hash(tag.decode())
        hashes.append(known)
    if max(map(len, stored)) > context.properties_max:
        raise ValueError("properties")
    return stored, keys, hashes


def rows(out: Columns) -> list[tuple[object, ...]]:
    """A row for each send, for the comparison of all ways."""
    return [
        (
            out.slots[at].name,
            out.opaques[at],
            out.queue_ids[at],
            header.extFields.h,
            header.extFields.f & ~0x3C,
            header.extFields.g,
            header.extFields.j or 0,
            out.bodies[at],
            out.properties[at],
            out.tags[at],
            out.keys[at].decode(),
            out.sizes[at],
        )
        for at, header in enumerate(out.headers)
    ]

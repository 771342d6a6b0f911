"""Witnesses of the planted bugs in the native kernel; see witnesses.py. They also hold with the kernel in Python."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from typing import Any

from google_crc32c import value as crc32c

from cluster.broker.sends.closed_connections import ClosedConnections
from cluster.broker.sends.send_outcomes import SendOutcomes
from cluster.remoting.handlers.send_reply import SendReplyWriter
from cluster.replication import message_batch
from cluster.replication.message_batch import Built, QueueCursor, Send, TopicSlot
from cluster.replication.send_identity import Identity
from cluster.replication.send_queue import cut
from jepsen_like.fakes.memory_kv import MemoryKV
from raftmq_wire.message_format import BatchItem, build_batch
from statemachine.dedup import Dedup
from statemachine.message_index import RECORD, key_hash
from statemachine.payload import ITEM, SESSION, SESSION_ROW, RowKind, decode
from statemachine.rows.kv import DEDUP
from statemachine.rows.write_batch import Stage
from tests.support.intake_kit import INCARNATION, STORE_HOST, Node, request

ENTRY_AT, STORE_MS = 1000, 5
BODY_AT = 88
"""The offset of the body in a stored message."""


def batch(*bodies: bytes) -> bytes:
    items = [BatchItem(0, body, b"UNIQ_KEY\x01key of %b\x02" % body) for body in bodies]
    return request("", build_batch(items), code=320, ext={"m": "true"})


def built(sends: Sequence[Send]) -> Built:
    return message_batch.build(sends, entry_position=ENTRY_AT, store_ms=STORE_MS, store_host=STORE_HOST)


def stored(payload: bytes, body: bytes) -> bytes:
    """The message that has this body."""
    at = payload.index(body) - BODY_AT
    return payload[at : at + int.from_bytes(payload[at : at + 4])]


def answers(node: Node, sends: list[Send], entry: Built) -> bytes:
    written: list[bytes] = []
    node.path.write = node.path.write_all = written.append
    nothing: Any = None
    writer = SendReplyWriter(STORE_HOST, "broker")
    SendOutcomes(nothing, nothing, node.retries, writer, ClosedConnections(lambda look: None)).stored(
        sends, entry, set()
    )
    return b"".join(written)


def witness_Y01() -> None:
    payload = built(Node().read(batch(b"first", b"second"))).payload
    offsets = [struct.unpack_from(">Q", stored(payload, body), 20)[0] for body in (b"first", b"second")]
    assert offsets == [0, 1]


def witness_Y02() -> None:
    node = Node()
    sends = node.read(request() * 2)
    told = answers(node, sends, built(sends))
    assert b'"queueOffset":"0"' in told
    assert b'"queueOffset":"1"' in told


def witness_Y03() -> None:
    sends = Node().read(request() * 2)
    rows = decode(built(sends).payload).sessions
    for offset, send in enumerate(sends):
        row = SESSION_ROW.pack(send.sequence, send.slot.topic_id, send.queue_id, offset, 0)
        assert row[:-8] in rows, "without its position"


def witness_Y04() -> None:
    node = Node()
    node.read(request())
    node.read(request())
    assert node.gate.sends.bytes == node.path.in_flight.bytes


def witness_Y05() -> None:
    (send,) = Node().read(request(flag=2))
    assert send.oneway


def witness_Y06() -> None:
    node = Node()
    (send,) = node.read(request("TIMER_DELAY_SEC\x013\x02"))
    assert send.schedule is not None


def witness_Y07() -> None:
    node = Node()
    (send,) = node.read(request("TRAN_MSG\x01true\x02PGROUP\x01producers\x02UNIQ_KEY\x01K\x02"))
    assert send.kind != RowKind.NORMAL


def witness_Y08() -> None:
    entry = built(Node().read(request(body=b"the body")))
    message = stored(entry.payload, b"the body")
    (position,) = entry.positions
    (send_tag,) = {send.tag_hash for send in Node().read(request())}
    item = ITEM.pack(position, len(message), crc32c(message), send_tag, STORE_MS)
    assert item in decode(entry.payload).runs


def witness_Y09() -> None:
    (send,) = sends = Node().read(batch(b"first", b"second"))
    entry = built(sends)
    (places,) = entry.positions
    assert isinstance(places, tuple)
    for place, body in zip(places, (b"first", b"second"), strict=True):
        assert RECORD.pack(key_hash(send.slot.topic_id, b"key of " + body), place) in decode(entry.payload).keys


def witness_Y10() -> None:
    waiting = deque(Node().read(request() * 3))
    sends, _ = cut(waiting, 1, 10)
    assert len(sends) + len(waiting) == 3


def witness_Y11() -> None:
    node = Node()
    first = Identity(INCARNATION + bytes(8), 1, 1)
    node.retries.remember(0, "orders", "AC10", b"hello", first, 0)
    (send,) = node.read(request())
    assert send.sequence == first.sequence


def witness_Y12() -> None:
    node = Node()
    node.read(request())
    node.plain.clear()  # as at the end of a term, and when a topic changes
    slot = TopicSlot("orders", 1, 4, 8, 6, "retry", lambda topic, queue: QueueCursor(topic, queue, 0))
    node.slots["orders"] = slot
    assert node.read(request())[1].slot is slot


def witness_Y13() -> None:
    node = Node()
    sends = node.read(request() * 3)
    answers(node, sends, built(sends))
    assert node.path.in_flight.bytes == 0


def witness_Y14() -> None:
    kv = MemoryKV()
    dedup = Dedup(kv)
    for entry in (1, 2):
        stage = Stage(kv)
        row = SESSION_ROW.pack(entry, 1, 0, entry, 64)
        dedup.add_sessions(stage, SESSION.pack(bytes(16), entry, entry, 1) + row, entry, 1000 * entry)
        stored = {key: kv.get(DEDUP, key) for key in stage.before[DEDUP]}
        assert stage.before[DEDUP] == stored
        kv.write(stage.batch())
        dedup.publish()

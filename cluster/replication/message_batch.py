"""Builds the payload of one MESSAGES entry from the waiting sends. This is the hot loop of the leader.

The leader decides everything here: store time, queue offsets, positions. Messages are stored in RocketMQ's
MessageDecoder layout (docs/wire-protocol.md), byte for byte what pulls return. `raftmq_wire.message_format` is the
readable twin; a test compares both.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from cluster.flow.hold import NO_HOLD, Hold
from cluster.replication.message_head import KEYS_MARK, DeliverySchedule, MessageHead, NamedAs, key_words, topic_field
from raftmq_wire.checksums import crc32c
from raftmq_wire.crc import crc32
from raftmq_wire.kernel import twin
from raftmq_wire.message_format import MAGIC_V1, MAGIC_V2, store_ms_of, stored_at
from statemachine.commands import Command, extend
from statemachine.delivery.half_messages import OwnHalves
from statemachine.message_index import RECORD, key_hash
from statemachine.payload import ITEM, MESSAGES_AT, SESSION, SESSION_ROW, RowKind, Run, UniqueRow, encode

if TYPE_CHECKING:
    from cluster.replication.outcome import Outcome, ReplyTo

_HEAD = struct.Struct(">IIIIIQQIQ")
_HEAD_V4 = struct.Struct(">IIIIIQQIQ8sQ8sIQI")
_TAIL = struct.Struct(">IQI")
_U64 = struct.Struct(">Q")
_U16 = struct.Struct(">H")

SCHEDULED_RUN_MAX = 256
"""The most messages of a run of kind SCHEDULED, which becomes one row and is delivered in one entry."""
_KIND_OF_CLIENTS_MAX = int(RowKind.RETRY)
SYS_FLAG_BORN_V6 = 0x10
SYS_FLAG_STORE_V6 = 0x20


@twin
class QueueCursor:
    """The leader's view of the end of one queue: the applied state, plus the leader's own proposals that are not
    applied yet."""

    __slots__ = ("base", "bytes", "items", "next_offset", "queue_id", "topic_id")

    def __init__(self, topic_id: int, queue_id: int, next_offset: int) -> None:
        self.topic_id = topic_id
        self.queue_id = queue_id
        self.next_offset = next_offset
        self.base = next_offset
        self.bytes = 0
        """The bytes of the queue's messages in the entry that is being built."""
        self.items: list[bytes] = []
        """The queue's items in the entry that is being built. Invariant: base + len(items) == next_offset while not
        empty."""


@twin
class TopicSlot:
    """The data of a topic that the send path needs. It is looked up once per term of leadership and per change of the
    topic."""

    __slots__ = (
        "ack",
        "cursor",
        "cursors",
        "dedup",
        "field",
        "name",
        "next_queue",
        "perm",
        "queues",
        "topic_id",
        "v2",
        "write_queues",
    )

    def __init__(
        self,
        name: str,
        topic_id: int,
        write_queues: int,
        queues: int,
        perm: int,
        dedup: str,
        cursor: Callable[[int, int], QueueCursor],
        ack: int = 0,
    ) -> None:
        """`queues`: the larger number of read and write queues; `cursor(topic_id, queue_id)` opens a queue's cursor;
        `ack`: the level (`cluster.replication.acks.ack_levels`) of messages that specify none."""
        stored = topic_field(name)
        self.name = name
        self.topic_id = topic_id
        self.write_queues = max(1, write_queues)
        self.queues = queues
        self.perm = perm
        self.dedup = dedup
        self.ack = ack
        self.v2 = stored.v2
        self.field = stored.field
        self.cursor = cursor
        # A topic may have no queues in this group of brokers. Copies of stored messages still need a first queue.
        self.cursors: list[QueueCursor | None] = [None] * max(1, queues)
        self.next_queue = 0

    def open_cursor(self, queue_id: int) -> QueueCursor:
        """Returns the cursor of a queue, which is opened on first use."""
        cursor = self.cursors[queue_id]
        if cursor is None:
            cursor = self.cursors[queue_id] = self.cursor(self.topic_id, queue_id)
        return cursor


@twin
class BatchMessage(msgspec.Struct, gc=False):
    """One message of a batch request. `key_hash` is 0 unless the topic's dedup is strict."""

    flag: int
    body: bytes
    properties: bytes
    tag_hash: int
    key_hash: int
    unique_key: bytes = b""
    head: MessageHead | None = None
    """The head of a copy that the broker makes, which replaces the send's fields of the same names; None for other
    messages."""


Effect = tuple[Callable[[list[Any]], Command], object]
"""(class of a command, one row): what a send changes besides storing its messages. The class takes a list of rows. An
entry has one command of each class, with the rows of all its sends."""


@twin
class Send(msgspec.Struct, gc=False):
    """One send request, checked and ready to be proposed. The type is a Struct, because one is built per message on the
    hot path."""

    connection: ReplyTo
    size: int
    """The bytes that `hold` takes."""
    origin: object
    """The request in the form of the protocol handler (remoting or another) that received it. Nothing here looks at it:
    the handler answers it, or passes it on if this node loses leadership first."""
    oneway: bool
    slot: TopicSlot
    queue_id: int
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    """The client's address: ip (4 or 16 bytes) and int32 port, big-endian."""
    reconsume_times: int
    body: bytes
    properties: bytes
    tag_hash: int
    unique_key: str
    kind: int
    producer_id: bytes
    """The id of the session (`cluster.replication.send_identity`); b"" if the send takes no part in dedup."""
    sequence: int
    low_sequence: int
    batch: tuple[BatchMessage, ...]
    """The messages of a batch request; empty for a single message. If not empty, `flag`, `body` and `properties` above
    are unused."""
    received_ms: int
    ack: int = 0
    """The acknowledgement level, which says when the send is answered (`cluster.replication.acks.ack_levels.Ack`)."""
    prepared_position: int = 0
    """The position of the half message whose transaction is committed by this copy; otherwise 0."""
    schedule: DeliverySchedule | None = None
    """The due time of a message that is in no queue yet, and the topic and queue id under which it is stored until
    then; None for other messages."""
    failure: tuple[int, int] | None = None
    """(key hash, mark in place of the body's CRC) of the unique row by which a second report of one failed consumption
    is recognised. Only for kinds from DELIVERED on."""
    effect: Effect | None = None
    """The command that takes effect in the same entry as this copy. Only for kinds from DELIVERED on."""
    due_ms: int = 0
    """Log time at which a message with its own due time is due; set when its entry is built."""
    carried: int | None = None
    """The name of the row that is stored again, for kinds CARRIED_TIMERS and CARRIED_HALF. The bodies of `batch` are
    then its messages as they are stored; only their positions change."""
    done: Callable[[Outcome], None] | None = None
    """A callback with the outcome of a copy that the broker makes for itself: no client waits, and the copy must not be
    passed to another leader. None for a client's send."""
    user: int = 0
    """Id of the user who signed the request; 0 if none is proven."""
    issued: bool = False
    """True if this node gave the send its identity; False if its client or another node did."""
    content: int = 0
    """A hash by which a repetition is compared: of owner, key and body in a topic with dedup=strict (for BatchMessage:
    `key_hash`), of the messages of a slice of a staged write; 0 for other sends."""
    hold: Hold = NO_HOLD
    """The account of its bytes in flight. It is released when the send is answered and its entry is decided. Set when
    the send is accepted."""
    paced_ms: int = 0
    """The monotonic time in milliseconds at which it continued after waiting for a quota; 0 if it did not wait."""


class Built(NamedTuple):
    """A payload, and the place of each send's messages in it. The lists are parallel to the list of sends."""

    payload: bytes
    offsets: list[int]
    """The queue offset of each send's first message."""
    positions: list[tuple[int, ...] | int]
    """The position in the log of each send's message; for a batch request a tuple of all its messages' positions."""
    message_count: int
    touched: list[tuple[QueueCursor, int, int, int]]
    """Cursors that were advanced: (cursor, its offset before, messages added, stored bytes added)."""

    def rewind(self) -> None:
        """Sets the cursors back to where they were, because the payload was not proposed after all."""
        for cursor, offset, _, _ in self.touched:
            cursor.next_offset = offset


def message_size(message: Send | BatchMessage, slot: TopicSlot) -> int:
    """Returns an upper bound of the stored bytes of one message, which is enough for cutting batches."""
    return 115 + len(message.body) + len(message.properties) + len(slot.field)


def build(
    sends: Sequence[Send],
    *,
    entry_position: int,
    store_ms: int,
    store_host: bytes,
    effects: bytes = b"",
    index: bool = True,
) -> Built:
    """Encodes the sends into one payload. Advances the cursors: call it only for an entry that will be proposed.

    `index`: True if the message index is to contain the messages' keys. If building raises, the cursors are set back.
    """
    builder = _Builder(entry_position, store_ms, store_host, index)
    try:
        return builder.run(sends, effects)
    except BaseException:
        builder.rewind()
        raise


class _Builder:
    def __init__(self, entry_position: int, store_ms: int, store_host: bytes, index: bool) -> None:
        self.position = entry_position + MESSAGES_AT
        self.store_ms = store_ms
        self.store_host = store_host
        self.parts: list[bytes] = []
        self.touched: list[tuple[QueueCursor, int]] = []
        self.sessions: dict[bytes, list[int | list[bytes]]] = {}
        self.unique: list[UniqueRow] = []
        self.scheduled: dict[tuple[int, int, int, int], QueueCursor] = {}
        """(kind, due time, topic id, queue id) -> a cursor that only collects the items of a run of waiting messages.
        """
        self.runs: list[Run] = []
        self.effects: dict[Callable[[list[Any]], Command], list[object]] = {}
        self.index = index
        self.keys = bytearray()
        """Records of the message index for the entry (statemachine/message_index.py)."""

    def run(self, sends: Sequence[Send], effects: bytes) -> Built:
        offsets: list[int] = []
        positions: list[tuple[int, ...] | int] = []
        sends = sends if type(sends) is list else list(sends)
        at, count = 0, len(sends)
        while (at := add_plain(self, sends, at, offsets, positions)) < count:
            send = sends[at]
            at += 1
            if send.kind > _KIND_OF_CLIENTS_MAX:
                self._note(send)
                if send.schedule is not None:
                    offset, first = self._add_scheduled(send, send.schedule)
                    offsets.append(offset)
                    positions.append(first)
                    continue
                if send.carried is not None:
                    offsets.append(0)
                    positions.append(self._add_carried(send, send.carried))
                    continue
            self.add_send(send, offsets, positions)
        if self.effects:
            effects = self._with_effects(effects)
        payload = encode(
            self.parts, len(self.parts), self._runs(), self._sessions(), self.unique, effects, bytes(self.keys)
        )
        touched = [(one, one.base, one.next_offset - one.base, one.bytes) for one, _ in self.touched]
        return Built(payload, offsets, positions, len(self.parts), touched)

    def rewind(self) -> None:
        """Undoes the changes that a failed `run` made to the cursors."""
        for cursor, _ in self.touched:
            cursor.next_offset = cursor.base
            cursor.items = []

    def add_send(self, send: Send, offsets: list[int], positions: list[tuple[int, ...] | int]) -> None:
        """Adds a send to its queue, with its keys and its row of the session. Appends the queue offset and position of
        its message to `offsets` and `positions`. Raises IndexError if its topic has no such queue."""
        slot = send.slot
        if not 0 <= send.queue_id < len(slot.cursors):
            raise IndexError(f"topic {slot.name} has no queue {send.queue_id}")
        cursor = slot.cursors[send.queue_id] or slot.open_cursor(send.queue_id)
        if not cursor.items:
            cursor.base = cursor.next_offset
            cursor.bytes = 0
            self.touched.append((cursor, send.kind))
        offset = cursor.next_offset
        first = self.position
        if send.batch:
            positions.append(add_messages(self, send, 0, len(send.batch), cursor))
        else:
            self.add(slot, send.queue_id, send, cursor, send.flag, send.body, send.properties, send.tag_hash)
            positions.append(first)
            if self.index:
                if send.unique_key:  # `key_hash` inlined: this runs for every message
                    self.keys += RECORD.pack(crc32(send.unique_key.encode(), slot.topic_id), first & 0xFFFFFFFF)
                if KEYS_MARK in send.properties:
                    self.add_words(slot.topic_id, send.properties, first)
            if slot.dedup == "strict" and send.unique_key and send.effect is None:
                self.add_unique(send, send.content, send.body, offset, first)
        offsets.append(offset)
        if send.producer_id:
            self._add_session(send, slot.topic_id, offset, first)

    def _note(self, send: Send) -> None:
        """Collects the effect and the failure mark of a send; only copies made by the broker have them."""
        if send.effect is not None:
            kind, row = send.effect
            self.effects.setdefault(kind, []).append(row)
        if send.failure is not None:
            key_hash, mark = send.failure
            self.unique.append(UniqueRow(key_hash, send.slot.topic_id, send.queue_id, 0, self.position, mark))

    def _with_effects(self, effects: bytes) -> bytes:
        """Returns `effects`, followed by one command for each class among the effects of the sends."""
        return extend(effects, [kind(rows) for kind, rows in self.effects.items()])

    def _add_scheduled(self, send: Send, schedule: DeliverySchedule) -> tuple[int, tuple[int, ...] | int]:
        """Stores a message that waits until it is due, or until its transaction ends; its keys are indexed when it
        comes into its queue. Returns the queue offset for its answer, and its position.

        The message is in no queue yet, and a repeated request must get the same answer. So the offset is 0. For a half
        message it is the position, by which the producer names the message when the transaction ends.
        """
        if send.batch:
            return self._add_staged(send, schedule)
        slot, first, properties = send.slot, self.position, send.properties
        due = schedule.due_ms or self.store_ms + schedule.delay_ms
        offset = first if send.kind == RowKind.HALF else 0
        name = (send.kind, due, slot.topic_id, send.queue_id)
        cursor = self.scheduled.get(name)
        if cursor is None:
            cursor = self.scheduled[name] = QueueCursor(slot.topic_id, send.queue_id, 0)
        if schedule.names_due:
            send.due_ms = due
            properties += b"TIMER_OUT_MS\x01%d\x02" % due
        cursor.next_offset = offset
        self.add(schedule.topic, schedule.queue_id, send, cursor, send.flag, send.body, properties, send.tag_hash)
        if len(cursor.items) == SCHEDULED_RUN_MAX:
            self._end_scheduled(name)
        if schedule.owner:
            self.effects.setdefault(OwnHalves, []).append((first, schedule.owner))
        if slot.dedup == "strict" and send.unique_key and send.effect is None:
            self.add_unique(send, send.content, send.body, offset, first)
        if send.producer_id:
            self._add_session(send, slot.topic_id, offset, first)
        return offset, first

    def _add_staged(self, send: Send, schedule: DeliverySchedule) -> tuple[int, tuple[int, ...]]:
        """Stores a batch of a staged write, which waits for a commit (docs/adr/0068). Returns the same as
        `_add_scheduled`."""
        slot, due = send.slot, schedule.due_ms
        name = (send.kind, due, slot.topic_id, send.queue_id)
        positions: tuple[int, ...] = ()
        count = len(send.batch)
        while (at := len(positions)) < count:
            cursor = self.scheduled.get(name)
            if cursor is None:
                cursor = self.scheduled[name] = QueueCursor(slot.topic_id, send.queue_id, 0)
            room = SCHEDULED_RUN_MAX - len(cursor.items)
            positions += add_messages(self, send, at, min(at + room, count), cursor)
            if len(cursor.items) == SCHEDULED_RUN_MAX:
                self._end_scheduled(name)
        self._add_session(send, slot.topic_id, send.content, positions[0])
        return 0, positions

    def _add_carried(self, send: Send, name: int) -> tuple[int, ...]:
        """Stores waiting messages again at the end of the log, so that the old part of the log can be deleted. Returns
        their new positions."""
        items: list[bytes] = []
        positions: list[int] = []
        for message in send.batch:
            position, stored = self.position, stored_at(message.body, self.position)
            size, store_ms = len(stored), store_ms_of(stored)
            self.parts.append(stored)
            items.append(ITEM.pack(position, size, crc32c(stored), message.tag_hash, store_ms))
            positions.append(position)
            self.position = position + size
        self.runs.append(Run(send.slot.topic_id, send.queue_id, name, len(items), send.kind, b"".join(items)))
        return tuple(positions)

    def _end_scheduled(self, name: tuple[int, int, int, int]) -> None:
        kind, due, topic_id, queue_id = name
        items = self.scheduled.pop(name).items
        self.runs.append(Run(topic_id, queue_id, due, len(items), kind, b"".join(items)))

    def add(
        self,
        named: NamedAs,
        queue_id: int,
        send: Send | MessageHead,
        cursor: QueueCursor,
        flag: int,
        body: bytes,
        properties: bytes,
        tag_hash: int,
    ) -> None:
        """Stores a message under this topic and queue id, and adds its item to the cursor."""
        field = named.field
        born_host, store_host = send.born_host, self.store_host
        total = 74 + len(born_host) + len(store_host) + len(body) + len(field) + len(properties)
        offset = cursor.next_offset
        position = self.position
        magic = MAGIC_V2 if named.v2 else MAGIC_V1
        if len(born_host) == 8 and len(store_host) == 8:
            head = _HEAD_V4.pack(
                total,
                magic,
                crc32(body) & 0x7FFFFFFF,
                queue_id,
                flag & 0xFFFFFFFF,
                offset,
                position,
                send.sys_flag,
                send.born_ms,
                born_host,
                self.store_ms,
                store_host,
                send.reconsume_times,
                send.prepared_position,
                len(body),
            )
        else:
            head = self._head_v6(send, total, magic, body, queue_id, flag, offset)
        message = b"".join((head, body, field, _U16.pack(len(properties)), properties))
        self.parts.append(message)
        cursor.items.append(ITEM.pack(position, total, crc32c(message), tag_hash, self.store_ms))
        cursor.next_offset = offset + 1
        cursor.bytes += total
        self.position = position + total

    def _head_v6(
        self, send: Send | MessageHead, total: int, magic: int, body: bytes, queue_id: int, flag: int, offset: int
    ) -> bytes:
        sys_flag = send.sys_flag
        if len(send.born_host) == 20:
            sys_flag |= SYS_FLAG_BORN_V6
        if len(self.store_host) == 20:
            sys_flag |= SYS_FLAG_STORE_V6
        fixed = _HEAD.pack(
            total,
            magic,
            crc32(body) & 0x7FFFFFFF,
            queue_id,
            flag & 0xFFFFFFFF,
            offset,
            self.position,
            sys_flag,
            send.born_ms,
        )
        tail = _TAIL.pack(send.reconsume_times, send.prepared_position, len(body))
        return b"".join((fixed, send.born_host, _U64.pack(self.store_ms), self.store_host, tail))

    def add_words(self, topic_id: int, properties: bytes, position: int) -> None:
        """Adds an index record for each word of the property KEYS."""
        for word in key_words(properties):
            self.keys += RECORD.pack(key_hash(topic_id, word), position & 0xFFFFFFFF)

    def add_unique(self, send: Send, key_hash: int, body: bytes, offset: int, position: int) -> None:
        """Adds the unique row by which a repeat of this message is recognised, in a topic with dedup=strict."""
        row = UniqueRow(key_hash, send.slot.topic_id, send.queue_id, offset, position, crc32(body))
        self.unique.append(row)

    def _add_session(self, send: Send, topic_id: int, offset: int, position: int) -> None:
        row = SESSION_ROW.pack(send.sequence, topic_id, send.queue_id, offset, position)
        session = self.sessions.get(send.producer_id)
        if session is None:
            self.sessions[send.producer_id] = [send.low_sequence, send.sequence, [row]]
        else:
            session[0] = max(session[0], send.low_sequence)
            session[1] = max(session[1], send.sequence)
            session[2].append(row)  # type: ignore[union-attr]

    def _runs(self) -> list[Run]:
        for name in list(self.scheduled):
            self._end_scheduled(name)
        runs = self.runs
        for cursor, kind in self.touched:
            runs.append(
                Run(cursor.topic_id, cursor.queue_id, cursor.base, len(cursor.items), kind, b"".join(cursor.items))
            )
            cursor.items = []
        return runs

    def _sessions(self) -> bytes:
        return pack_sessions(self.sessions)


@twin
def pack_sessions(sessions: dict[bytes, list[Any]]) -> bytes:
    """Packs the sessions of an entry. `sessions`: id of a session -> [lowest sequence that is not settled, highest
    sequence, packed rows]. Sorts each list of rows in place."""
    parts: list[bytes] = []
    for producer_id, (low, high, rows) in sessions.items():
        rows.sort()  # each row begins with its big-endian sequence
        parts.append(SESSION.pack(producer_id, low, high, len(rows)))
        parts += rows
    return b"".join(parts)


@twin
def add_plain(
    builder: _Builder, sends: list[Send], at: int, offsets: list[int], positions: list[tuple[int, ...] | int]
) -> int:
    """Adds the clients' plain sends from position `at` on. Returns the position of the first send that is not plain,
    which is left to `_Builder`. Not plain are copies, messages that wait, sends to topics with dedup=strict, and
    messages with an IPv6 address of the client or of this node."""
    if len(builder.store_host) != 8:
        return at
    while at < len(sends):
        send = sends[at]
        if send.kind > _KIND_OF_CLIENTS_MAX or send.slot.dedup == "strict" or len(send.born_host) != 8:
            break
        builder.add_send(send, offsets, positions)
        at += 1
    return at


@twin
def add_messages(builder: _Builder, send: Send, at: int, end: int, cursor: QueueCursor) -> tuple[int, ...]:
    """Adds the messages `at` to `end` of a send's batch and returns their positions. Messages that wait (`schedule`)
    come into no queue yet: their offset is 0, and their keys are indexed when they come into one."""
    slot, schedule = send.slot, send.schedule
    named, queue_id = (slot, send.queue_id) if schedule is None else (schedule.topic, schedule.queue_id)
    strict, topic_id = slot.dedup == "strict", slot.topic_id
    positions: list[int] = []
    for message in send.batch[at:end]:
        if schedule is not None:
            cursor.next_offset = 0
        offset, position, properties = cursor.next_offset, builder.position, message.properties
        head = message.head or send
        builder.add(named, queue_id, head, cursor, message.flag, message.body, properties, message.tag_hash)
        positions.append(position)
        if schedule is not None:
            continue
        if builder.index:
            if message.unique_key:
                builder.keys += RECORD.pack(crc32(message.unique_key, topic_id), position & 0xFFFFFFFF)
            if KEYS_MARK in properties:
                builder.add_words(topic_id, properties, position)
        if strict and message.key_hash:
            builder.add_unique(send, message.key_hash, message.body, offset, position)
    return tuple(positions)


def key_hash_of(unique_key: str) -> int:
    """Returns a 64-bit hash of a UNIQ_KEY: its CRC-32C in the upper half, its CRC-32 in the lower. Below OWNERS_LEVEL,
    messages of topics with dedup=strict are recorded under it."""
    data = unique_key.encode()
    return int(crc32c(data)) << 32 | crc32(data)


def normal_kind(topic: str) -> int:
    """Returns the row kind of a client's send to `topic`."""
    if topic.startswith("%RETRY%"):
        return RowKind.RETRY
    if topic.startswith("%DLQ%"):
        return RowKind.DEAD_LETTER
    return RowKind.NORMAL

"""Encodes send requests: a JSON header formatted from a template per topic, with the one-letter field names of
RocketMQ's V2 header (codes 310 and 320)."""

from __future__ import annotations

import functools
import itertools
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from raftmq.client.message import (
    MAX_BODY_BYTES,
    Message,
    check_encodable,
    check_queue_id,
    encode_copied,
    encode_properties,
)
from raftmq.client.producing.delivery_delay import Delay, DeliverAt, with_delay
from raftmq.client.producing.send_window import AnyFuture, too_large
from raftmq_wire import message_format
from raftmq_wire.codec import VERSION_SENT, encode_frame
from raftmq_wire.codes import RequestCode
from raftmq_wire.message_format import BatchItem
from raftmq_wire.names import check_name
from raftmq_wire.signature import Credentials

_PREFIX = struct.Struct(">ii")
_json = msgspec.json.Encoder().encode
_CHECKED_MAX = 10_000
"""The most topics whose valid names are remembered, because each send checks its topic's name."""
_OVERHEAD_BYTES = 512
"""Bytes for header and bookkeeping of one send. They are counted, with body and properties, against the producer's
limit of buffered bytes."""


class SendRequest(NamedTuple):
    """A user's message or batch, checked, and encoded as far as is possible before its queue is chosen."""

    topic: str
    body: bytes
    properties: str
    message_ids: tuple[str, ...]
    queue_id: int | None
    ordering_key: str | None
    batch: bool
    sys_flag: int = 0
    """The flags of the message; a copy of a compressed message has those of its original."""

    @property
    def size(self) -> int:
        """The bytes that the request counts against the producer's limit of buffered bytes."""
        return len(self.body) + len(self.properties) + _OVERHEAD_BYTES


class Submission(NamedTuple):
    """A request on its way to the event loop, with its future and its deadline (in loop time)."""

    request: SendRequest
    future: AnyFuture
    deadline: float


class MessageIds:
    """Makes message ids (UNIQ_KEY): 20 random hex digits of this producer, then a counter of 12."""

    def __init__(self, entropy: bytes) -> None:
        self._prefix = entropy[:10].hex().upper()
        self._count = itertools.count(1)

    def next(self) -> str:
        """Returns a new id. Any thread may call it, since taking the next number is one step of the interpreter."""
        return f"{self._prefix}{next(self._count):012X}"


def build_single(
    ids: MessageIds,
    topic: str,
    body: bytes,
    *,
    key: str | Sequence[str] | None = None,
    tag: str | None = None,
    queue_id: int | None = None,
    ordering_key: str | None = None,
    properties: Mapping[str, str] | None = None,
    delay: Delay = None,
    deliver_at: DeliverAt = None,
) -> SendRequest:
    """Checks and encodes one message. Raises Refused (too large, bad property), TypeError, ValueError."""
    _check(topic, queue_id, ordering_key)
    body = _as_bytes(body)
    message_id = ids.next()
    if len(body) > MAX_BODY_BYTES:
        raise too_large(f"message to {topic}", len(body), MAX_BODY_BYTES, (message_id,))
    text = encode_properties(message_id, key, tag, with_delay(properties, delay, deliver_at))
    return SendRequest(topic, body, text, (message_id,), queue_id, ordering_key, False)


def build_copy(
    ids: MessageIds, topic: str, original: Message, properties: Mapping[str, str], *, queue_id: int | None = None
) -> SendRequest:
    """Encodes a copy of a stored message: its body and compression unchanged, with these properties instead of its own.
    Raises Refused (too large), ValueError.

    The values of the properties are not checked as those of a user are: whatever was stored once can be stored again.
    """
    _check(topic, queue_id, None)
    message_id = ids.next()
    if len(original.body) > MAX_BODY_BYTES:
        raise too_large(f"message to {topic}", len(original.body), MAX_BODY_BYTES, (message_id,))
    text = encode_copied(message_id, properties)
    return SendRequest(topic, original.body, text, (message_id,), queue_id, None, False, original.compression)


def build_batch(
    ids: MessageIds,
    topic: str,
    bodies: Sequence[bytes],
    *,
    key: str | Sequence[str] | None = None,
    tag: str | None = None,
    queue_id: int | None = None,
    ordering_key: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> SendRequest:
    """Checks and encodes several messages for one queue; key, tag and properties apply to each. Raises as
    `build_single` does."""
    _check(topic, queue_id, ordering_key)
    if not bodies:
        raise ValueError("send_batch needs at least one body")
    message_ids = tuple(ids.next() for _ in bodies)
    items = [
        BatchItem(0, _as_bytes(body), encode_properties(message_id, key, tag, properties).encode())
        for body, message_id in zip(bodies, message_ids, strict=True)
    ]
    encoded = message_format.build_batch(items)
    if len(encoded) > MAX_BODY_BYTES:
        raise too_large(f"batch to {topic}", len(encoded), MAX_BODY_BYTES, message_ids)
    return SendRequest(topic, encoded, "", message_ids, queue_id, ordering_key, True)


def in_users_words(error: TypeError, call: str, options: Mapping[str, Any], kind: type) -> TypeError:
    """Returns a TypeError for a wrong call of a send. If an option is unknown, the error names it and the call that the
    user wrote; else `error` itself is returned."""
    known = [*kind.__annotations__]
    unknown = [name for name in options if name not in known]
    return TypeError(f"{call}() has no option {unknown[0]}; it has {', '.join(known)}") if unknown else error


@functools.lru_cache(_CHECKED_MAX)
def _check_topic(topic: str) -> None:
    check_name("topic", topic)


def _check(topic: str, queue_id: int | None, ordering_key: str | None) -> None:
    """Checks the topic and the choice of a queue. Raises now what would otherwise fail on the event loop, where it
    would fail other sends too."""
    if not isinstance(topic, str):
        raise TypeError(f"a topic is a str, not {type(topic).__name__}")
    if not topic:
        raise ValueError("the topic is empty")
    _check_topic(topic)
    if queue_id is not None:
        check_queue_id(queue_id)
        if queue_id < 0:
            raise ValueError(f"queue_id {queue_id} is negative; leave it out to let the producer choose")
        if ordering_key is not None:
            raise ValueError("either queue_id or ordering_key, not both: the key chooses the queue")
    if ordering_key is not None:
        if not isinstance(ordering_key, str):
            raise TypeError(f"ordering_key= is a str, not {ordering_key!r}")
        check_encodable("ordering_key=", ordering_key)


def _as_bytes(body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    if isinstance(body, (bytearray, memoryview)):
        return bytes(body)
    raise TypeError(f"a body is bytes, not {type(body).__name__}; encode it first, for example with .encode()")


class FrameWriter:
    """Formats the frames of one producer session.

    Only the values that vary are formatted per message; values that come from users go through the JSON encoder.
    """

    def __init__(self, group: str, producer_id: bytes, credentials: Credentials | None = None) -> None:
        """`credentials`: the name and secret with which frames are signed, or None. A signed frame is not made from a
        template."""
        self._credentials = credentials
        self._group = group
        self._producer_id = producer_id.hex()
        self._templates: dict[tuple[str, bool, int], bytes] = {}

    def frame(self, request: SendRequest, queue_id: int, sequence: int, low: int, born_ms: int) -> bytes:
        """Returns the complete frame of one request. The bytes are the same for every attempt."""
        if self._credentials is not None:
            return self._signed(request, queue_id, sequence, low, born_ms, self._credentials)
        kind = (request.topic, request.batch, request.sys_flag)
        template = self._templates.get(kind) or self._template(*kind)
        header = template % (queue_id, born_ms, _json(request.properties), sequence, low, sequence & 0x7FFFFFFF)
        body = request.body
        return b"".join((_PREFIX.pack(4 + len(header) + len(body), len(header)), header, body))

    def _signed(
        self, request: SendRequest, queue_id: int, sequence: int, low: int, born_ms: int, credentials: Credentials
    ) -> bytes:
        ext = {
            "a": self._group,
            "b": request.topic,
            "c": "TBW102",
            "d": "8",
            "e": str(queue_id),
            "f": str(request.sys_flag),
            "g": str(born_ms),
            "h": "0",
            "i": request.properties,
            "j": "0",
            "k": "false",
            "m": "true" if request.batch else "false",
            "raftmqPid": self._producer_id,
            "raftmqSeq": str(sequence),
            "raftmqLow": str(low),
        }
        code = RequestCode.SEND_BATCH_MESSAGE if request.batch else RequestCode.SEND_MESSAGE_V2
        body = request.body
        return encode_frame(code, sequence & 0x7FFFFFFF, 0, ext=credentials.signed(ext, body), body=body)

    def _template(self, topic: str, batch: bool, sys_flag: int) -> bytes:
        def quoted(text: str) -> bytes:
            return _json(text).replace(b"%", b"%%")

        numbers = b',"c":"TBW102","d":"8","e":"%%d","f":"%d","g":"%%d","h":"0","i":%%s,"j":"0","k":"false","m":"'
        template = b"".join(
            (
                b'{"code":%d' % (RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2),
                b',"extFields":{"a":',
                quoted(self._group),
                b',"b":',
                quoted(topic),
                numbers % sys_flag,
                b"true" if batch else b"false",
                b'","raftmqPid":"',
                self._producer_id.encode(),
                b'","raftmqSeq":"%d","raftmqLow":"%d"}',
                b',"flag":0,"language":"PYTHON","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":',
                str(VERSION_SENT).encode(),
                b"}",
            )
        )
        if len(self._templates) >= 1024:
            self._templates.clear()
        self._templates[topic, batch, sys_flag] = template
        return template


def queue_of_key(ordering_key: str, queues: int) -> int:
    """Returns the queue of an ordering key: the same key always gets the same queue while the number of queues
    stays."""
    return zlib.crc32(ordering_key.encode()) % queues

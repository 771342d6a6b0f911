"""Messages as users see them, decoded from stored ones (`raftmq_wire.message_format`), and the options of a send."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import msgspec

from raftmq.client.errors import Failed, Refused
from raftmq.client.producing.delivery_delay import Delay, DeliverAt
from raftmq_wire import message_format
from raftmq_wire.codes import ResponseCode
from raftmq_wire.message_format import PROPERTIES_BYTES_MAX, MessageFormatError
from raftmq_wire.properties import parse_properties
from raftmq_wire.queue_numbers import queue_text

_ZLIB = (0, 3)
"""Compression types of a message that mean zlib. Producers before RocketMQ 5 always use zlib and write 0."""
_BY_ARROW = {1: "lz4", 2: "zstd"}
MAX_INFLATED_BYTES = 64 << 20
"""The largest decompressed body, in bytes. The bound keeps a small message from filling the reader's memory."""


class UnreadableError(Exception):
    """A body cannot be decompressed. Its text gives the reason, worded to follow the message's name in a sentence."""


def decompress(body: bytes, kind: int, most: int = MAX_INFLATED_BYTES) -> bytes:
    """Returns the decompressed body, of `most` bytes at most; `kind` is the compression type in a message's flags.
    Raises UnreadableError."""
    if kind in _ZLIB:
        plain = _inflate(body, most)
    elif kind in _BY_ARROW:
        plain = _read_by_arrow(body, _BY_ARROW[kind], most)
    else:
        raise UnreadableError(f"is compressed in a way (type {kind}) that this client does not read")
    if len(plain) > most:
        raise UnreadableError(f"inflates to more than {most} bytes")
    return plain


def _inflate(body: bytes, most: int) -> bytes:
    try:
        stream = zlib.decompressobj()
        plain = stream.decompress(body, most + 1)
    except zlib.error as error:
        raise UnreadableError(f"does not inflate: {error}") from error
    if not stream.eof and len(plain) <= most:
        raise UnreadableError("is cut short inside its compressed body")
    return plain


def _read_by_arrow(body: bytes, codec: str, most: int) -> bytes:
    try:
        import pyarrow
    except ImportError:
        why = f"is compressed with {codec}, which this client reads where pyarrow is installed"
        raise UnreadableError(f"{why} (pip install 'raftmq[arrow]')") from None
    try:
        with pyarrow.CompressedInputStream(pyarrow.BufferReader(body), codec) as stream:
            plain = bytes(stream.read(most + 1))
    except (OSError, ValueError) as error:  # Arrow's errors are subclasses of these
        raise UnreadableError(f"does not inflate: {error}") from error
    if not body:  # for a frame of no bytes Arrow returns no bytes and raises no error
        raise UnreadableError("is cut short inside its compressed body")
    return plain


COMPRESSED = 0x1
_COMPRESSION_SHIFT = 8
_COMPRESSION_MASK = 0x7
COMPRESSION_FLAGS = COMPRESSED | _COMPRESSION_MASK << _COMPRESSION_SHIFT
"""The bits of a message's flags that describe how its body is compressed."""
MAX_BODY_BYTES = 15 << 20
"""The largest body that fits a 16 MiB frame with its header, in bytes: a larger body would end the connection, however
the server is configured. The server's own limit for a message and for a batch is 4 MiB by default; its refusal (code
13) names the limit."""

RESERVED = frozenset(("KEYS", "TAGS", "UNIQ_KEY"))


class SendOptions(TypedDict, total=False):
    """The options of a send, besides topic and body."""

    key: str | Sequence[str] | None
    """One key or several, by which the message can be found later."""
    tag: str | None
    """A tag that consumers may filter by."""
    queue_id: int | None
    """The queue to store the message in; without it, and without `ordering_key`, the producer takes the queues in
    turn."""
    ordering_key: str | None
    """Messages with the same ordering key go to one queue, in order."""
    properties: Mapping[str, str] | None
    """Further properties of the message, chosen by the user."""


class MessageOptions(SendOptions, total=False):
    """The options of a send of one message: those of `SendOptions` and a delay or a time of delivery. With either, the
    message is stored at once and delivered later, with a new offset and position; the offset and position of the result
    are those of the place where it waits."""

    delay: Delay
    deliver_at: DeliverAt


class SendResult(NamedTuple):
    """The place of a stored message. `position` is its byte position in the commit log, -1 if the server did not say
    (messages after the first of a batch whose first reply was lost). `recall_handle` recalls a message with delayed
    delivery; it is "" for any other."""

    message_id: str
    queue_id: int
    queue_offset: int
    position: int
    recall_handle: str = ""


class Message(msgspec.Struct, frozen=True, gc=False):
    """A stored message. Times are milliseconds since the epoch: `born_ms` by the producer's clock, `store_ms` in log
    time.

    `body` is plain, as the producer was given it, except if `compression` is not 0; then it is still compressed, as
    stored."""

    topic: str
    queue_id: int
    queue_offset: int
    position: int
    body: bytes
    key: str | None
    """All keys of the message, separated by blanks; None if it has none."""
    tag: str | None
    properties: dict[str, str]
    message_id: str
    born_ms: int
    store_ms: int
    reconsume_times: int = 0
    compression: int = 0
    """The flags that say how `body` is compressed; 0 if `body` is plain."""
    undecoded: str = ""
    """The reason why `body` could not be decompressed and is as stored, worded to follow the message's name in a
    sentence; "" if there is none."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the message, one by one."""
        return tuple(self.key.split()) if self.key else ()

    @property
    def place(self) -> str:
        """The topic, queue and offset in one text, by which errors and logs name the message."""
        return f"{self.topic} queue {queue_text(self.queue_id)} offset {self.queue_offset}"

    def decoded(self) -> Message:
        """Returns the message with a plain body, or with the reason in `undecoded` if the body cannot be decompressed:
        one damaged body must not stop a reader."""
        if not self.compression or self.undecoded:
            return self
        try:
            return msgspec.structs.replace(self, body=plain_body(self.body, self.compression), compression=0)
        except UnreadableError as error:
            return msgspec.structs.replace(self, undecoded=str(error))


class FoundMessages(list[Message]):
    """The messages that a query found: a list that also says whether there may be more."""

    more = False
    """True if there may be others that match: the answer was full, or a node could not read one."""


def encode_properties(
    message_id: str, key: str | Sequence[str] | None, tag: str | None, properties: Mapping[str, str] | None
) -> str:
    """Returns the properties in the protocol's form, `name \\x01 value \\x02` repeated. Raises Refused for values that
    this form cannot hold, TypeError for values of other types, and ValueError for text that is no valid Unicode."""
    text = f"UNIQ_KEY\x01{message_id}\x02WAIT\x01true\x02"
    if key is not None:
        text += _pair("KEYS", key if isinstance(key, str) else _joined(key))
    if tag is not None:
        text += _pair("TAGS", tag)
    if properties:
        if not isinstance(properties, Mapping):
            raise TypeError(f"properties= is a dict of str, not {type(properties).__name__}")
        for name, value in properties.items():
            if name in RESERVED:
                why = f"property {name} is set by the client; use key= or tag="
                raise Refused(why, code=ResponseCode.MESSAGE_ILLEGAL)
            text += _pair(name, value)
    return _checked(text)


def encode_copied(message_id: str, properties: Mapping[str, str]) -> str:
    """Returns the properties of a copy in the protocol's form, with keys and tag among them. Values are not checked,
    because they were stored before, and a value with \\x01 inside reads back unchanged. Raises Refused if all
    properties take too many bytes."""
    copied = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    return _checked(f"UNIQ_KEY\x01{message_id}\x02WAIT\x01true\x02{copied}")


def _checked(text: str) -> str:
    """Returns `text`, the encoded properties. Raises ValueError if it is no valid Unicode, and Refused if it takes too
    many bytes."""
    check_encodable("a property", text)
    if len(text) * 3 > PROPERTIES_BYTES_MAX and len(text.encode()) > PROPERTIES_BYTES_MAX:
        raise Refused(
            f"the properties take {len(text.encode())} bytes, at most {PROPERTIES_BYTES_MAX} are possible",
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


def check_encodable(what: str, text: str) -> None:
    """Raises ValueError for a str with half a surrogate pair, which UTF-8 cannot encode. `what` names the text in the
    error."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} is not Unicode text: {error}") from None


def _pair(name: str, value: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name of a property must be a str, not {type(name).__name__}")
    if not isinstance(value, str):
        raise TypeError(f"property {name} must be a str, not {type(value).__name__}")
    if not name or not value or "\x01" in name + value or "\x02" in name + value:
        raise Refused(
            f"property {name!r} is empty or holds \\x01 or \\x02, which separate properties",
            code=ResponseCode.MESSAGE_ILLEGAL,
            hint="Leave it out, or encode the value.",
        )
    return f"{name}\x01{value}\x02"


def decode_messages(data: bytes, *, as_stored: bool = False, first_queue: int = 0) -> list[Message]:
    """Decodes all messages in the body of a pull reply. `first_queue`: the number of queue 0 of the group of brokers
    that answered. Raises Failed for bytes that are not complete, sound stored messages; a message whose body cannot be
    decompressed has `undecoded` set.

    With `as_stored`, no body is decompressed; a reader that needs only some bodies then calls `Message.decoded` on
    these.
    """
    try:
        found = [_read(stored, first_queue) for stored in message_format.decode_messages(data, hosts=False)]
    except MessageFormatError as error:
        raise Failed(f"a reply holds what is not a stored message: {error}") from error
    return found if as_stored else [one.decoded() if one.compression else one for one in found]


def plain_body(body: bytes, sys_flag: int) -> bytes:
    """Returns the body in the form that its producer gave it, decompressed if it was compressed. Raises
    UnreadableError."""
    if not sys_flag & COMPRESSED:
        return body
    return decompress(body, sys_flag >> _COMPRESSION_SHIFT & _COMPRESSION_MASK)


def _read(stored: message_format.Message, first_queue: int) -> Message:
    properties = parse_properties(stored.properties)
    return Message(
        stored.topic,
        first_queue + stored.queue_id,
        stored.queue_offset,
        stored.position,
        stored.body,
        properties.get("KEYS"),
        properties.get("TAGS"),
        properties,
        properties.get("UNIQ_KEY", ""),
        stored.born_ms,
        stored.store_ms,
        stored.reconsume_times,
        stored.sys_flag & COMPRESSION_FLAGS if stored.sys_flag & COMPRESSED else 0,
    )


def position_of(offset_message_id: str) -> int:
    """Returns the commit log position inside an offsetMsgId (its last 16 hex digits); -1 if the text is no
    offsetMsgId."""
    try:
        return int(offset_message_id[-16:], 16) if len(offset_message_id) in (32, 56) else -1
    except ValueError:
        return -1


def check_queue_id(queue_id: int) -> None:
    """Raises TypeError unless the id of a queue is an int. A bool is refused too, although Python counts it as an
    int."""
    if type(queue_id) is not int and (isinstance(queue_id, bool) or not isinstance(queue_id, int)):
        raise TypeError(f"queue_id= is an int, not {type(queue_id).__name__}")

"""Handles sends (codes 10, 310 and 320): decodes the header, calls the broker, and answers refusals. `send_reply`
answers stored sends.

This is the hot path: no task, no future, no log line per message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec

from cluster.broker.name_rules import FORBIDDEN_TOPICS, PERM_WRITE
from cluster.broker.refusal import NotTaken, Refused
from cluster.broker.sends.send_service import Sends
from cluster.remoting.connection.frame import Frame
from cluster.remoting.handlers.send_reply import SendReplyWriter
from cluster.replication.send_identity import Identity
from cluster.runtime.request_limits import Signed64, Unsigned31, Unsigned63
from raftmq_wire.codec import FLAG_ONEWAY, JSON, CodecError, Header, Signed32, decode_header
from raftmq_wire.codes import RequestCode
from raftmq_wire.json_text import MALFORMED
from raftmq_wire.kernel import shortcut

if TYPE_CHECKING:
    from cluster.config.service_sections import LimitsSection
    from cluster.flow.gate import Holder
    from cluster.remoting.admission import SendJudge
    from cluster.remoting.connection.reply_path import ReplyPath
    from cluster.replication.message_batch import Send, TopicSlot
    from cluster.replication.proposals import Proposals
    from cluster.replication.send_identity import RetryMemory


_LETTERS = {
    "producer_group": "a",
    "topic": "b",
    "default_topic": "c",
    "default_queues": "d",
    "queue_id": "e",
    "sys_flag": "f",
    "born_ms": "g",
    "message_flag": "h",
    "properties": "i",
    "reconsume_times": "j",
    "max_reconsume_times": "l",
    "is_batch": "m",
}
_NAMES = {
    "producer_group": "producerGroup",
    "topic": "topic",
    "default_topic": "defaultTopic",
    "default_queues": "defaultTopicQueueNums",
    "queue_id": "queueId",
    "sys_flag": "sysFlag",
    "born_ms": "bornTimestamp",
    "message_flag": "flag",
    "properties": "properties",
    "reconsume_times": "reconsumeTimes",
    "max_reconsume_times": "maxReconsumeTimes",
    "is_batch": "batch",
}
_IDENTITY = {"producer_id": "raftmqPid", "sequence": "raftmqSeq", "low_sequence": "raftmqLow"}


class SendHeader(msgspec.Struct, gc=False, rename=_LETTERS | _IDENTITY):
    """SendMessageRequestHeaderV2 (RocketMQ), and the optional fields `raftmqPid`, `raftmqSeq`, `raftmqLow` of
    RaftMQ."""

    topic: str
    producer_group: str = ""
    default_topic: str = "TBW102"
    default_queues: Signed32 = 4
    queue_id: Signed32 = -1
    sys_flag: Unsigned31 = 0
    born_ms: Unsigned63 = 0
    message_flag: Signed32 = 0
    properties: str = ""
    reconsume_times: Unsigned31 | None = 0
    max_reconsume_times: Signed64 | None = None
    is_batch: bool | None = False
    producer_id: str = ""
    sequence: Unsigned63 = 0
    low_sequence: Unsigned63 = 0


# The same fields under their long names (SendMessageRequestHeader). Field renames are not inherited, so the class is
# built at run time.
_SendHeaderV1 = msgspec.defstruct(
    "_SendHeaderV1",
    [
        (f.name, f.type) if f.default is msgspec.NODEFAULT else (f.name, f.type, f.default)
        for f in msgspec.structs.fields(SendHeader)
    ],
    gc=False,
    rename=_NAMES | _IDENTITY,
)

_decode_v2 = msgspec.json.Decoder(SendHeader, strict=False).decode
_decode_v1 = cast("Callable[[msgspec.Raw], SendHeader]", msgspec.json.Decoder(_SendHeaderV1, strict=False).decode)


def send_header_of(code: int, ext: dict[str, str]) -> SendHeader:
    """Returns a send header with the decoded ext fields `ext` of a reply. Code 324 has long names, 325 has letters.
    Raises CodecError if a field is missing or has a wrong type."""
    form = _SendHeaderV1 if code == RequestCode.SEND_REPLY_MESSAGE else SendHeader
    try:
        return cast("SendHeader", msgspec.convert(ext, form, strict=False))
    except msgspec.ValidationError as error:
        raise CodecError(f"bad send header: {error}") from error


def decode_send_header(header: Header) -> SendHeader:
    """Returns the fields of a send request with long or short names. Raises CodecError, which names the faulty
    field."""
    try:
        fields = _decode_v1(header.extFields) if header.code == 10 else _decode_v2(header.extFields)
    except MALFORMED as error:
        raise CodecError(f"bad send header: {error}") from error
    return fields


ASKS = "REPLY_TO"
"""The beginning of the name of the property with which a send asks for a reply."""
V3_4_9 = 121
"""Protocol version of the first RocketMQ whose consumers send their own maximum of redeliveries (MQVersion.V3_4_9)."""


class SendHandler:
    """Handles send requests on the leader, and assigns identities to those that a node holds for a leader."""

    def __init__(
        self,
        sends: Sends[Frame],
        replies: SendReplyWriter,
        make_intake: Callable[[LimitsSection], Intake],
        limits: LimitsSection,
        note_requester: Callable[[Frame, str], None],
    ) -> None:
        """`note_requester` is called with sends whose properties may ask for a reply."""
        self._note_requester = note_requester
        self._sends = sends
        self._replies = replies
        self._make_intake = make_intake
        self.reload(limits)

    def reload(self, limits: LimitsSection) -> None:
        """Uses `limits` from now on. The node passes them to `Sends` itself."""
        self.intake = self._make_intake(limits)
        """Takes plain sends before their headers are decoded."""

    def on_send(self, frame: Frame, *, confirmed: bool = False) -> None:
        """Handles one request. Raises CodecError if its header is malformed.

        `confirmed`: True if a majority has confirmed that this node leads. Otherwise no client is told that its topic
        does not exist or accepts no messages.
        """
        header = frame.header
        decoded = decode_send_header(header)
        if header.version < V3_4_9:
            decoded.max_reconsume_times = None
        if ASKS in decoded.properties:
            self._note_requester(frame, decoded.properties)
        try:
            self._sends.send(frame, decoded, oneway=header.flag & FLAG_ONEWAY != 0)
        except Refused as refused:
            if isinstance(refused, NotTaken) and not confirmed:
                self._sends.when_confirmed(frame, partial(self.on_send, frame, confirmed=True))
            else:
                self._replies.refuse(frame, refused)

    def name_held(self, frame: Frame) -> Identity | None:
        """Returns the identity under which this node forwards a client's send to one leader after the other. None if
        the client has set an identity, or if the send is oneway. Raises CodecError if its header is malformed."""
        decoded = decode_send_header(frame.header)
        if ASKS in decoded.properties:
            self._note_requester(frame, decoded.properties)
        return None if frame.header.flag & FLAG_ONEWAY else self._sends.name_held(frame, decoded)

    def remember_held(self, frame: Frame, identity: Identity) -> None:
        """Keeps the identity of a send that was forwarded and never got a final answer."""
        self._sends.remember_held(frame, decode_send_header(frame.header), identity)


# The short path of plain sends: the kernel takes them from the bytes of a read into the queue.
#
# A send is plain if nothing about it needs a decision of this node beyond the checks of `Sends`: it has a JSON header
# of the usual form, an existing topic, and no delay, transaction, identity or level of its own. All other sends, and
# all that must be refused, take the long path through `Router.on_request`, which decides.


@shortcut
class Intake:
    """Handles plain sends in the native kernel. This Python version takes no sends, because it has no shorter path."""

    def __init__(
        self,
        proposals: Proposals,
        room: Callable[[Holder, int], int],
        submit: Callable[[ReplyPath, list[Send]], None],
        retries: RetryMemory,
        limits: LimitsSection,
        suffix: bytes,
        slot_of: Callable[[bytes], TopicSlot | None],
        new_key: Callable[[], bytes],
        origin_of: Callable[[ReplyPath, bytes, bytes, int, int], Frame],
    ) -> None:
        """`room` returns the bytes that sends of a user may take on a connection (`cluster.flow.gate.Gate.room`); it is
        asked once for the sends of a read. `submit` takes and queues them (`Proposals.submit_plain`). `suffix` contains
        the properties that the broker adds to every message. `slot_of` returns a topic that `Proposals.plain` does not
        contain, None if its sends are not plain. `new_key` makes a UNIQ_KEY. `origin_of` makes the request of a send
        again, from its path, header, body, size and user."""

    def take(
        self, path: ReplyPath, data: bytes, frames: list[tuple[int, int]], at: int, judge: SendJudge | None = None
    ) -> int:
        """Queues the plain sends among the frames of a read, from index `at` on; returns the index of the first other
        frame. With a `judge`, only sends with a valid signature of a user who may send to the topic are plain."""
        return at


def make_intake(proposals: Proposals, sends: Sends[Frame], retries: RetryMemory, limits: LimitsSection) -> Intake:
    """Makes the intake of a node."""

    def slot_of(name: bytes) -> TopicSlot | None:
        topic = name.decode()
        if topic[:1] == "%" or topic in FORBIDDEN_TOPICS:
            return None
        slot = proposals.topics.slot(topic)
        if slot is None or not slot.perm & PERM_WRITE or slot.ack or slot.dedup != "retry":
            return None
        proposals.plain[name] = slot
        return slot

    room, submit = proposals.gate.room, proposals.submit_plain
    return Intake(proposals, room, submit, retries, limits, sends.suffix, slot_of, sends.new_key, _origin_of)


def _origin_of(path: ReplyPath, header: bytes, body: bytes, size: int, user: int) -> Frame:
    return Frame(path, JSON, decode_header(JSON, header), header, body, size, None, user)

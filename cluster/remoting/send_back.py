"""CONSUMER_SEND_MSG_BACK (code 36): redelivers a message that a consumer could not handle, or makes it a dead letter.

The leader reads the message at the position that the consumer names, and proposes a copy of it: to `%RETRY%group` with
`reconsumeTimes` raised by one, to `%DLQ%group` once that has reached the maximum. The copy is a row of its own kind,
never part of dedup (ADR 0011): a request repeated after a lost answer may leave two copies, and never none. It is
answered when a majority has the copy on disk, whatever level of acknowledgement sends have.
Source: RocketMQ's AbstractSendMessageProcessor.consumerSendMsgBack; facts in docs/wire-protocol.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cluster.broker.inflight import over_limit
from cluster.broker.message_lookup import Stored, UnreadableError, message_at
from cluster.broker.names import DEAD_LETTER_PREFIX, PERM_READ, PERM_WRITE, RETRY_PREFIX, check_group_name
from cluster.broker.refusal import Reason, Refused
from cluster.broker.sends import tag_hash
from cluster.remoting.answers import after_read_index, refusing
from cluster.remoting.fields import integer, text
from cluster.remoting.reply_path import pack_host
from cluster.remoting.request import Handler, Request
from cluster.remoting.server import RemotingRequest
from cluster.replication.ack_levels import Ack
from cluster.replication.message_batch import Send, TopicSlot, normal_kind
from cluster.replication.message_keys import UNIQUE_MARK, property_of
from cluster.replication.outcome import Outcome, ProposeResult
from cluster.wire.codec import FLAG_ONEWAY
from cluster.wire.codes import RequestCode, ResponseCode
from cluster.wire.message_format import (
    PROPERTIES_BYTES_MAX,
    Message,
    encode_message_id,
)
from raftlog.errors import StorageError
from statemachine.commands import CREATE_TOPIC

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.replication.proposals import Proposals
    from statemachine.groups import GroupConfig

V3_4_9 = 121
"""Protocol version of the first RocketMQ whose consumers name their own maximum (MQVersion.V3_4_9)."""
TIMES_MAX = (1 << 31) - 1
TRIES, RETRY_MS = 10, 200
"""How long a message is waited for that is being repaired, and a topic that is being changed."""
_SYS_FLAGS_OF_A_COPY = ~0x3C
"""All but where in a transaction it is and how its addresses are written."""


class SentBack(NamedTuple):
    """What the request says. `maximum`: None if it leaves that to the group."""

    group: str
    position: int
    delay_level: int
    maximum: int | None
    origin_topic: str


class SendBack:
    """Handler of 36, the leader's."""

    def __init__(self, services: Services, proposals: Proposals) -> None:
        self._services = services
        self._proposals = proposals

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {RequestCode.CONSUMER_SEND_MSG_BACK: refusing(self._send_back)}

    def _send_back(self, request: Request) -> None:
        wanted = parse(request)
        # The message may have been pulled from a node that has applied more than this one.
        after_read_index(self._services, request, lambda request: self._keep(request, wanted, TRIES))

    def _keep(self, request: Request, wanted: SentBack, tries: int) -> None:
        if not self._services.writes_open():
            raise Refused(Reason.UNAVAILABLE, "this node does not lead any more; nothing was stored")
        if self._proposals.refusing:
            raise Refused(Reason.UNAVAILABLE, self._proposals.refusing)
        group = self._services.state.groups.get(wanted.group)
        if group is None:
            remark = f"consumer group {wanted.group} does not exist"
            raise Refused(Reason.NO_GROUP, remark)
        stored = self._read(request, wanted, tries)
        if stored is None:
            return
        topic = target(wanted, group, stored.message)
        slot = self._proposals.slot(topic)
        if slot is None:
            self._make_topic(request, wanted, topic, tries)
            return
        if not slot.perm & PERM_WRITE:
            raise Refused(Reason.NO_PERMISSION, f"topic {topic} does not accept writes (perm {slot.perm})")
        self._propose(request, slot, stored)

    # --- the message -------------------------------------------------------------------------------------------------

    def _read(self, request: Request, wanted: SentBack, tries: int) -> Stored | None:
        """The message; None if it is to be read again in a moment, because it is being repaired. Raises Refused."""
        where = f"offset {wanted.position}"
        try:
            stored = message_at(self._services, wanted.position)
        except UnreadableError as error:
            if isinstance(error.__cause__, StorageError) and tries:
                self._again(request, wanted, tries)
                return None
            raise Refused(Reason.ERROR, f"no message to send back at {where}: {error}") from None
        if stored is None:
            raise Refused(Reason.ERROR, f"no message to send back at {where}: it is in no queue")
        message = stored.message
        known_as = {"", message.topic, property_of(message.properties, b"RETRY_TOPIC\x01").decode("utf-8", "replace")}
        if wanted.origin_topic not in known_as:
            remark = f"the message at {where} is of topic {message.topic}, not {wanted.origin_topic[:255]}"
            raise Refused(Reason.ERROR, remark)
        return stored

    def _again(self, request: Request, wanted: SentBack, tries: int) -> None:
        answered = refusing(lambda request: self._keep(request, wanted, tries - 1))
        self._services.call_later(RETRY_MS, lambda: answered(request))

    def _make_topic(self, request: Request, wanted: SentBack, topic: str, tries: int) -> None:
        """Makes the group's topic, or waits for a change of it; then looks at the request anew."""
        if not tries:
            raise Refused(Reason.UNAVAILABLE, f"topic {topic} is being changed; nothing was stored")
        fields = {"name": topic, "read_queues": 1, "write_queues": 1, "perm": PERM_READ | PERM_WRITE}
        answered = refusing(lambda request: self._keep(request, wanted, tries - 1))

        def made(result: ProposeResult) -> None:
            if result.outcome is not Outcome.OK:
                remark = f"topic {topic} could not be created; nothing was stored: {result.remark}"
                request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
            elif result.results and not result.results[0].ok:
                request.reply(ResponseCode.SYSTEM_ERROR, f"topic {topic}: {result.results[0].value}")
            else:
                answered(request)

        changing = self._proposals.changing(topic)
        self._proposals.submit_commands([] if changing else [[CREATE_TOPIC, fields, True]], made)

    # --- the copy ----------------------------------------------------------------------------------------------------

    def _propose(self, request: Request, slot: TopicSlot, stored: Stored) -> None:
        assert isinstance(request, RemotingRequest), request
        assert request.received is not None
        path, size = request.connection, len(request.received.header_bytes) + len(stored.data)
        over = over_limit(self._services.config.limits, path, size, self._proposals.bytes_inflight)
        if over:
            raise Refused(Reason.BUSY, over)
        message = stored.message
        properties = copied_properties(message)
        queue_id = slot.next_queue % slot.write_queues
        slot.next_queue = queue_id + 1
        send = Send(
            path,
            size,
            request.received,
            bool(request.flag & FLAG_ONEWAY),
            slot,
            queue_id,
            message.flag,
            message.sys_flag & _SYS_FLAGS_OF_A_COPY,
            message.born_ms,
            pack_host(*message.born_host),
            min(message.reconsume_times + 1, TIMES_MAX),
            message.body,
            properties,
            tag_hash(property_of(properties, b"TAGS\x01")),
            property_of(properties, UNIQUE_MARK).decode("utf-8", "replace"),
            normal_kind(slot.name),
            b"",
            0,
            0,
            (),
            self._proposals.now_ms,
            Ack.QUORUM_FSYNC,
        )
        path.inflight_bytes += size
        self._proposals.bytes_inflight += size
        self._proposals.submit_send(send)


def parse(request: Request) -> SentBack:
    """The request's fields. Raises Refused (29)."""
    group = text(request, "group")
    check_group_name(group)
    position = _within(request, "offset", 0, (1 << 63) - 1)
    delay_level = _within(request, "delayLevel", -TIMES_MAX - 1, TIMES_MAX, 0)
    maximum = _within(request, "maxReconsumeTimes", -TIMES_MAX - 1, TIMES_MAX, -1)
    named = maximum >= 0 and request.version >= V3_4_9
    return SentBack(group, position, delay_level, maximum if named else None, request.ext.get("originTopic", ""))


def target(wanted: SentBack, group: GroupConfig, message: Message) -> str:
    """The topic that the copy goes to."""
    maximum = group.retry_max_times if wanted.maximum is None else wanted.maximum
    dead = wanted.delay_level < 0 or message.reconsume_times >= maximum
    return (DEAD_LETTER_PREFIX if dead else RETRY_PREFIX) + wanted.group


def copied_properties(message: Message) -> bytes:
    """The message's own, and where it comes from: topic and id of the first one of a row of copies."""
    properties = message.properties
    if properties and properties[-1] != 2:
        properties += b"\x02"
    for name, value in (
        (b"RETRY_TOPIC\x01", message.topic),
        (b"ORIGIN_MESSAGE_ID\x01", encode_message_id(message.store_host, message.position)),
    ):
        added = name + value.encode() + b"\x02"
        # A message whose properties leave no room comes again all the same.
        if not property_of(properties, name) and len(properties) + len(added) <= PROPERTIES_BYTES_MAX:
            properties += added
    return properties


def _within(request: Request, name: str, low: int, high: int, default: int | None = None) -> int:
    number = integer(request, name, default)
    if not low <= number <= high:
        raise Refused(Reason.INVALID, f"field {name} is {number}; allowed are {low} to {high}")
    return number

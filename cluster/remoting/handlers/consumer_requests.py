"""Handles operators' requests about consumers: resets of offsets (222, 314), and requests that a client itself answers
(307 GET_CONSUMER_RUNNING_INFO, 309 CONSUME_MESSAGE_DIRECTLY).

307 and 309 are sent on to the client's connection, on whichever node that is, and its answer is returned unchanged
(RocketMQ: AdminBrokerProcessor.callConsumer). The body of 222 is JSON with objects as keys, as the tools expect it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.broker.groups.group_members import Role
from cluster.broker.groups.offset_resets import OffsetResets, QueueOffset, ResetOrder, ResetTo, cloned_from
from cluster.broker.name_rules import check_group_name
from cluster.broker.reads.message_lookup import UnreadableError, message_at, why_none
from cluster.broker.refusal import Reason, Refused
from cluster.broker.rights import SUB, topic_need
from cluster.broker.services import ClientAnswer, ClientRequest
from cluster.remoting.answers import refuse, refusing, reply_written
from cluster.remoting.request import Handlers, asked_by, integer, party_of, text
from cluster.replication.outcome import Outcome
from cluster.runtime import metered_json
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.message_format import MessageFormatError, decode_message_id

if TYPE_CHECKING:
    from cluster.broker.groups.client_relay import ClientRelay
    from cluster.broker.rights import Rights
    from cluster.broker.services import Services
    from cluster.remoting.request import NoteChange, Request
    from cluster.replication.outcome import ProposeResult
    from statemachine.access.rules import Need

_encode = metered_json.encode


class ConsumerRequests:
    """Handles resets of offsets (222, 314; on the leader) and requests that clients answer (307, 309; on any node).
    `note`: `cluster.remoting.request.NoteChange`."""

    def __init__(
        self, services: Services, resets: OffsetResets, relay: ClientRelay, rights: Rights, note: NoteChange
    ) -> None:
        self._services = services
        self._rights = rights
        self._resets = resets
        self._relay = relay
        self._note = note

    def codes(self) -> Handlers:
        """Returns request code -> its handler."""
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: refusing(self._reset),
            RequestCode.CLONE_GROUP_OFFSET: refusing(self._clone),
            RequestCode.GET_CONSUMER_RUNNING_INFO: refusing(self._relay_to_consumer),
            RequestCode.CONSUME_MESSAGE_DIRECTLY: refusing(self._consume_directly),
        }

    def _reset(self, request: Request) -> None:
        asked = _reset_order(request)

        def answer(outcome: list[QueueOffset] | Refused) -> None:
            if isinstance(outcome, Refused):
                refuse(request, outcome)
            else:
                self._note(f"group {asked.group}", asked_by(request, asked.done_to(len(outcome))))
                rows = [self._row(asked.topic, *each) for each in outcome]
                request.reply(ResponseCode.SUCCESS, body=b'{"offsetTable":{%b}}' % b",".join(rows))

        self._resets.reset(asked, party_of(request), answer)

    def _row(self, topic: str, queue_id: int, offset: int) -> bytes:
        queue = {"brokerName": self._services.routes.group_of(topic).name, "queueId": queue_id, "topic": topic}
        return b"%b:%d" % (_encode(queue), offset)

    def _clone(self, request: Request) -> None:
        source, to = text(request, "srcGroup"), text(request, "destGroup")
        topic = request.ext.get("topic", "")
        trace = asked_by(request, cloned_from(source, topic))

        def done(result: ProposeResult) -> None:
            if result.outcome is Outcome.OK:
                self._note(f"group {to}", trace)
            reply_written(request, result)

        self._resets.clone(source, to, topic, party_of(request), done)

    def _consume_directly(self, request: Request) -> None:
        """Sends the message to the client, which consumes it at once and answers with the result. If rules are
        enforced, the asking user must be allowed to read the message, and the user of the receiving client to consume
        it. Raises Refused if the message cannot be read."""
        try:
            _, position = decode_message_id(text(request, "msgId"))
        except MessageFormatError as error:
            raise Refused(Reason.INVALID, f"msgId: {error}") from None
        try:
            stored = message_at(self._services, position)
        except UnreadableError:
            stored = None
        if stored is None or not self._rights.may_read(party_of(request), stored.topic, "consuming a message directly"):
            raise Refused(Reason.ERROR, why_none(self._services, position))
        self._relay_to_consumer(request, stored.data, topic_need(stored.topic, SUB))

    def _relay_to_consumer(self, request: Request, body: bytes | None = None, need: Need | None = None) -> None:
        group, client_id = text(request, "consumerGroup"), text(request, "clientId")
        check_group_name(group)

        def answer(outcome: ClientAnswer | Refused) -> None:
            if not isinstance(outcome, Refused):
                request.reply(outcome.code, outcome.remark or None, outcome.ext, outcome.body)
            elif outcome.reason is Reason.NO_CONSUMER:  # the same remark and code as RocketMQ's
                remark = f"The Consumer <{group}> <{client_id[:255]}> not online"
                refuse(request, Refused(Reason.ERROR, remark))
            else:
                refuse(request, outcome)

        sent = ClientRequest(request.code, request.ext, request.body if body is None else body)
        self._relay.ask_client(Role.CONSUMER, group, client_id, sent, answer, need=need)


def _reset_order(request: Request) -> ResetOrder:
    """Decodes the fields of 222. A queue and an offset (RocketMQ 5) take precedence over a time; a negative time means
    the end. Raises Refused if a field is missing or has a wrong value."""
    group, topic = text(request, "group"), text(request, "topic")
    check_group_name(group)
    time_ms = integer(request, "timestamp")
    queue_id, offset = integer(request, "queueId", -1), integer(request, "offset", -1)
    queue = queue_id if queue_id >= 0 else None
    if offset >= 0 and queue is not None:
        return ResetOrder(group, topic, ResetTo.OFFSET, offset, queue)
    if time_ms < 0:
        return ResetOrder(group, topic, ResetTo.LATEST, queue_id=queue)
    return ResetOrder(group, topic, ResetTo.TIME, time_ms, queue)

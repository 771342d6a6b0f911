"""Handles END_TRANSACTION (37) from producers, and sends CHECK_TRANSACTION_STATE (39) to them.
`cluster.broker.transactions` explains their meaning.

Clients send 37 to any node and do not wait for an answer. A follower forwards the request to the leader and keeps it
until the leader has confirmed it (`cluster.remoting.forward`). A leader that was deposed before it has carried the
request out forwards it to the next leader. Facts in docs/wire-protocol.md; source: RocketMQ's EndTransactionProcessor
and Broker2Client.checkProducerTransactionState.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.broker.groups.group_members import Role
from cluster.broker.refusal import Reason, Refused
from cluster.broker.rights import PUB, topic_need
from cluster.broker.services import ClientRequest
from cluster.broker.transactions.transaction_end import Decision, End, Ending, Transactions
from cluster.remoting.answers import answer_of
from cluster.remoting.request import Handlers, integer, party_of, text
from cluster.replication.message_head import UNIQUE_MARK, property_of
from cluster.runtime.request_limits import KEY_LENGTH_MAX
from raftmq_wire.codec import FLAG_ONEWAY, FLAG_RESPONSE, encode_frame
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.message_format import Message, encode_message, encode_message_id

if TYPE_CHECKING:
    from cluster.broker.groups.client_relay import ClientRelay
    from cluster.placement.route_map import RouteMap
    from cluster.remoting.forward.handover import Handover
    from cluster.remoting.request import Request
    from statemachine.delivery.half_messages import HalfMessage

END_FIELD = "raftmqEnd"
"""Name of an ext field of the answer: the way in which the transaction ended
(`cluster.broker.transactions.transaction_end.End`)."""
_DECISIONS = {0x0: Decision.UNKNOWN, 0x8: Decision.COMMIT, 0xC: Decision.ROLLBACK}
"""The flag of a request -> the outcome of the transaction that the producer asks for. RocketMQ: MessageSysFlag's
TRANSACTION_NOT_TYPE, TRANSACTION_COMMIT_TYPE, TRANSACTION_ROLLBACK_TYPE."""


class TransactionRequests:
    """Handles END_TRANSACTION (37), on the leader."""

    def __init__(self, transactions: Transactions, handover: Handover) -> None:
        """`handover` forwards a request to the next leader if this node was deposed before it carried it out."""
        self._transactions = transactions
        self._handover = handover

    def codes(self) -> Handlers:
        """Returns request code -> its handler."""
        return {RequestCode.END_TRANSACTION: self._end}

    def _end(self, request: Request) -> None:
        try:
            asked = parse(request)
        except Refused as refused:
            _answer(request, refused)
            return
        self._transactions.end(asked, lambda end: self._settled(request, end))

    def _settled(self, request: Request, end: End | Refused) -> None:
        unavailable = isinstance(end, Refused) and end.reason is Reason.UNAVAILABLE
        if not unavailable or not self._handover.to_leader(request):
            _answer(request, end)


def parse(request: Request) -> Ending:
    """Decodes the fields of END_TRANSACTION (37). Raises Refused (INVALID) if one is missing or has a wrong value."""
    decision = _DECISIONS.get(integer(request, "commitOrRollback"))
    if decision is None:
        raise Refused(Reason.INVALID, "field commitOrRollback is none of 0 (unknown), 8 (commit), 12 (roll back)")
    position = integer(request, "commitLogOffset")
    half_offset = integer(request, "tranStateTableOffset")
    if position < 0 or half_offset < 0:
        raise Refused(Reason.INVALID, "fields commitLogOffset and tranStateTableOffset are not negative")
    group, key = text(request, "producerGroup"), text(request, "msgId", KEY_LENGTH_MAX)
    return Ending(position, half_offset, group, key, decision, party_of(request))


def _answer(request: Request, end: End | Refused) -> None:
    code, remark = answer_of(end) if isinstance(end, Refused) else (ResponseCode.SUCCESS, None)
    if request.flag & FLAG_ONEWAY and request.connection.forwarded:
        # This answer tells the node with the client's connection that it may forget the request. The client gets none.
        answer = encode_frame(
            code, request.opaque, FLAG_RESPONSE, remark=remark, language="JAVA", reader=request.language
        )
        request.connection.write(answer)
    else:
        request.reply(code, remark, None if isinstance(end, Refused) else {END_FIELD: end.value})


def ask_producer(
    relay: ClientRelay, routes: RouteMap, group: str, topic: str, half: HalfMessage, message: Message
) -> None:
    """Asks any producer of the group whose user may send to the topic about a half message. If none is connected or
    none answers, the next check asks again."""
    request = check_request(half, topic, message, routes.group_of(topic).name)
    relay.ask_client(Role.PRODUCER, group, None, request, lambda _: None, need=topic_need(topic, PUB))


def check_request(half: HalfMessage, topic: str, message: Message, broker_name: str) -> ClientRequest:
    """Makes the request 39 about a half message of the topic; its body is the message as a consumer would get it."""
    key = property_of(message.properties, UNIQUE_MARK).decode("utf-8", "replace")
    ext = {
        "topic": topic,
        "tranStateTableOffset": str(message.queue_offset),
        "commitLogOffset": str(message.position),
        "msgId": key,
        "transactionId": key,
        "offsetMsgId": encode_message_id(message.store_host, message.position),
        "bname": broker_name,
    }
    body = encode_message(message._replace(topic=topic, queue_id=half.queue_id))
    return ClientRequest(RequestCode.CHECK_TRANSACTION_STATE, ext, body, oneway=True)

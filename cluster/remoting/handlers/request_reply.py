"""Handles replies of RocketMQ's request-reply messaging (324, 325 SEND_REPLY_MESSAGE). Each reply is pushed to the
client that sent the request (326).

The properties REPLY_TO_CLIENT and CORRELATION_ID of the reply name that client and its request. The node that receives
the request records which client waits (`RequesterNotes`). Any node accepts the reply, and the node that holds the
requester's connection delivers it (`cluster.broker.groups.reply_delivery`). The reply is not stored. RocketMQ keeps a
copy in the topic `<cluster>_REPLY_TOPIC`, which nobody reads. If the client does not confirm the reply, the replier
gets an error and may send it again: the requester recognises it by its correlation id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.broker.groups.reply_delivery import Reply
from cluster.broker.groups.reply_notes import ttl_of
from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import ClientAnswer, ClientRequest
from cluster.remoting.answers import refuse, refusing
from cluster.remoting.handlers.send import SendHeader, send_header_of
from cluster.remoting.request import Handlers, party_of
from raftmq_wire.codec import CodecError
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.properties import parse_properties

if TYPE_CHECKING:
    from cluster.broker.groups.reply_delivery import ReplyDelivery
    from cluster.broker.groups.reply_notes import ReplyNotes
    from cluster.broker.services import Services
    from cluster.remoting.connection.frame import Frame
    from cluster.remoting.request import Request

REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
CORRELATION_ID = "CORRELATION_ID"
TTL = "TTL"


class RequesterNotes:
    """Records, for sends over this node's own connections, which client waits for a reply."""

    def __init__(self, notes: ReplyNotes) -> None:
        self._notes = notes

    def note(self, frame: Frame, text: str) -> None:
        """Records the requester if a send of this node's own client asks for a reply. `text`: the properties of the
        send."""
        if frame.path.forwarded:
            return
        properties = parse_properties(text)
        client_id = properties.get(REPLY_TO_CLIENT)
        if client_id:
            correlation_id, ttl_ms = properties.get(CORRELATION_ID, ""), ttl_of(properties.get(TTL, ""))
            self._notes.note(client_id, correlation_id, ttl_ms, frame.user, frame.path)


class Replies:
    """Handles replies to requesters (324, 325), on any node."""

    def __init__(self, services: Services, delivery: ReplyDelivery, own_address: str) -> None:
        """`own_address` is the "ip:port" of this node, which the requester sees as storeHost."""
        self._services = services
        self._delivery = delivery
        self._own_address = own_address

    def codes(self) -> Handlers:
        """Returns request code -> its handler."""
        handler = refusing(self._push)
        return {
            RequestCode.SEND_REPLY_MESSAGE: handler,
            RequestCode.SEND_REPLY_MESSAGE_V2: handler,
        }

    def _push(self, request: Request) -> None:
        header = self._checked(request)
        properties = parse_properties(header.properties)
        client_id = properties.get(REPLY_TO_CLIENT)
        if not client_id:
            raise Refused(Reason.MESSAGE_ILLEGAL, f"reply message properties[{REPLY_TO_CLIENT}] is null")

        def answer(outcome: ClientAnswer | Refused) -> None:
            if isinstance(outcome, Refused):
                absent = outcome.reason is Reason.NO_CONSUMER
                remark = f"channel of <{client_id[:255]}> not found." if absent else outcome.remark
                busy = Reason.BUSY if outcome.reason is Reason.BUSY else Reason.ERROR
                refuse(request, Refused(busy, f"push reply message fail, {remark}"))
            elif outcome.code != ResponseCode.SUCCESS:
                remark = f"push reply message to {client_id[:255]} fail: {outcome.code} {outcome.remark[:500]}"
                refuse(request, Refused(Reason.ERROR, remark))
            else:
                request.reply(
                    ResponseCode.SUCCESS,
                    ext={
                        "msgId": "0",
                        "queueId": str(max(header.queue_id, 0)),
                        "queueOffset": "0",
                        "MSG_REGION": "DefaultRegion",
                        "TRACE_ON": "true",
                    },
                )

        correlation_id, ttl_ms = properties.get(CORRELATION_ID, ""), ttl_of(properties.get(TTL, ""))
        pushed = self._pushed(request, header)
        self._delivery.deliver(Reply(client_id, correlation_id, ttl_ms, party_of(request), pushed), answer)

    def _checked(self, request: Request) -> SendHeader:
        """Returns the header of a reply. Raises Refused if its body or its properties exceed the limits of a message,
        or if the header is malformed."""
        limits = self._services.config.limits
        if len(request.body) > limits.message_bytes_max:
            remark = f"the reply has {len(request.body)} bytes, limits.message_bytes_max = {limits.message_bytes_max}"
            raise Refused(Reason.MESSAGE_ILLEGAL, remark)
        try:
            header = send_header_of(request.code, request.ext)
            size = len(header.properties.encode())
            if size > limits.properties_bytes_max:
                remark = (
                    f"the properties have {size} bytes, limits.properties_bytes_max = {limits.properties_bytes_max}"
                )
                raise Refused(Reason.MESSAGE_ILLEGAL, remark)
        except (CodecError, UnicodeEncodeError) as error:
            raise Refused(Reason.INVALID, str(error)) from None
        return header

    def _pushed(self, request: Request, header: SendHeader) -> ClientRequest:
        """Makes the request 326 (ReplyMessageRequestHeader). Its times are log time, as far as this node has
        applied."""
        ip, port = request.connection.peer_address
        now_ms = str(self._services.state.applied_mark.timestamp_ms)
        properties = header.properties
        if properties and not properties.endswith("\x02"):
            properties += "\x02"
        ext = {
            "producerGroup": header.producer_group,
            "topic": header.topic,
            "defaultTopic": header.default_topic,
            "defaultTopicQueueNums": str(header.default_queues),
            "queueId": str(header.queue_id),
            "sysFlag": str(header.sys_flag),
            "bornTimestamp": str(header.born_ms),
            "flag": str(header.message_flag),
            "properties": f"{properties}PUSH_REPLY_TIME\x01{now_ms}\x02",
            "reconsumeTimes": str(header.reconsume_times or 0),
            "unitMode": "false",
            "bornHost": f"{ip}:{port}",
            "storeHost": self._own_address,
            "storeTimestamp": now_ms,
        }
        return ClientRequest(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext, request.body)

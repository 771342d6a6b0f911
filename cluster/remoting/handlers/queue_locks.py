"""Handles LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42): locks of queues, with which one client of a group consumes a
queue in order.

Body of both: `{"consumerGroup", "clientId", "mqSet": [{"topic", "brokerName", "queueId"}, ...]}`; 41 is answered with
`{"lockOKMQSet": [...]}`, its queues as the client named them. Clients ask every 20 s, at the broker whose name the
queue carries. Whichever node that is, the leader answers (RocketMQ: AdminBrokerProcessor.lockBatchMQ).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from cluster.broker.groups.group_members import Members
from cluster.broker.groups.queue_locks import Granted, QueueLocks
from cluster.broker.name_rules import check_group_name
from cluster.broker.refusal import Reason, Refused
from cluster.remoting.answers import refuse, refusing, reply_written
from cluster.remoting.forward.requesting_clients import gives_up, standing_of
from cluster.runtime import metered_json
from cluster.runtime.request_limits import ClientId, GroupName, TopicName, Unsigned31
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.json_text import MALFORMED
from statemachine.consuming.queue_locks import QUEUES_MAX
from statemachine.rows.keys import Queue

if TYPE_CHECKING:
    from cluster.remoting.request import Handlers, Request


class MessageQueue(msgspec.Struct, rename="camel"):
    """A queue as clients name it (RocketMQ's MessageQueue)."""

    topic: TopicName
    queue_id: Unsigned31
    broker_name: Annotated[str, msgspec.Meta(max_length=255)] = ""


class LockBody(msgspec.Struct, rename="camel"):
    """RocketMQ's LockBatchRequestBody and UnlockBatchRequestBody. `onlyThisBroker` is ignored."""

    consumer_group: GroupName
    client_id: ClientId
    mq_set: Annotated[list[MessageQueue], msgspec.Meta(max_length=QUEUES_MAX)] = []


_decode = metered_json.decoder(LockBody, strict=False)
_encode = metered_json.encode


class QueueLockRequests:
    """Handles LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42), on the leader."""

    def __init__(self, locks: QueueLocks, members: Members) -> None:
        self._locks = locks
        self._members = members

    def codes(self) -> Handlers:
        """Returns request code -> its handler."""
        return {
            RequestCode.LOCK_BATCH_MQ: refusing(self._lock),
            RequestCode.UNLOCK_BATCH_MQ: refusing(self._unlock),
        }

    def _lock(self, request: Request) -> None:
        body = _parse(request)
        named = self._named(body)

        def answer(granted: Granted | Refused) -> None:
            if isinstance(granted, Refused):
                refuse(request, granted)
                return
            rows = [queue for place, queues in named.items() if place in granted for queue in queues]
            request.reply(ResponseCode.SUCCESS, body=_encode({"lockOKMQSet": rows}))

        standing = standing_of(request, body.consumer_group, body.client_id, self._members)
        self._locks.lock(body.consumer_group, body.client_id, named, standing, answer, request.user)

    def _unlock(self, request: Request) -> None:
        body = _parse(request)
        group, client_id = body.consumer_group, body.client_id
        if not gives_up(request, group, client_id, self._members):
            remark = f"not unlocked: over this connection client {client_id} is not in group {group}"
            request.reply(ResponseCode.SUCCESS, remark)
            return
        self._locks.unlock(
            group, client_id, self._named(body), lambda result: reply_written(request, result), request.user
        )

    def _named(self, body: LockBody) -> dict[Queue, list[MessageQueue]]:
        """Decodes the queues of a body. Returns queue -> the client's names for it. Queues of unknown topics are left
        out, and no client gets their locks."""
        named: dict[Queue, list[MessageQueue]] = {}
        for queue in body.mq_set:
            topic_id = self._locks.topic_id(queue.topic)
            if topic_id is not None:
                named.setdefault((topic_id, queue.queue_id), []).append(queue)
        return named


def _parse(request: Request) -> LockBody:
    try:
        body = _decode(request.body)
    except MALFORMED as error:
        raise Refused(Reason.INVALID, f"the body is no list of queues to lock: {error}") from None
    check_group_name(body.consumer_group)
    if not body.client_id:
        raise Refused(Reason.INVALID, "the body has no clientId")
    return body

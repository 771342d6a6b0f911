"""Requests before consuming: the queues assigned to a client (400), and whether its filter is supported (46).

400 is sent by consumers that leave the choice of queues to the broker, POP consumers above all. There is no POP here:
the answer is mode PULL, RocketMQ's default, and the queues that the client would have chosen for itself by the same
strategy over the same sorted lists. The leader answers, so that all members of a group hear of the same members.
Source: RocketMQ's QueryAssignmentProcessor, AllocateMessageQueueAveragely, -AveragelyByCircle, ClientManageProcessor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from cluster.broker.group_members import BROADCASTING, Members
from cluster.broker.names import PERM_READ
from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import Services
from cluster.broker.subscription import check_expression
from cluster.remoting.answers import after_read_index, refusing
from cluster.remoting.heartbeat import SubscriptionData
from cluster.remoting.request import Handler, Request
from cluster.wire.codes import RequestCode, ResponseCode

_BROADCASTING_NAMES = (BROADCASTING, "0", 0)
_Body = TypeVar("_Body")


class Question(msgspec.Struct, rename="camel"):
    """Body of QUERY_ASSIGNMENT; `message_model` is a name or an ordinal."""

    topic: str
    consumer_group: str
    client_id: str = ""
    strategy_name: str | None = "AVG"
    message_model: str | int | None = "CLUSTERING"


class ClientCheck(msgspec.Struct, rename="camel"):
    """Body of CHECK_CLIENT_CONFIG."""

    subscription_data: SubscriptionData | None = None


_decode_question = msgspec.json.Decoder(Question, strict=False).decode
_decode_check = msgspec.json.Decoder(ClientCheck, strict=False).decode
_encode = msgspec.json.Encoder().encode


def averagely(queues: Sequence[int], clients: Sequence[str], client: str) -> list[int]:
    """Runs of neighbours, the first clients one more; [] for a client that is no member."""
    if client not in clients:
        return []
    index, (size, more) = clients.index(client), divmod(len(queues), len(clients))
    start = index * size + min(index, more)
    return list(queues[start : start + size + (index < more)])


def by_circle(queues: Sequence[int], clients: Sequence[str], client: str) -> list[int]:
    """Every n-th queue; [] for a client that is no member."""
    return list(queues[clients.index(client) :: len(clients)]) if client in clients else []


_STRATEGIES: dict[str, Callable[[Sequence[int], Sequence[str], str], list[int]]] = {
    "AVG": averagely,
    "AVG_BY_CIRCLE": by_circle,
}


class Assignments:
    """Handlers of 46 and 400."""

    def __init__(self, services: Services, members: Members) -> None:
        self._services = services
        self._members = members

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler; 400 is the leader's."""
        return {
            RequestCode.QUERY_ASSIGNMENT: refusing(self._query),
            RequestCode.CHECK_CLIENT_CONFIG: refusing(_check_client),
        }

    def _query(self, request: Request) -> None:
        question = _parse(request.body, _decode_question, "QueryAssignmentRequestBody")

        def answer(request: Request) -> None:
            request.reply(ResponseCode.SUCCESS, body=_encode({"messageQueueAssignments": self._assigned(question)}))

        after_read_index(self._services, request, answer)

    def _assigned(self, question: Question) -> list[dict[str, Any]] | None:
        """The client's queues; None, which has it change nothing, if that cannot be said."""
        topic = self._services.state.topics.get(question.topic)
        if topic is None or not topic.perm & PERM_READ:
            return None
        queues: Sequence[int] = range(topic.read_queues)
        if question.message_model not in _BROADCASTING_NAMES:
            strategy = _STRATEGIES.get(question.strategy_name or "")
            clients = self._members.consumer_ids(question.consumer_group)
            if strategy is None or not clients:
                return None
            queues = strategy(queues, clients, question.client_id)
        name = self._services.config.cluster.broker_name
        return [
            {"messageQueue": {"brokerName": name, "queueId": queue_id, "topic": topic.name}, "mode": "PULL"}
            for queue_id in queues
        ]


def _check_client(request: Request) -> None:
    """Refuses filters that would never match, before the consumer starts."""
    if request.body:
        data = _parse(request.body, _decode_check, "CheckClientRequestBody").subscription_data
        if data is not None:
            check_expression(data.expression_type)
    request.reply(ResponseCode.SUCCESS)


def _parse(body: bytes, decode: Callable[[bytes], _Body], name: str) -> _Body:
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(Reason.INVALID, f"body is not {name} JSON: {error}") from None

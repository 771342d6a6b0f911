"""Handles the requests that consumers send before they consume: for the queues assigned to a client (400), and for the
check of its filter (46).

400 is sent by consumers that leave the choice of queues to the broker, above all POP consumers. RaftMQ has no POP: the
answer is mode PULL, RocketMQ's default. It takes into account the queues and members in all groups of brokers that have
the topic (docs/adr/0111). Source: RocketMQ's QueryAssignmentProcessor, ClientManageProcessor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from cluster.broker.filters.known_filters import UNKNOWN, KnownFilters
from cluster.broker.groups.assignment import STRATEGIES, assigned_places, queue_at, read_queues
from cluster.broker.groups.consumer_group import BROADCASTING
from cluster.broker.groups.group_members import Members
from cluster.broker.groups.other_members import OtherMembers
from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import Services, begin_steps
from cluster.remoting.answers import in_steps, refuse, refusing
from cluster.remoting.handlers.heartbeat import SubscriptionData
from cluster.remoting.request import Handlers, Request
from cluster.runtime import metered_json
from cluster.runtime.turns.work import WorkSteps
from raftlog.work import ITEM_UNITS, charge, charge_bytes
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.json_text import MALFORMED

if TYPE_CHECKING:
    from cluster.placement.route_map import BrokerGroup

PIECE = 256
"""Queues that one step encodes."""
_BROADCASTING_NAMES = (BROADCASTING, "0", 0)
_Body = TypeVar("_Body")


class AssignmentQuery(msgspec.Struct, rename="camel"):
    """Body of QUERY_ASSIGNMENT; `message_model` is a name or an ordinal."""

    topic: str
    consumer_group: str
    client_id: str = ""
    strategy_name: str | None = "AVG"
    message_model: str | int | None = "CLUSTERING"


class ClientCheck(msgspec.Struct, rename="camel"):
    """Body of CHECK_CLIENT_CONFIG."""

    subscription_data: SubscriptionData | None = None


_decode_question = metered_json.decoder(AssignmentQuery, strict=False)
_decode_check = metered_json.decoder(ClientCheck, strict=False)
_encode = metered_json.encode


class Assignments:
    """Handles filter checks (46) and requests for assigned queues (400)."""

    def __init__(self, services: Services, members: Members, others: OtherMembers, filters: KnownFilters) -> None:
        self._services = services
        self._members = members
        self._others = others
        self._filters = filters

    def codes(self) -> Handlers:
        """Returns request code -> its handler; 400 is answered by the leader only."""
        return {
            RequestCode.QUERY_ASSIGNMENT: refusing(self._query),
            RequestCode.CHECK_CLIENT_CONFIG: refusing(self._check_client),
        }

    def _query(self, request: Request) -> None:
        question = _parse(request.body, _decode_question, "QueryAssignmentRequestBody")
        in_steps(self._services, request, self._answer(request, question))

    def _answer(self, request: Request, question: AssignmentQuery) -> WorkSteps:
        """Makes the answer to 400, step by step. If it contains null, the client changes nothing."""
        placed = read_queues(self._services, question.topic)
        group = self._members.consumers.get(question.consumer_group)
        share = STRATEGIES.get(question.strategy_name or "")
        if placed is None:
            _reply_nothing(request)
            return
        queues = sum(count for _, count in placed)
        if question.message_model in _BROADCASTING_NAMES:
            yield from self._reply(request, question.topic, placed, range(queues))
            return
        if share is None or group is None:
            _reply_nothing(request)
            return

        def divided(others: Iterable[str]) -> WorkSteps:
            found = assigned_places(group, others, question.client_id, question.topic, share, queues)
            return self._reply(request, question.topic, placed, found)

        def heard(others: set[str] | None) -> None:
            if others is None:
                _reply_nothing(request)
            else:
                in_steps(self._services, request, divided(others))

        ask = self._others.to_ask(group)
        if ask:
            self._others.ask(question.consumer_group, ask, heard)
        else:
            yield from divided(())

    def _reply(
        self, request: Request, topic: str, placed: Sequence[tuple[BrokerGroup, int]], places: Sequence[int]
    ) -> WorkSteps:
        pieces = []
        for at in range(0, len(places), PIECE):
            piece = places[at : at + PIECE]
            charge(ITEM_UNITS * len(piece))
            found = [queue_at(placed, place) for place in piece]
            rows = [
                {"messageQueue": {"brokerName": name, "queueId": queue_id, "topic": topic}, "mode": "PULL"}
                for name, queue_id in found
            ]
            pieces.append(_encode(rows)[1:-1])
            yield
        charge_bytes(sum(map(len, pieces)))
        request.reply(ResponseCode.SUCCESS, body=b'{"messageQueueAssignments":[%b]}' % b",".join(pieces))

    def _check_client(self, request: Request) -> None:
        """Refuses an invalid filter before the consumer starts."""
        data = _parse(request.body, _decode_check, "CheckClientRequestBody").subscription_data if request.body else None
        if data is None or self._filters.get(data.expression_type, data.sub_string) is not UNKNOWN:
            request.reply(ResponseCode.SUCCESS)
        else:
            steps = self._learn(request, data.expression_type, data.sub_string)
            begin_steps(self._services.turns, request.connection, steps)

    def _learn(self, request: Request, kind: str | None, text: str | None) -> WorkSteps:
        yield from self._filters.learn(kind, text)
        try:
            self._filters.get(kind, text)
        except Refused as refused:
            refuse(request, refused)
        else:
            request.reply(ResponseCode.SUCCESS)


def _reply_nothing(request: Request) -> None:
    request.reply(ResponseCode.SUCCESS, body=b'{"messageQueueAssignments":null}')


def _parse(body: bytes, decode: Callable[[bytes], _Body], name: str) -> _Body:
    try:
        return decode(body)
    except MALFORMED as error:
        raise Refused(Reason.INVALID, f"body is not {name} JSON: {error}") from None

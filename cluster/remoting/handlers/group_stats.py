"""Answers operators' tools about consumer groups: connected members (203), progress (208), groups of a topic (300).

Bodies are the JSON of RocketMQ's ConsumerConnection, ConsumeStats (whose keys are objects) and GroupList. Rates are not
measured per group: consumeTps is 0.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from cluster.broker.groups.consumer_group import Member
from cluster.broker.groups.group_admin import GroupProgress, GroupReads
from cluster.broker.groups.group_members import Members
from cluster.broker.name_rules import check_group_name
from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import Services
from cluster.remoting.answers import BodySteps, answer_in_steps, refusing, table_body
from cluster.remoting.request import Handlers, Request, text
from cluster.runtime import metered_json
from raftmq_wire.codec import LANGUAGES
from raftmq_wire.codes import RequestCode

if TYPE_CHECKING:
    from cluster.broker.groups.consumer_group import ConsumerGroup
    from cluster.broker.groups.group_members import ProducerGroup

_encode = metered_json.encode


SORTED_MAX = 4_000


class GroupStats:
    """Handles requests for connected members (203), progress (208) and the groups of a topic (300)."""

    def __init__(self, services: Services, members: Members, groups: GroupReads) -> None:
        self._services = services
        self._members = members
        self._groups = groups

    def codes(self) -> Handlers:
        """Returns request code -> its handler."""
        return {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: refusing(self._connections),
            RequestCode.GET_CONSUME_STATS: refusing(self._stats),
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: refusing(self._groups_of),
        }

    def _connections(self, request: Request) -> None:
        """Answers with the connected consumers of a group. Every node knows all of them, because consumers send
        heartbeats to each node. Raises Refused if none is connected."""
        group = text(request, "consumerGroup")
        found = self._members.consumers.get(group)
        if found is None:
            raise Refused(Reason.NO_CONSUMER, f"the consumer group[{group[:120]}] not online")
        rest = {
            "consumeFromWhere": found.consume_from_where,
            "consumeType": found.consume_type,
            "messageModel": found.message_model,
            "subscriptionTable": {
                row.topic: {
                    "classFilterMode": False,
                    "codeSet": [],
                    "expressionType": row.expression_type,
                    "subString": row.sub_string,
                    "subVersion": row.version,
                    "tagsSet": [],
                    "topic": row.topic,
                }
                for row in found.subscriptions.values()
            },
        }
        members = in_order(found)
        steps = table_body(b'{"connectionSet":[', members, connection_row, b"]," + _encode(rest)[1:])
        answer_in_steps(self._services, request, steps)

    def _stats(self, request: Request) -> None:
        group = text(request, "consumerGroup")
        check_group_name(group)
        rows = self._groups.progress(group, request.ext.get("topic", ""))
        steps = table_body(b'{"consumeTps":0.0,"offsetTable":{', rows, self._row, b"}}")
        answer_in_steps(self._services, request, steps)

    def _row(self, row: GroupProgress) -> bytes:
        """Encodes one row of the table, `queue: offsets`."""
        queue = {
            "brokerName": self._services.routes.group_of(row.topic).name,
            "queueId": row.queue_id,
            "topic": row.topic,
        }
        values = {
            "brokerOffset": row.max_offset,
            "consumerOffset": row.offset,
            "lastTimestamp": row.store_ms,
            "pullOffset": row.offset,
        }
        return _encode(queue) + b":" + _encode(values)

    def _groups_of(self, request: Request) -> None:
        answer_in_steps(self._services, request, self._readers(text(request, "topic")))

    def _readers(self, topic: str) -> BodySteps:
        groups = yield from self._groups.readers(topic)
        return _encode({"groupList": groups})


def in_order(group: ProducerGroup | ConsumerGroup) -> list[Member]:
    """Returns the members of a group, sorted by client id. Above SORTED_MAX members they are not sorted, because that
    would block the event loop."""
    members = list(group.values())
    return sorted(members, key=attrgetter("client_id", "user")) if len(members) <= SORTED_MAX else members


def connection_row(member: Member) -> bytes:
    """Encodes a client as RocketMQ's Connection JSON."""
    return _encode(connection_fields(member))


def connection_fields(member: Member) -> dict[str, Any]:
    """Returns the fields of RocketMQ's Connection JSON for a client."""
    ip, port = member.connection.peer_address
    return {
        "clientAddr": f"{ip}:{port}",
        "clientId": member.client_id,
        "language": member.language if member.language in LANGUAGES else "OTHER",
        "version": member.version,
    }

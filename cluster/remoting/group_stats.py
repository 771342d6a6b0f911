"""What operators' tools ask of consumer groups: who is connected (203), how far it is (208), who reads a topic (300).

Bodies are the JSON of RocketMQ's ConsumerConnection, ConsumeStats (whose keys are objects) and GroupList. Rates are not
measured per group: consumeTps is 0.
"""

from __future__ import annotations

from typing import Any

import msgspec

from cluster.broker.group_members import Member, Members
from cluster.broker.names import check_group_name, no_topic
from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import Services
from cluster.remoting.answers import after_read_index, refusing
from cluster.remoting.fields import text
from cluster.remoting.request import Handler, Request
from cluster.wire.codec import LANGUAGES
from cluster.wire.codes import RequestCode, ResponseCode
from statemachine.topics import TopicConfig

ROWS_MAX = 10_000
"""Queues in one answer to 208: what the loop looks up in a tenth of a second."""

_encode = msgspec.json.Encoder().encode


class GroupStats:
    """Handlers of 203, 208 and 300."""

    def __init__(self, services: Services, members: Members) -> None:
        self._services = services
        self._members = members

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler; 208 and 300 are the leader's."""
        return {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: refusing(self._connections),
            RequestCode.GET_CONSUME_STATS: refusing(self._stats),
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: refusing(self._groups_of),
        }

    def _connections(self, request: Request) -> None:
        """Every node knows all consumers: they send heartbeats to each."""
        group = text(request, "consumerGroup")
        found = self._members.consumers.get(group)
        if found is None:
            raise Refused(Reason.NO_CONSUMER, f"the consumer group[{group[:120]}] not online")
        body = {
            "connectionSet": [_connection(found.members[name]) for name in sorted(found.members)],
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
        request.reply(ResponseCode.SUCCESS, body=_encode(body))

    def _stats(self, request: Request) -> None:
        group = text(request, "consumerGroup")
        check_group_name(group)
        wanted = request.ext.get("topic", "")

        def answer(request: Request) -> None:
            rows = self._rows(group, wanted)
            body = b'{"consumeTps":0.0,"offsetTable":{%b}}' % b",".join(rows)
            request.reply(ResponseCode.SUCCESS, body=body)

        # Commits on their way count: a group that has just caught up must not seem behind.
        self._services.settle_offsets(group, lambda: after_read_index(self._services, request, answer))

    def _rows(self, group: str, wanted: str) -> list[bytes]:
        """`queue: offsets` of each queue of the topics that the group reads. Raises Refused."""
        state = self._services.state
        config = state.groups.get(group)
        if config is None:
            raise Refused(Reason.NO_GROUP, f"consumer group {group} does not exist")
        offsets = {(topic_id, queue_id): offset for topic_id, queue_id, offset in state.offsets_of_group(group)}
        topics = {state.topics_by_id[topic_id].name for topic_id, _ in offsets if topic_id in state.topics_by_id}
        topics |= config.subscriptions.keys() & state.topics.keys()
        if wanted:
            topics &= {wanted}
        known = [state.topics[name] for name in sorted(topics)]
        if sum(topic.read_queues for topic in known) > ROWS_MAX:
            remark = f"group {group} reads more than {ROWS_MAX} queues; ask for one topic"
            raise Refused(Reason.ERROR, remark)
        return [
            self._row(topic, queue_id, offsets.get((topic.id, queue_id)))
            for topic in known
            for queue_id in range(topic.read_queues)
        ]

    def _row(self, topic: TopicConfig, queue_id: int, offset: int | None) -> bytes:
        """A queue that was never committed is behind by all that is in it."""
        state = self._services.state
        first, end = state.min_offset(topic.id, queue_id), state.max_offset(topic.id, queue_id)
        at = first if offset is None else max(first, min(offset, end))
        last = state.fetch(topic.id, queue_id, at - 1, 1) if first < at else []
        queue = {"brokerName": self._services.config.cluster.broker_name, "queueId": queue_id, "topic": topic.name}
        values = {
            "brokerOffset": end,
            "consumerOffset": at,
            "lastTimestamp": last[0].store_time_ms if last else 0,
            "pullOffset": at,
        }
        return _encode(queue) + b":" + _encode(values)

    def _groups_of(self, request: Request) -> None:
        name = text(request, "topic")

        def answer(request: Request) -> None:
            state = self._services.state
            topic = state.topics.get(name)
            if topic is None:
                raise no_topic(name[:255])
            groups = {group for group, config in state.groups.items() if name in config.subscriptions}
            groups |= {group for group, found in self._members.consumers.items() if name in found.subscriptions}
            for group in state.groups.keys() - groups:
                if any(topic_id == topic.id for topic_id, _, _ in state.offsets_of_group(group)):
                    groups.add(group)
            request.reply(ResponseCode.SUCCESS, body=_encode({"groupList": sorted(groups)}))

        after_read_index(self._services, request, answer)


def _connection(member: Member) -> dict[str, Any]:
    ip, port = member.connection.peer_address
    return {
        "clientAddr": f"{ip}:{port}",
        "clientId": member.client_id,
        "language": member.language if member.language in LANGUAGES else "OTHER",
        "version": member.version,
    }

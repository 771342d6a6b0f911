"""What operators' tools ask of a broker: configuration (26), figures (28), offsets of a topic (202), producers (204).

Bodies are the JSON of RocketMQ's KVTable, TopicStatsTable (whose keys are objects) and ProducerConnection. Rates are
not measured per topic: topicPutTps is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from cluster.broker.group_members import Members
from cluster.broker.names import topic_named
from cluster.broker.old_pulls import first_offset
from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import Services
from cluster.remoting.answers import after_read_index, refusing
from cluster.remoting.broker_settings import broker_settings
from cluster.remoting.fields import text
from cluster.remoting.group_stats import connection_row, in_order
from cluster.remoting.list_answers import answer_in_steps, table_body
from cluster.remoting.request import Handler, Request
from cluster.runtime import metered_json
from cluster.wire.codes import RequestCode, ResponseCode

QUEUES_MAX = 10_000
"""In one answer of 202: what the loop looks up in a tenth of a second."""

Figures = Callable[[], Mapping[str, str]]
"""The node's, by RocketMQ's names."""

_encode = metered_json.encode


CONFIG_VERSION = '{"counter":1,"stateVersion":0,"timestamp":0}'
"""RocketMQ's DataVersion, which its tools demand and do not look at."""


class BrokerFigures:
    """Handlers of 26, 28, 202 and 204."""

    def __init__(self, services: Services, members: Members, figures: Figures) -> None:
        self._services = services
        self._members = members
        self._figures = figures

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler; 202 is the leader's, the others are about the node that is asked."""
        return {
            RequestCode.GET_BROKER_CONFIG: self._config,
            RequestCode.GET_BROKER_RUNTIME_INFO: self._runtime_info,
            RequestCode.GET_TOPIC_STATS_INFO: refusing(self._topic_stats),
            RequestCode.GET_PRODUCER_CONNECTION_LIST: refusing(self._producers),
        }

    def _config(self, request: Request) -> None:
        request.reply(ResponseCode.SUCCESS, None, {"version": CONFIG_VERSION}, broker_settings(self._services.config))

    def _runtime_info(self, request: Request) -> None:
        request.reply(ResponseCode.SUCCESS, body=_encode({"table": dict(self._figures())}))

    def _topic_stats(self, request: Request) -> None:
        name = text(request, "topic")

        def answer(request: Request) -> None:
            topic = topic_named(self._services.state, name)
            if topic.queues > QUEUES_MAX:
                raise Refused(Reason.ERROR, f"topic {name} has {topic.queues} queues, {QUEUES_MAX} fit one answer")
            queues, row = range(topic.queues), partial(self._row, name, topic.id)
            steps = table_body(b'{"offsetTable":{', queues, row, b'},"topicPutTps":0.0}')
            answer_in_steps(self._services, request, steps)

        after_read_index(self._services, request, answer)

    def _row(self, topic: str, topic_id: int, queue_id: int) -> bytes:
        """`queue: offsets`."""
        state = self._services.state
        first, end = first_offset(state, topic_id, queue_id), state.max_offset(topic_id, queue_id)
        last = state.fetch(topic_id, queue_id, end - 1, 1) if first < end else []
        queue = {"brokerName": self._services.config.cluster.broker_name, "queueId": queue_id, "topic": topic}
        offsets = {
            "lastUpdateTimestamp": last[0].store_time_ms if last else 0,
            "maxOffset": end,
            "minOffset": first,
        }
        return _encode(queue) + b":" + _encode(offsets)

    def _producers(self, request: Request) -> None:
        """Those that send heartbeats to this node: a producer does so to the brokers whose routes it has."""
        group = text(request, "producerGroup")
        members = self._members.producers.get(group)
        if not members:  # RocketMQ's words and code
            raise Refused(Reason.ERROR, f"the producer group[{group[:120]}] not exist")
        steps = table_body(b'{"connectionSet":[', in_order(members), connection_row, b"]}")
        answer_in_steps(self._services, request, steps)

"""Rows of the name server's key-value table as tools put and delete them (100, 102).

There is one namespace, ORDER_TOPIC_CONFIG: which queues producers of an ordered topic use, `name:queues;...`. Its rows
are not stored. They follow from the topics (`cluster.remoting.route`), so that putting one means that the topic is
ordered, and deleting it that it is not. A row that says anything else than what will be shown is refused.
"""

from __future__ import annotations

from cluster.broker.names import topic_named
from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import Services
from cluster.broker.topics import Topics
from cluster.remoting.answers import refusing, reply_written
from cluster.remoting.fields import text
from cluster.remoting.request import Handler, Request
from cluster.remoting.route import ORDER_TOPIC_CONFIG
from cluster.wire.codes import RequestCode, ResponseCode
from statemachine.topics import TopicConfig


class OrderConf:
    """Handlers of 100 and 102; the leader's."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._topics = Topics(services)

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            RequestCode.PUT_KV_CONFIG: refusing(self._put),
            RequestCode.DELETE_KV_CONFIG: refusing(self._delete),
        }

    def _put(self, request: Request) -> None:
        name, value = _key(request), text(request, "value")
        topic = topic_named(self._services.state, name)
        self._check(topic, value, request.connection.listener)
        self._set(request, topic, order=True)

    def _delete(self, request: Request) -> None:
        topic = self._services.state.topics.get(_key(request))
        if topic is None:
            request.reply(ResponseCode.SUCCESS)
        else:
            self._set(request, topic, order=False)

    def _set(self, request: Request, topic: TopicConfig, *, order: bool) -> None:
        if topic.order == order:
            request.reply(ResponseCode.SUCCESS)
        else:
            self._topics.put({"name": topic.name, "order": order}, lambda result: reply_written(request, result))

    def _check(self, topic: TopicConfig, value: str, listener: str) -> None:
        """Raises Refused unless each part is a broker name of this cluster and the number of the topic's queues."""
        group = self._services.config.cluster.broker_name
        names = {group, *(f"{group}-{node}" for node in self._services.broker_addresses(listener))}
        for part in value.split(";"):
            name, _, queues = part.strip().rpartition(":")
            if name not in names:
                remark = f"{part[:80]!r} is not broker:queues with one of the brokers {', '.join(sorted(names))}"
                raise Refused(Reason.INVALID, remark)
            if queues != str(topic.write_queues):
                remark = (
                    f"{part[:80]!r}: topic {topic.name} has {topic.write_queues} queues for producers; change their "
                    "number with updateTopic -w"
                )
                raise Refused(Reason.INVALID, remark)


def _key(request: Request) -> str:
    """The row's topic. Raises Refused if the row is of another namespace."""
    namespace = text(request, "namespace")
    if namespace != ORDER_TOPIC_CONFIG:
        remark = f"the key-value table has the namespace {ORDER_TOPIC_CONFIG} alone, not {namespace[:80]}"
        raise Refused(Reason.INVALID, remark)
    return text(request, "key")

"""The needs of each request: which topics, groups or cluster it touches, and which actions on them suffice.

As in RocketMQ 5.3, with a few exceptions that are stricter: a message that is looked up by its position needs Get on
the cluster, because the topic that the client names may be another one; the end of a transaction must name its topic.
A code without a row needs a Super. Of `Cluster` resources, the name is that of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from cluster.broker.refusal import Reason, Refused
from cluster.runtime import metered_json
from raftmq_wire.codes import RequestCode
from raftmq_wire.json_text import MALFORMED
from statemachine.access.rules import Action, Kind, Need

RETRY, DLQ = "%RETRY%", "%DLQ%"
DEFAULT_TOPICS: Final = frozenset({"TBW102", "AUTO_CREATE_TOPIC_KEY"})
"""Producers ask for the route of one before they create a topic."""
PUB, SUB = (Action.PUB,), (Action.SUB,)
READ, WRITE = (Action.SUB, Action.GET), (Action.SUB, Action.UPDATE)
ROUTE = (Action.PUB, Action.SUB, Action.GET)
GET, CREATE, UPDATE, DELETE, LIST = (Action.GET,), (Action.CREATE,), (Action.UPDATE,), (Action.DELETE,), (Action.LIST,)
MANAGES: Final = frozenset({Action.CREATE, Action.UPDATE, Action.DELETE})
Ext = Mapping[str, str]
Row = Callable[[Ext, bytes, str], Iterator[Need]]
"""(ext fields, body, name of the cluster) -> needs."""


def topic(name: str, actions: tuple[Action, ...]) -> Need:
    """Need of a topic. A group's retry topic is the group's; so are its dead letters, but for those who send some."""
    on = actions if MANAGES.issuperset(actions) else SUB
    if name.startswith(RETRY):
        return Need(Kind.GROUP, name.removeprefix(RETRY), on)
    if name.startswith(DLQ) and actions != PUB:
        return Need(Kind.GROUP, name.removeprefix(DLQ), on)
    return Need(Kind.TOPIC, name, actions)


def group(name: str, actions: tuple[Action, ...]) -> Need:
    """Need of a group."""
    return Need(Kind.GROUP, name.removeprefix(RETRY), actions)


def pull_needs(topic_name: str, group_name: str) -> list[Need]:
    """Needs of a pull."""
    return [topic(topic_name, SUB), group(group_name, SUB)]


def _row(*, topics: str = "", groups: str = "", on: tuple[Action, ...] = ()) -> Row:
    """`topics`, `groups`: the ext field that names one; `on`: the actions."""

    def needs(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
        if topics:
            yield topic(ext.get(topics, ""), on)
        if groups:
            yield group(ext.get(groups, ""), on)

    return needs


def _cluster(on: tuple[Action, ...]) -> Row:
    def needs(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
        yield Need(Kind.CLUSTER, cluster, on)

    return needs


def _user_alone(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
    """Any user."""
    yield from ()


def _route(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
    name = ext.get("topic", "")
    if name not in DEFAULT_TOPICS:
        yield topic(name, ROUTE)


def _unregister(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
    if name := ext.get("consumerGroup"):
        yield group(name, (Action.PUB, Action.SUB))


def _send_back(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
    yield group(ext.get("group", ""), SUB)
    if name := ext.get("originTopic"):
        yield topic(name, SUB)


def _clone(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
    yield group(ext.get("srcGroup", ""), GET)
    yield group(ext.get("destGroup", ""), UPDATE)
    if name := ext.get("topic"):
        yield topic(name, UPDATE)


class _Subscription(msgspec.Struct, rename="camel", gc=False):
    topic: str = ""


class _Consumer(msgspec.Struct, rename="camel", gc=False):
    group_name: str = ""
    subscription_data_set: list[_Subscription] | None = None


class _Heartbeat(msgspec.Struct, rename="camel", gc=False):
    consumer_data_set: list[_Consumer] | None = None


class _Queue(msgspec.Struct, rename="camel", gc=False):
    topic: str = ""


class _Locks(msgspec.Struct, rename="camel", gc=False):
    consumer_group: str = ""
    mq_set: list[_Queue] = []


class _Named(msgspec.Struct, rename="camel", gc=False):
    topic: str = ""
    consumer_group: str = ""
    group: str = ""
    group_name: str = ""


_heartbeat = metered_json.decoder(_Heartbeat, strict=False)
_locks = metered_json.decoder(_Locks, strict=False)
_named = metered_json.decoder(_Named, strict=False)


def _of_heartbeat(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
    for consumer in _heartbeat(body).consumer_data_set or ():
        yield group(consumer.group_name, SUB)
        for each in consumer.subscription_data_set or ():
            yield topic(each.topic, SUB)


def _of_locks(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
    named = _locks(body)
    yield group(named.consumer_group, SUB)
    for name in {queue.topic for queue in named.mq_set}:
        yield topic(name, SUB)


def _of_assignment(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
    named = _named(body)
    yield topic(named.topic, SUB)
    yield group(named.consumer_group, SUB)


def _of_new_group(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
    name = _named(body).group_name
    yield Need(Kind.GROUP, name, (Action.CREATE, Action.UPDATE))


ROWS: Final[dict[int, Row]] = {
    RequestCode.SEND_MESSAGE: _row(topics="topic", on=PUB),
    RequestCode.SEND_MESSAGE_V2: _row(topics="b", on=PUB),
    RequestCode.SEND_BATCH_MESSAGE: _row(topics="b", on=PUB),
    RequestCode.SEND_REPLY_MESSAGE: _row(topics="topic", on=PUB),
    RequestCode.SEND_REPLY_MESSAGE_V2: _row(topics="b", on=PUB),
    RequestCode.RECALL_MESSAGE: _row(topics="topic", on=PUB),
    RequestCode.END_TRANSACTION: _row(topics="topic", on=PUB),
    RequestCode.STAGE_MESSAGES: _row(topics="topic", on=PUB),
    RequestCode.CONSUMER_SEND_MSG_BACK: _send_back,
    RequestCode.PULL_MESSAGE: _row(topics="topic", groups="consumerGroup", on=SUB),
    RequestCode.LITE_PULL_MESSAGE: _row(topics="topic", groups="consumerGroup", on=SUB),
    RequestCode.QUERY_MESSAGE: _row(topics="topic", on=READ),
    RequestCode.QUERY_CONSUMER_OFFSET: _row(topics="topic", groups="consumerGroup", on=READ),
    RequestCode.UPDATE_CONSUMER_OFFSET: _row(topics="topic", groups="consumerGroup", on=WRITE),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _row(topics="topic", on=ROUTE),
    RequestCode.GET_MAX_OFFSET: _row(topics="topic", on=ROUTE),
    RequestCode.GET_MIN_OFFSET: _row(topics="topic", on=ROUTE),
    RequestCode.GET_EARLIEST_MSG_STORETIME: _row(topics="topic", on=ROUTE),
    RequestCode.HEART_BEAT: _of_heartbeat,
    RequestCode.UNREGISTER_CLIENT: _unregister,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _row(groups="consumerGroup", on=READ),
    RequestCode.LOCK_BATCH_MQ: _of_locks,
    RequestCode.UNLOCK_BATCH_MQ: _of_locks,
    RequestCode.QUERY_ASSIGNMENT: _of_assignment,
    RequestCode.CHECK_CLIENT_CONFIG: _user_alone,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _route,
    RequestCode.GET_KV_CONFIG: _user_alone,
    RequestCode.GET_BROKER_CLUSTER_INFO: _user_alone,
    RequestCode.UPDATE_AND_CREATE_TOPIC: _row(topics="topic", on=(Action.CREATE, Action.UPDATE)),
    RequestCode.DELETE_TOPIC_IN_BROKER: _row(topics="topic", on=DELETE),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: _row(topics="topic", on=DELETE),
    RequestCode.GET_TOPIC_CONFIG: _row(topics="topic", on=GET),
    RequestCode.GET_TOPIC_STATS_INFO: _row(topics="topic", on=GET),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _row(topics="topic", on=GET),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _of_new_group,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _row(groups="groupName", on=DELETE),
    RequestCode.GET_CONSUME_STATS: _row(groups="consumerGroup", on=GET),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _row(groups="consumerGroup", on=GET),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _row(groups="producerGroup", on=GET),
    RequestCode.GET_CONSUMER_RUNNING_INFO: _row(groups="consumerGroup", on=GET),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _row(groups="consumerGroup", on=UPDATE),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _row(topics="topic", groups="group", on=UPDATE),
    RequestCode.CLONE_GROUP_OFFSET: _clone,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _cluster(LIST),
    RequestCode.GET_TOPICS_BY_CLUSTER: _cluster(LIST),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: _cluster(LIST),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _cluster(LIST),
    RequestCode.GET_BROKER_CONFIG: _cluster(GET),
    RequestCode.GET_BROKER_RUNTIME_INFO: _cluster(GET),
    RequestCode.VIEW_MESSAGE_BY_ID: _cluster(GET),
    RequestCode.ENTRIES_AT: _cluster(GET),
    RequestCode.GET_KVLIST_BY_NAMESPACE: _cluster(GET),
    RequestCode.PUT_KV_CONFIG: _cluster(UPDATE),
    RequestCode.DELETE_KV_CONFIG: _cluster(UPDATE),
}
"""Request code -> its needs. Staged writes but for their messages have no row: a name of a write is nobody's yet."""


def needs_of(code: int, ext: Ext, body: bytes, cluster: str) -> Sequence[Need] | None:
    """The needs of a request; None: a Super. Raises Refused if its body cannot be read."""
    row = ROWS.get(code)
    if row is None:
        return None
    try:
        return list(row(ext, body, cluster))
    except MALFORMED as error:
        raise Refused(Reason.INVALID, f"the body of request {code} cannot be read: {error}") from None

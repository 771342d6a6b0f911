"""Computes the rights that a request needs from the topics, groups or cluster that it names, and the actions that
suffice on each.

Each row of the table of verbs has one of these functions as its `names` (`cluster.requests.verb.Verb`); there is no
default. The rights are those of RocketMQ 5.3 where a request names what it touches. The name of a `Cluster` resource is
that of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from cluster.broker.name_rules import AUTO_CREATE_NAMES, REPLY_SUFFIX
from cluster.broker.rights import PUB, SUB, UPDATE, group_need, topic_need
from cluster.requests.verb import Ext, NamedRights
from cluster.runtime import metered_json
from statemachine.access.rules import Action, Kind, Need

WRITE = (Action.SUB, Action.UPDATE)
ROUTE = (Action.PUB, Action.SUB, Action.GET)
GET, DELETE, LIST = (Action.GET,), (Action.DELETE,), (Action.LIST,)
PUT = (Action.CREATE, Action.UPDATE)


def pull_needs(topic_name: str, group_name: str) -> list[Need]:
    """Returns the rights that a pull needs: to consume from the topic, and to consume as the group."""
    return [topic_need(topic_name, SUB), group_need(group_name, SUB)]


def named(*, topics: str = "", groups: str = "", on: tuple[Action, ...] = ()) -> NamedRights:
    """Returns a function that yields the rights needed by a request. `topics` and `groups` are the names of the ext
    fields that hold the name of a topic or group, "" for none. Any one of the actions `on` suffices."""

    def needs(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
        if topics:
            yield topic_need(ext.get(topics, ""), on)
        if groups:
            yield group_need(ext.get(groups, ""), on)

    return needs


def on_cluster(on: tuple[Action, ...]) -> NamedRights:
    """Returns a function that yields the right on the cluster that a request needs. Any one of the actions `on`
    suffices."""

    def needs(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
        yield Need(Kind.CLUSTER, cluster, on)

    return needs


def nothing(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
    """Yields no needed right: any user may make the request."""
    yield from ()


def of_reply(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
    """Yields the right that a reply needs: to send to the cluster's reply topic. The topic that the reply names does
    not matter, because the reply goes to the client that asked."""
    yield topic_need(cluster + REPLY_SUFFIX, PUB)


def of_route(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
    name = ext.get("topic", "")
    if name not in AUTO_CREATE_NAMES:
        yield topic_need(name, ROUTE)


def of_counts(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
    """Yields the right that a request for statistics needs: to read the topic in its key. The key is a topic, or a
    topic followed by "@" and more."""
    yield topic_need(ext.get("statsKey", "").partition("@")[0], GET)


def of_unregistering(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
    if name := ext.get("consumerGroup"):
        yield group_need(name, (Action.PUB, Action.SUB))


def of_clone(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
    yield group_need(ext.get("srcGroup", ""), GET)
    yield group_need(ext.get("destGroup", ""), UPDATE)
    if name := ext.get("topic"):
        yield topic_need(name, UPDATE)


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


class _NamedSubjects(msgspec.Struct, rename="camel", gc=False):
    topic: str = ""
    consumer_group: str = ""
    group: str = ""
    group_name: str = ""


_heartbeat = metered_json.decoder(_Heartbeat, strict=False)
_locks = metered_json.decoder(_Locks, strict=False)
_named = metered_json.decoder(_NamedSubjects, strict=False)


def of_heartbeat(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
    for consumer in _heartbeat(body).consumer_data_set or ():
        yield group_need(consumer.group_name, SUB)
        for each in consumer.subscription_data_set or ():
            yield topic_need(each.topic, SUB)


def of_locks(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
    named = _locks(body)
    yield group_need(named.consumer_group, SUB)
    for name in {queue.topic for queue in named.mq_set}:
        yield topic_need(name, SUB)


def of_assignment(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
    named = _named(body)
    yield topic_need(named.topic, SUB)
    yield group_need(named.consumer_group, SUB)


def of_new_group(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
    name = _named(body).group_name
    yield Need(Kind.GROUP, name, PUT)

"""The rights that requests need: on which topics, groups or cluster, and which actions on them suffice.

Each code is registered with its needs by the part that serves it; there is no default.

The rights are those of RocketMQ 5.3 where a request names what it touches. A request that finds something by its
position, id, handle or attempt is judged by its handler, by what is stored there (`cluster.broker.rights`):
`Code.stored` says what that needs. A code that no part serves needs a Super (an administrator). The name of a `Cluster`
resource is that of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from cluster.broker.name_rules import AUTO_CREATE_NAMES
from cluster.broker.refusal import Reason, Refused
from cluster.broker.rights import SUB, group_need, topic_need
from cluster.remoting.request import Handler, too_long
from cluster.runtime import metered_json
from cluster.runtime.request_limits import TOPIC_LENGTH_MAX
from raftmq_wire.codes import RequestCode
from raftmq_wire.json_text import MALFORMED
from statemachine.access.rules import KIND_NAMES, Action, Kind, Need

WRITE = (Action.SUB, Action.UPDATE)
ROUTE = (Action.PUB, Action.SUB, Action.GET)
GET, UPDATE, DELETE, LIST = (Action.GET,), (Action.UPDATE,), (Action.DELETE,), (Action.LIST,)
PUT = (Action.CREATE, Action.UPDATE)
NAMES_MAX: Final = 2_048
"""The most topics and groups of one request that are judged. Judging is one piece of work of the event loop."""
NAME_LENGTH_MAX: Final = TOPIC_LENGTH_MAX
"""The most characters of a name that is judged: no topic and no group has a longer one."""
Ext = Mapping[str, str]
Row = Callable[[Ext, bytes, str], Iterator[Need]]
"""(ext fields, body, name of the cluster) -> needed rights."""


class Code(NamedTuple):
    """A request code as the part that serves it registers it (`cluster.runtime.service_lifecycle.Part.codes`)."""

    handler: Handler | None
    """The handler; None for sends, which the router passes on as they came
    (`cluster.remoting.handlers.send.SendHandler`)."""
    needs: Row
    """The rights that its sender needs, by what the request names."""
    stored: str = ""
    """The rights that its handler asks for once it has found what is stored, in words for docs/access-table.md; "" if
    the names in the request say all."""


Codes = Mapping[int, Code]
"""Request code -> its handler and needed rights."""


ADMINISTRATIVE: Final = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.CLONE_GROUP_OFFSET,
    }
)
"""Codes by which administrators, rather than producers and consumers, change topics, groups and offsets."""


def is_administrative(codes: Codes, code: int) -> bool:
    """Returns True for a code of administrators: one that only a Super may use, or that changes topics, groups or
    offsets."""
    served = codes.get(code)
    return code in ADMINISTRATIVE or (served is not None and served.needs is super_alone)


def pull_needs(topic_name: str, group_name: str) -> list[Need]:
    """Returns the needed rights of a pull."""
    return [topic_need(topic_name, SUB), group_need(group_name, SUB)]


def row(*, topics: str = "", groups: str = "", on: tuple[Action, ...] = ()) -> Row:
    """Makes the needs of a request. `topics` and `groups` are names of the ext fields that name a topic or group; `on`
    lists the actions."""

    def needs(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
        if topics:
            yield topic_need(ext.get(topics, ""), on)
        if groups:
            yield group_need(ext.get(groups, ""), on)

    return needs


def on_cluster(on: tuple[Action, ...]) -> Row:
    """Makes the needs of a request about the cluster. `on` lists the actions."""

    def needs(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
        yield Need(Kind.CLUSTER, cluster, on)

    return needs


def super_alone(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
    """Marks a code that only a Super may use. Never called, because no set of rights expresses that."""
    raise NotImplementedError


def user_alone(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
    """Marks a code that any user may use."""
    yield from ()


def of_route(ext: Ext, body: bytes, cluster: str) -> Iterator[Need]:
    name = ext.get("topic", "")
    if name not in AUTO_CREATE_NAMES:
        yield topic_need(name, ROUTE)


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


class _Named(msgspec.Struct, rename="camel", gc=False):
    topic: str = ""
    consumer_group: str = ""
    group: str = ""
    group_name: str = ""


_heartbeat = metered_json.decoder(_Heartbeat, strict=False)
_locks = metered_json.decoder(_Locks, strict=False)
_named = metered_json.decoder(_Named, strict=False)


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


def needs_of(codes: Codes, code: int, ext: Ext, body: bytes, cluster: str) -> Sequence[Need] | None:
    """Returns the needed rights of a request; None if only a Super may make it. Raises Refused if its body cannot be
    read, or names more than is judged."""
    served = codes.get(code)
    if served is None or served.needs is super_alone:
        return None
    if remark := too_long(code, len(body)):
        raise Refused(Reason.INVALID, remark)
    found: list[Need] = []
    try:
        for need in served.needs(ext, body, cluster):
            if len(need.name) > NAME_LENGTH_MAX:
                kind = KIND_NAMES[need.kind].lower()
                raise Refused(Reason.INVALID, f"a {kind} of {len(need.name)} characters; {NAME_LENGTH_MAX} are allowed")
            found.append(need)
            if len(found) > NAMES_MAX:
                remark = f"request {code} names more than {NAMES_MAX} topics and groups: send it in parts"
                raise Refused(Reason.INVALID, remark)
    except MALFORMED as error:
        raise Refused(Reason.INVALID, f"the body of request {code} cannot be read: {error}") from None
    return found

"""Handles heartbeats (34), unregistrations of clients (35) and requests for the list of a group's consumers (38).

34 and 35 concern the node that holds the connection and are never forwarded; the leader answers 38.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Annotated
from weakref import WeakKeyDictionary

import msgspec

from cluster.broker.filters.subscription import Subscription
from cluster.broker.groups.consumer_group import BROADCASTING, CLUSTERING, Member
from cluster.broker.groups.group_members import Members
from cluster.broker.groups.group_registration import GroupRegistration
from cluster.broker.groups.other_members import OtherMembers
from cluster.broker.groups.queue_locks import QueueLocks
from cluster.broker.name_rules import check_group_name
from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import Services
from cluster.remoting.answers import in_steps, refuse, refusing
from cluster.remoting.forward.requesting_clients import gives_up
from cluster.remoting.request import Handlers, Request, party_of, text
from cluster.replication.outcome import ProposeResult
from cluster.runtime import metered_json
from cluster.runtime.request_limits import (
    HEARTBEAT_GROUPS_MAX,
    HEARTBEAT_SUBSCRIPTIONS_MAX,
    ClientId,
    ExpressionText,
    GroupName,
    Signed64,
    TopicName,
    Unsigned31,
    Word,
)
from raftlog.work import ITEM_UNITS, charge, charge_bytes
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.json_text import MALFORMED
from statemachine.levels import BY_TOPIC_LEVEL

if TYPE_CHECKING:
    from cluster.broker.groups.consumer_group import ConsumerGroup


REMARK_MAX = 1_000
"""The most characters of the remark about groups in which a client was refused."""
GROUP_UNITS = 15
"""The cost of recording a client in one group, in units of `raftlog.work`."""
_MESSAGE_MODELS = (BROADCASTING, CLUSTERING)
_CONSUME_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
_FROM_WHERE = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)
"""Names of a Java enum in the order of their ordinals, which C++ clients send."""


class SubscriptionData(msgspec.Struct, rename="camel", gc=False):
    """One topic of a heartbeat. Tags are derived from `sub_string`: C++ clients send no codeSet."""

    topic: TopicName
    sub_string: ExpressionText | None = "*"
    sub_version: Signed64 = 0
    expression_type: Word | None = "TAG"


class ConsumerData(msgspec.Struct, rename="camel"):
    """One consumer group of a heartbeat. Enums are names (Java, JS) or ordinals (C++). `raftmq_by_topic`: the client
    can divide a topic among the members that want it."""

    group_name: GroupName
    consume_type: Word | Unsigned31 = "CONSUME_PASSIVELY"
    message_model: Word | Unsigned31 = CLUSTERING
    consume_from_where: Word | Unsigned31 = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: (
        Annotated[list[SubscriptionData], msgspec.Meta(max_length=HEARTBEAT_SUBSCRIPTIONS_MAX)] | None
    ) = None
    raftmq_by_topic: bool = False


class ProducerData(msgspec.Struct, rename="camel", gc=False):
    """One producer group of a heartbeat."""

    group_name: GroupName


class HeartbeatData(msgspec.Struct, rename="camel"):
    """Body of HEART_BEAT. `without_sub`: True if subscriptions are left out because they are the same as in the last
    heartbeat with this fingerprint."""

    client_id: ClientId = msgspec.field(name="clientID")
    consumer_data_set: Annotated[list[ConsumerData], msgspec.Meta(max_length=HEARTBEAT_GROUPS_MAX)] | None = None
    producer_data_set: Annotated[list[ProducerData], msgspec.Meta(max_length=HEARTBEAT_GROUPS_MAX)] | None = None
    heartbeat_fingerprint: Signed64 = 0
    without_sub: bool = False


_decode = metered_json.decoder(HeartbeatData, strict=False)


class Heartbeats:
    """Handles heartbeats (34), unregistrations (35) and lists of a group's consumers (38)."""

    def __init__(self, services: Services, members: Members, others: OtherMembers, locks: QueueLocks) -> None:
        self._services = services
        self._members = members
        self._others = others
        self._news = GroupRegistration(services, members)
        self._locks = locks
        self._lists = ConsumerLists()

    def codes(self) -> Handlers:
        """Returns request code -> its handler; 34 and 35 are never forwarded, 38 is answered by the
        leader only."""
        return {
            RequestCode.HEART_BEAT: refusing(self._heartbeat),
            RequestCode.UNREGISTER_CLIENT: refusing(self._unregister),
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: refusing(self._consumer_list),
        }

    def _heartbeat(self, request: Request) -> None:
        data = _parse(request.body)
        groups = len(data.producer_data_set or ()) + len(data.consumer_data_set or ())
        self._members.check(request.connection, data.client_id, groups)
        in_steps(self._services, request, self._note(request, data))

    def _note(self, request: Request, data: HeartbeatData) -> Generator[None]:
        """Registers the client in each group, proposes new groups to the log, and answers."""
        changed = False
        for producer in data.producer_data_set or ():
            charge(GROUP_UNITS)
            self._members.add_producer(producer.group_name, _member(request, data.client_id))
            yield
        noted, refused = list[str](), list[str]()
        for consumer in data.consumer_data_set or ():
            charge(GROUP_UNITS)
            try:
                changed |= self._note_consumer(request, data, consumer)
                noted.append(consumer.group_name)
            except Refused as refusal:
                if refusal.reason is not Reason.NO_PERMISSION:
                    raise
                refused.append(refusal.remark)  # only this group is refused; the others are registered
            yield
        ext = {
            "IS_SUPPORT_HEART_BEAT_V2": "true",
            "IS_SUB_CHANGE": "true" if changed or not data.heartbeat_fingerprint else "false",
        }
        yield from self._propose_news(noted, request, ext, refused)

    def _note_consumer(self, request: Request, data: HeartbeatData, consumer: ConsumerData) -> bool:
        """Registers one group of a heartbeat. Returns True if the client should send its subscriptions next time."""
        member = _member(request, data.client_id)
        known = self._members.consumers.get(consumer.group_name)
        before = known.members.get(data.client_id) if known is not None else None
        member.fingerprint = data.heartbeat_fingerprint
        # Below this level some nodes do not know division by topic and would answer 38 differently, so the answer would
        # change with the leader.
        member.by_topic = consumer.raftmq_by_topic and self._services.state.level >= BY_TOPIC_LEVEL
        subscriptions = None if data.without_sub else _subscriptions(consumer)
        model = _enum_name(consumer.message_model, _MESSAGE_MODELS)
        changed = self._members.add_consumer(consumer.group_name, member, subscriptions, model)
        group = self._members.consumers[consumer.group_name]
        group.consume_type = _enum_name(consumer.consume_type, _CONSUME_TYPES)
        group.consume_from_where = _enum_name(consumer.consume_from_where, _FROM_WHERE)
        return changed or not group.subscribed or before is None or before.fingerprint != data.heartbeat_fingerprint

    def _propose_news(
        self, groups: list[str], request: Request, ext: dict[str, str], refused: list[str]
    ) -> Generator[None]:
        """Answers the heartbeat, after the groups were written to the log if this node can do that. Three kinds of
        groups are reported as an error: those that no entry can hold, those in which the client was refused, and those
        above its quota. Other groups that could not be written now are proposed again by the next heartbeat."""
        limited: list[str] = []

        def done(result: ProposeResult | None) -> None:
            if result is not None and result.unacceptable:
                refuse(request, Refused(Reason.INVALID, result.remark))
            elif refused:
                refuse(request, Refused(Reason.NO_PERMISSION, "; ".join(refused)[:REMARK_MAX]))
            elif limited:
                refuse(request, Refused(Reason.LIMITED, "; ".join(limited)[:REMARK_MAX], counted=True))
            else:
                request.reply(ResponseCode.SUCCESS, None, ext)

        yield from self._news.propose(groups, party_of(request), done, limited)

    def _unregister(self, request: Request) -> None:
        # Handled after the client's earlier heartbeats.
        in_steps(self._services, request, self._leave(request, text(request, "clientID")))

    def _leave(self, request: Request, client_id: str) -> Generator[None]:
        group = request.ext.get("consumerGroup")
        charge(GROUP_UNITS)
        ends = group and self._services.writes_open() and gives_up(request, group, client_id, self._members)
        self._members.remove(request.connection, client_id, group, request.ext.get("producerGroup"), request.user)
        if group and ends:  # the queues of a client that leaves in order go to other clients at once
            charge(ITEM_UNITS * len(self._services.state.locks_of_group(group)))
            self._locks.unlock(group, client_id, None, lambda _: None, request.user)
        request.reply(ResponseCode.SUCCESS)
        yield

    def _consumer_list(self, request: Request) -> None:
        in_steps(self._services, request, self._list(request, text(request, "consumerGroup")))

    def _list(self, request: Request, group: str) -> Generator[None]:
        found = self._members.consumers.get(group)
        if found is None:
            raise Refused(Reason.ERROR, f"no consumer of group {group} is connected")
        yield from self._members.judged(group, found)
        ask = self._others.to_ask(found)
        if ask:
            self._others.ask(group, ask, lambda ids: _answer_together(request, found, ids))
            return
        body = yield from self._lists.body(found)
        charge_bytes(len(body))
        request.reply(ResponseCode.SUCCESS, body=body)


def _answer_together(request: Request, group: ConsumerGroup, ids: set[str] | None) -> None:
    """Answers request 38 with the members that this group of brokers knows, and `ids`, those that others know. Refuses
    it if `ids` is None, so that the client keeps the queues that it has."""
    if ids is None:
        why = "this group of brokers has not heard of all members yet, and another one, which may have, does not answer"
        refuse(request, Refused(Reason.UNAVAILABLE, f"{why}; try again"))
        return
    together = sorted({*ids, *group.members})
    charge(ITEM_UNITS * len(together))
    body = metered_json.encode({"consumerIdList": together})
    charge_bytes(len(body))
    request.reply(ResponseCode.SUCCESS, body=body)


def _parse(body: bytes) -> HeartbeatData:
    """Decodes the body of a heartbeat, and checks all of it before any part takes effect. Raises Refused (INVALID) if
    the body is malformed."""
    try:
        data = _decode(body)
    except MALFORMED as error:
        raise Refused(Reason.INVALID, f"heartbeat body is not HeartbeatData JSON: {error}") from None
    if not data.client_id:
        raise Refused(Reason.INVALID, "heartbeat has no clientID")
    for group in (*(data.consumer_data_set or ()), *(data.producer_data_set or ())):
        check_group_name(group.group_name)
    for consumer in data.consumer_data_set or ():
        _enum_name(consumer.message_model, _MESSAGE_MODELS)
        _enum_name(consumer.consume_type, _CONSUME_TYPES)
        _enum_name(consumer.consume_from_where, _FROM_WHERE)
    return data


def _member(request: Request, client_id: str) -> Member:
    return Member(client_id, request.connection, request.language, request.version, request.user, request.judged)


def _subscriptions(consumer: ConsumerData) -> list[Subscription]:
    return [
        Subscription(s.topic, s.expression_type or "TAG", s.sub_string or "*", s.sub_version)
        for s in consumer.subscription_data_set or ()
    ]


def _enum_name(value: str | int, names: tuple[str, ...]) -> str:
    """Returns the name of a Java enum value given as name or ordinal. Raises Refused (INVALID) for another value."""
    text_value = str(value)
    if text_value in names:
        return text_value
    if text_value.isdecimal() and int(text_value) < len(names):
        return names[int(text_value)]
    raise Refused(Reason.INVALID, f"{text_value[:40]} is none of {', '.join(names)}")


# The list of a group's consumers (38) as JSON, encoded once for all requests. For a group that is divided by topic, the
# list also has the topics that each consumer wants.
#
# When a member joins, each member asks for the list of all: in a group of 2,000, that makes 2,000 answers of 100 KiB.
# The encoded text is therefore kept until the members change. Requests that come while it is being encoded continue
# where another one stopped.

PIECE = 256
"""Client ids that one step encodes."""
_HEAD = b'{"consumerIdList":['


class _List:
    """The encoded answer for one group."""

    __slots__ = ("body", "building", "version")

    def __init__(self) -> None:
        self.version = -1
        """The version of the group that `body` shows."""
        self.body = b""
        self.building: Generator[None] | None = None


class ConsumerLists:
    """Keeps the encoded list of members of each group until the group changes."""

    def __init__(self) -> None:
        self._lists: WeakKeyDictionary[ConsumerGroup, _List] = WeakKeyDictionary()

    def body(self, group: ConsumerGroup) -> Generator[None, None, bytes]:
        """Returns the body of an answer in steps. It shows the group as it was when the steps began, or later."""
        found = self._lists.get(group)
        if found is None:
            found = self._lists[group] = _List()
        wanted = group.version
        while found.version < wanted:
            if found.building is None:
                found.building = _build(found, group)
            if next(found.building, True):
                found.building = None
            yield
        return found.body


def _build(found: _List, group: ConsumerGroup) -> Generator[None]:
    version, members, pieces = group.version, iter(group.members.items()), [_HEAD]
    wishes: dict[frozenset[str] | None, int] = {}
    wish_of: list[int] = []
    while piece := list(islice(members, PIECE)):
        charge(ITEM_UNITS * len(piece))
        if len(pieces) > 1:
            pieces.append(b",")
            yield
        pieces.append(metered_json.encode([client_id for client_id, _ in piece])[1:-1])
        wish_of += [wishes.setdefault(member.topics, len(wishes)) for _, member in piece]
    pieces.append(b"]")
    if group.by_topic and None not in wishes:
        yield from _put_wishes(wishes, wish_of, pieces)
    pieces.append(b"}")
    charge_bytes(sum(map(len, pieces)))
    found.body = b"".join(pieces)
    found.version = version


def _put_wishes(wishes: Iterable[frozenset[str] | None], wish_of: list[int], pieces: list[bytes]) -> Generator[None]:
    pieces.append(b',"raftmqWishes":[')
    for at, topics_wanted in enumerate(wishes):
        topics = sorted(topics_wanted or ())
        charge(ITEM_UNITS * len(topics))
        pieces.append(b"," * (at > 0) + metered_json.encode(topics))
        if at % PIECE == PIECE - 1:
            yield
    pieces.append(b'],"raftmqWishOf":' + metered_json.encode(wish_of))

"""Handles the administration of topics and consumer groups: creates, changes and deletes them (codes 17, 215, 200, 207,
201).

Leader only: the router forwards these before they come here. A write is answered after it is applied.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from cluster.broker.groups.group_admin import delete_group, group_deleted, put_group, without_effect
from cluster.broker.groups.hidden_queues import check_hides_nothing
from cluster.broker.name_rules import topic_named
from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import Services
from cluster.broker.topics import Topics, placed_queues
from cluster.broker.topics import without_effect as attributes_without_effect
from cluster.remoting.answers import after_read_index, answer_in_steps, in_steps, refusing, reply_written, table_body
from cluster.remoting.handlers.route import ORDER_TOPIC_CONFIG
from cluster.remoting.request import Handlers, Request, asked_by, author_of, integer_in, party_of, text
from cluster.replication.outcome import ProposeResult
from cluster.runtime import metered_json
from cluster.runtime.request_limits import (
    QUEUES_MAX,
    RETRY_POLICY_BYTES_MAX,
    Attributes,
    GroupName,
    RetryTimes,
    Unsigned31,
)
from raftmq_wire.codec import is_true
from raftmq_wire.codes import NOT_HIDING_FIELD, RequestCode, ResponseCode
from statemachine.topics.topics import TopicConfig

if TYPE_CHECKING:
    from cluster.remoting.request import NoteChange
    from cluster.replication.outcome import Done
    from statemachine.consuming.groups import GroupConfig


_encode = metered_json.encode


class GroupData(msgspec.Struct, rename="camel"):
    """SubscriptionGroupConfig as clients send it; absent fields keep RocketMQ's defaults."""

    group_name: GroupName
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: Unsigned31 = 1
    retry_max_times: RetryTimes = 16
    group_retry_policy: dict[str, Any] | None = None
    broker_id: Unsigned31 = 0
    which_broker_when_consume_slowly: Unsigned31 = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Unsigned31 = 0
    consume_timeout_minute: Unsigned31 = 15
    attributes: Attributes | None = None

    def to_config(self) -> dict[str, Any]:
        """Returns the `config` argument of put_group."""
        config = msgspec.structs.asdict(self)
        config["name"] = config.pop("group_name")
        config["group_retry_policy"] = self._policy()
        config["attributes"] = self.attributes or {}
        return config

    def _policy(self) -> str:
        """Encodes the retry policy in the form in which it is stored; numbers may be longer than they were sent. Raises
        Refused (INVALID) if that takes more than RETRY_POLICY_BYTES_MAX."""
        policy = _encode(self.group_retry_policy) if self.group_retry_policy else b""
        if len(policy) > RETRY_POLICY_BYTES_MAX:
            remark = f"groupRetryPolicy takes {len(policy)} bytes, {RETRY_POLICY_BYTES_MAX} are allowed"
            raise Refused(Reason.INVALID, remark)
        return policy.decode()


_decode_group = metered_json.decoder(GroupData, strict=False)
_GROUPS_HEAD = (
    b'{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":0},"forbiddenTable":{},"subscriptionGroupTable":{'
)
_DEFAULT_RETRY_POLICY = msgspec.Raw(b'{"type":"CUSTOMIZED"}')


class TopicsAdmin:
    """Handles requests that create, change, delete and list topics and consumer groups (17, 200, 201, 207, 215).
    `note`: `cluster.remoting.request.NoteChange`."""

    def __init__(self, services: Services, note: NoteChange) -> None:
        self._services = services
        self._note = note
        self._topics = Topics(services)

    def codes(self) -> Handlers:
        """Returns request code -> its handler; all are answered by the leader only."""
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: refusing(self._put_topic),
            RequestCode.DELETE_TOPIC_IN_BROKER: refusing(self._delete_topic),
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: refusing(self._put_group),
            RequestCode.DELETE_SUBSCRIPTIONGROUP: refusing(self._delete_group),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._all_groups,
        }

    def _put_topic(self, request: Request) -> None:
        name = text(request, "topic")
        attributes = self._topics.changed_attributes(name, attribute_changes(request.ext.get("attributes")))
        config = {
            "name": name,
            "read_queues": _queues(request, "readQueueNums"),
            "write_queues": _queues(request, "writeQueueNums"),
            "perm": integer_in(request, "perm", 0, 7),
            "order": is_true(request.ext.get("order")),
            "sys_flag": integer_in(request, "topicSysFlag", 0, (1 << 31) - 1, default=0),
            "attributes": attributes,
        }
        if request.ext.get("topicFilterType") == "MULTI_TAG":
            raise Refused(Reason.INVALID, "topicFilterType is MULTI_TAG, only SINGLE_TAG is allowed")
        if is_true(request.ext.get(NOT_HIDING_FIELD)):
            # The check must see everything that was acknowledged until now.
            judge = partial(self._put_unless_hiding, config=config)
            after_read_index(self._services, request, lambda request: in_steps(self._services, request, judge(request)))
        else:
            self._put(request, config)

    def _put_unless_hiding(self, request: Request, config: dict[str, Any]) -> Generator[None]:
        yield from check_hides_nothing(self._services.state, config)
        self._put(request, config)

    def _put(self, request: Request, config: dict[str, Any]) -> None:
        remark = attributes_without_effect(config["attributes"])
        author = author_of(request, self._services.state)
        done = partial(_reply, request, remark=remark or None)
        self._topics.put(config, done, author=author, party=party_of(request), here=True)

    def _delete_topic(self, request: Request) -> None:
        name = text(request, "topic")
        self._topics.delete(name, self._deleted(request, f"topic {name}", "the topic was deleted"))

    def _put_group(self, request: Request) -> None:
        try:
            config = _decode_group(request.body).to_config()
        except (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError) as error:
            remark = f"body is not SubscriptionGroupConfig JSON: {error}"
            raise Refused(Reason.INVALID, remark) from None
        remark = without_effect(self._services.state, config)
        done = partial(_reply, request, remark=remark or None)
        put_group(self._services, config, done, party_of(request))

    def _delete_group(self, request: Request) -> None:
        name, clean = text(request, "groupName"), is_true(request.ext.get("cleanOffset"))
        done = self._deleted(request, f"group {name}", group_deleted(clean_offsets=clean))
        delete_group(self._services, name, done, clean_offsets=clean)

    def _deleted(self, request: Request, about: str, says: str) -> Done:
        """Returns a callback that answers a deletion. Deleting something that does not exist succeeds, because the
        result is the same."""
        trace = asked_by(request, says)

        def done(result: ProposeResult) -> None:
            if result.results and result.results[0].ok:
                self._note(about, trace)
            _reply(request, result, absent_is_fine=True)

        return done

    def _all_groups(self, request: Request) -> None:
        groups = self._services.state.groups
        steps = table_body(_GROUPS_HEAD, groups.items(), _group_row, b"}}")
        answer_in_steps(self._services, request, steps, {"totalGroupNum": str(len(groups))})


def _reply(request: Request, result: ProposeResult, *, absent_is_fine: bool = False, remark: str | None = None) -> None:
    """Answers a change by its result; a successful one with `remark`."""
    answer = result.results[0] if result.results else None
    if answer is None or answer.ok or (absent_is_fine and answer.code == "not_found"):
        reply_written(request, result, remark=remark)
    else:
        request.reply(ResponseCode.INVALID_PARAMETER, str(answer.value))


def attribute_changes(changes: str | None) -> Iterator[tuple[str, str | None]]:
    """Yields RocketMQ's "+name=value,-name" as names with values, None for those to remove. Raises Refused (INVALID)
    for another form."""
    for change in (changes or "").split(","):
        change = change.strip()
        if not change:
            continue
        sign, (name, _, value) = change[0], change[1:].partition("=")
        if sign not in "+-" or not name or (sign == "+") != bool(value):
            remark = f'attributes "{change[:80]}": write +name=value to set and -name to remove'
            raise Refused(Reason.INVALID, remark)
        yield name, value or None


def group_fields(group: GroupConfig) -> dict[str, Any]:
    """Returns a group as the fields of RocketMQ's SubscriptionGroupConfig JSON."""
    policy = group.group_retry_policy
    return {
        "attributes": dict(sorted(group.attributes.items())),
        "brokerId": group.broker_id,
        "consumeBroadcastEnable": not group.refuses_broadcasts,
        "consumeEnable": group.consume_enable,
        "consumeFromMinEnable": group.consume_from_min_enable,
        "consumeMessageOrderly": group.consume_message_orderly,
        "consumeTimeoutMinute": group.consume_timeout_minute,
        "groupName": group.name,
        "groupRetryPolicy": msgspec.Raw(policy.encode()) if policy else _DEFAULT_RETRY_POLICY,
        "groupSysFlag": group.group_sys_flag,
        "notifyConsumerIdsChangedEnable": group.notify_consumer_ids_changed_enable,
        "retryMaxTimes": group.retry_max_times,
        "retryQueueNums": group.retry_queue_nums,
        "whichBrokerWhenConsumeSlowly": group.which_broker_when_consume_slowly,
    }


def _group_row(row: tuple[str, GroupConfig]) -> bytes:
    """Encodes one row, `name: group`."""
    return b"%b:%b" % (_encode(row[0]), _encode(group_fields(row[1])))


def _queues(request: Request, name: str) -> int:
    return integer_in(request, name, 1, QUEUES_MAX)


# Rows of the name server's key-value table as tools put and delete them (100, 102).
#
# There is one namespace, ORDER_TOPIC_CONFIG, with the queues that producers of an ordered topic use, `name:queues;...`.
# Its rows are not stored but derived from the topics (`cluster.remoting.handlers.route`). Putting a row makes the topic
# ordered, and deleting it makes the topic unordered. A row that differs from the one that will be shown is refused.


class OrderConf:
    """Handles changes of ORDER_TOPIC_CONFIG rows (100, 102), on the leader."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._topics = Topics(services)

    def codes(self) -> Handlers:
        """Returns request code -> its handler."""
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
            author = author_of(request, self._services.state)
            order_set = {"name": topic.name, "order": order}
            self._topics.put(order_set, lambda result: reply_written(request, result), author=author)

    def _check(self, topic: TopicConfig, value: str, listener: str) -> None:
        """Raises Refused unless each part consists of a broker name of a group that has queues of the topic, and their
        number there."""
        placed = placed_queues(self._services, topic)
        wanted = {name: queues[1] for group, queues in placed for name in group.names(listener)}
        for part in value.split(";"):
            name, _, queues = part.strip().rpartition(":")
            if name not in wanted:
                remark = f"{part[:80]!r} is not broker:queues with one of the brokers {', '.join(sorted(wanted))}"
                raise Refused(Reason.INVALID, remark)
            if queues != str(wanted[name]):
                remark = (
                    f"{part[:80]!r}: topic {topic.name} has {wanted[name]} queues for producers; change their number "
                    "with updateTopic -w"
                )
                raise Refused(Reason.INVALID, remark)


def _key(request: Request) -> str:
    """Returns the topic of the row. Raises Refused if the row is of another namespace."""
    namespace = text(request, "namespace")
    if namespace != ORDER_TOPIC_CONFIG:
        remark = f"the key-value table has the namespace {ORDER_TOPIC_CONFIG} alone, not {namespace[:80]}"
        raise Refused(Reason.INVALID, remark)
    return text(request, "key")

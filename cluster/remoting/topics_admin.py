"""Topics and consumer groups made, changed and deleted by administrators (codes 17, 215, 200, 207, 201).

Leader only: the server forwards these before they come here. A write is answered after it is applied.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import msgspec

from cluster.broker.names import check_group_name, check_topic_name
from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import Services
from cluster.remoting.answers import after_read_index, refusing, reply_written
from cluster.remoting.body_limits import too_long
from cluster.remoting.fields import integer, text
from cluster.remoting.request import Handler, Request
from cluster.remoting.route import SYSTEM_TOPICS
from cluster.replication.outcome import ProposeResult
from cluster.runtime.request_limits import (
    RETRY_POLICY_BYTES_MAX,
    Attributes,
    GroupName,
    RetryTimes,
    Unsigned31,
)
from cluster.wire.codec import is_true
from cluster.wire.codes import RequestCode, ResponseCode
from statemachine import commands
from statemachine.topics import ACK_LEVELS, DEDUP_MODES, RETENTION, is_retention

if TYPE_CHECKING:
    from statemachine.groups import GroupConfig

QUEUES_MAX = 1024
"""Per topic; RocketMQ's own benchmark topic is the largest in use."""

ATTRIBUTE_VALUES = {
    "dedup": DEDUP_MODES,
    "ack.level": ACK_LEVELS,
    "message.type": ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "UNSPECIFIED"),
    "queue.type": ("SimpleCQ",),
    "cleanup.policy": ("DELETE",),
}
"""What a topic attribute may say; others are refused, because they would promise what nobody keeps."""

_encode = msgspec.json.Encoder().encode


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
        """The `config` argument of put_group."""
        config = msgspec.structs.asdict(self)
        config["name"] = config.pop("group_name")
        config["group_retry_policy"] = self._policy()
        config["attributes"] = self.attributes or {}
        return config

    def _policy(self) -> str:
        """As it is kept; numbers may be longer than they were sent. Raises Refused (29)."""
        policy = _encode(self.group_retry_policy) if self.group_retry_policy else b""
        if len(policy) > RETRY_POLICY_BYTES_MAX:
            remark = f"groupRetryPolicy takes {len(policy)} bytes, {RETRY_POLICY_BYTES_MAX} are allowed"
            raise Refused(Reason.INVALID, remark)
        return policy.decode()


_decode_group = msgspec.json.Decoder(GroupData, strict=False).decode
_DEFAULT_RETRY_POLICY = msgspec.Raw(b'{"type":"CUSTOMIZED"}')


class TopicsAdmin:
    """Handlers of topic and group administration."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler; all of them the leader's."""
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: refusing(self._put_topic),
            RequestCode.DELETE_TOPIC_IN_BROKER: refusing(self._delete_topic),
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: refusing(self._put_group),
            RequestCode.DELETE_SUBSCRIPTIONGROUP: refusing(self._delete_group),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._all_groups,
        }

    def _put_topic(self, request: Request) -> None:
        name = text(request, "topic")
        check_topic_name(name, self._services.config.limits.topic_length_max)
        if name in SYSTEM_TOPICS:
            raise Refused(Reason.INVALID, f"topic {name} is RocketMQ's own; choose another name")
        existing = self._services.state.topics.get(name)
        config = {
            "name": name,
            "read_queues": _queues(request, "readQueueNums"),
            "write_queues": _queues(request, "writeQueueNums"),
            "perm": _in_range(request, "perm", 0, 7),
            "order": is_true(request.ext.get("order")),
            "sys_flag": _in_range(request, "topicSysFlag", 0, (1 << 31) - 1, default=0),
            "attributes": changed_attributes(
                dict(existing.attributes) if existing is not None else {}, request.ext.get("attributes")
            ),
        }
        self._write(request, [commands.CREATE_TOPIC, config, False])

    def _delete_topic(self, request: Request) -> None:
        """Deleting a topic that is not there succeeds: the caller's wish is met."""
        self._write(request, [commands.DELETE_TOPIC, text(request, "topic")], absent_is_fine=True)

    def _put_group(self, request: Request) -> None:
        if remark := too_long(request.code, len(request.body)):
            raise Refused(Reason.INVALID, remark)
        try:
            group = _decode_group(request.body)
            config = group.to_config()
        except (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError) as error:
            remark = f"body is not SubscriptionGroupConfig JSON: {error}"
            raise Refused(Reason.INVALID, remark) from None
        check_group_name(group.group_name)
        self._write(request, [commands.PUT_GROUP, config, False])

    def _delete_group(self, request: Request) -> None:
        clean = is_true(request.ext.get("cleanOffset"))
        self._write(request, [commands.DELETE_GROUP, text(request, "groupName"), clean], absent_is_fine=True)

    def _all_groups(self, request: Request) -> None:
        def answer(request: Request) -> None:
            groups = self._services.state.groups
            body = {
                "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 0},
                "forbiddenTable": {},
                "subscriptionGroupTable": {name: group_fields(groups[name]) for name in sorted(groups)},
            }
            request.reply(ResponseCode.SUCCESS, None, {"totalGroupNum": str(len(groups))}, _encode(body))

        after_read_index(self._services, request, answer)

    def _write(self, request: Request, command: commands.Command, absent_is_fine: bool = False) -> None:
        def done(result: ProposeResult) -> None:
            answer = result.results[0] if result.results else None
            if answer is None or answer.ok or (absent_is_fine and answer.code == "not_found"):
                reply_written(request, result)
            else:
                request.reply(ResponseCode.INVALID_PARAMETER, str(answer.value))

        self._services.propose([command], done)


def handlers(services: Services) -> dict[int, Handler]:
    """Request code -> handler of topic and group administration."""
    return TopicsAdmin(services).handlers()


def changed_attributes(attributes: dict[str, str], changes: str | None) -> dict[str, str]:
    """Applies RocketMQ's "+name=value,-name" to a topic's attributes. Raises Refused (29)."""
    changed = dict(attributes)
    for change in (changes or "").split(","):
        change = change.strip()
        if not change:
            continue
        sign, (name, _, value) = change[0], change[1:].partition("=")
        if sign not in "+-" or not name or (sign == "+") != bool(value):
            remark = f'attributes "{change[:80]}": write +name=value to set and -name to remove'
            raise Refused(Reason.INVALID, remark)
        if sign == "-":
            changed.pop(name, None)
        else:
            changed[name] = _checked_attribute(name, value)
    return changed


def _checked_attribute(name: str, value: str) -> str:
    if name == RETENTION:
        if not is_retention(value):
            remark = f"topic attribute {name} cannot be {value[:80]}, only a whole number of milliseconds (0: for ever)"
            raise Refused(Reason.INVALID, remark)
        return value
    allowed = ATTRIBUTE_VALUES.get(name)
    if allowed is None:
        known = [*ATTRIBUTE_VALUES, RETENTION]
        near = difflib.get_close_matches(name, known, 1)
        hint = f'; did you mean "{near[0]}"?' if near else f"; known are {', '.join(sorted(known))}"
        raise Refused(Reason.INVALID, f"unknown topic attribute {name[:80]}{hint}")
    if value not in allowed:
        remark = f"topic attribute {name} cannot be {value[:80]}, only {', '.join(allowed)}"
        raise Refused(Reason.INVALID, remark)
    return value


def group_fields(group: GroupConfig) -> dict[str, Any]:
    """A group as the SubscriptionGroupConfig JSON of RocketMQ."""
    policy = group.group_retry_policy
    return {
        "attributes": dict(sorted(group.attributes.items())),
        "brokerId": group.broker_id,
        "consumeBroadcastEnable": group.consume_broadcast_enable,
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


def _queues(request: Request, name: str) -> int:
    return _in_range(request, name, 1, QUEUES_MAX)


def _in_range(request: Request, name: str, low: int, high: int, default: int | None = None) -> int:
    number = integer(request, name, default)
    if not low <= number <= high:
        raise Refused(Reason.INVALID, f"field {name} is {number}; allowed are {low} to {high}")
    return number

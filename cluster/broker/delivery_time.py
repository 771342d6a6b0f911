"""Computes the delivery time that a message's properties ask for, in one of RocketMQ's two ways.

DELAY names one of the levels of `timer.delay_levels`. TIMER_DELIVER_MS names a time, TIMER_DELAY_SEC and TIMER_DELAY_MS
name a delay. If a message has both a level and one of these, the level counts. Source: RocketMQ's
HookUtils.checkIfTimerMessage and transformDelayLevelMessage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cluster.broker.refusal import Reason, Refused
from cluster.config.cross_key_rules import parse_delay_levels
from cluster.replication.message_head import SCHEDULE_TOPIC, UNIQUE_MARK, DeliverySchedule, property_of, topic_field
from raftmq_wire.properties import without

if TYPE_CHECKING:
    from cluster.config.service_sections import TimerSection


DELAY = b"DELAY\x01"
REAL_TOPIC, REAL_QID = b"REAL_TOPIC\x01", b"REAL_QID\x01"
"""Properties that name the final topic and queue of a message that is stored under another topic until it is due."""
TIMER_TOPIC = "rmq_sys_wheel_timer"
"""RocketMQ's topic for messages with a delivery time that is not a level. They are stored in its queue 0."""
_DELIVER_MS, _DELAY_SEC, _DELAY_MS = b"TIMER_DELIVER_MS\x01", b"TIMER_DELAY_SEC\x01", b"TIMER_DELAY_MS\x01"
TIMERS = (_DELIVER_MS, _DELAY_SEC, _DELAY_MS)
_DONE = b"TIMER_OUT_MS\x01"
"""The property of a message that was delayed before. RocketMQ does not delay such a message again."""
DONE_BYTES = len(b"TIMER_OUT_MS\x01\x02") + 20
"""The most bytes of the property TIMER_OUT_MS, which is added to a message with a delivery time when its entry is
built."""
_TIMER_FIELD = topic_field(TIMER_TOPIC)
_SCHEDULE_FIELD = topic_field(SCHEDULE_TOPIC)


class Delayed(NamedTuple):
    """A message that waits for its delivery: its schedule, and its properties as they are stored. `Delays.of` does not
    add REAL_TOPIC and REAL_QID, `addressed` and `half_of` do."""

    schedule: DeliverySchedule
    properties: bytes


def level_of(properties: bytes) -> int:
    """Returns the delay level that the properties ask for; 0 or less if they ask for none. Raises Refused if it is not
    a number."""
    text = property_of(properties, DELAY)
    return _number(DELAY, text) if text else 0


class Delays:
    """Computes delivery times from the properties of messages."""

    def __init__(self, config: TimerSection) -> None:
        self._levels_ms = parse_delay_levels(config.delay_levels)
        self._max_ms = config.max_delay_ms

    def of(self, properties: bytes, now_ms: int) -> Delayed | None:
        """Returns the schedule and the properties of a message that has to wait; None if it is delivered at once.
        `now_ms`: the log time. Raises Refused for a malformed or too long delay, or if two of the TIMER properties are
        set."""
        level = level_of(properties)
        if level > 0:
            # RocketMQ removes the TIMER properties here, because it would read them again at the delivery.
            return Delayed(self.of_level(level), without(properties, *TIMERS))
        asked = [(name, value) for name in TIMERS if (value := property_of(properties, name))]
        if not asked or property_of(properties, _DONE):
            return None
        if len(asked) > 1:
            names = " and ".join(name[:-1].decode() for name, _ in asked)
            raise Refused(Reason.MESSAGE_ILLEGAL, f"properties {names}: only one of them may be set")
        name, text = asked[0]
        number = _number(name, text)
        if name == _DELIVER_MS:
            schedule, delay_ms = (
                DeliverySchedule(_TIMER_FIELD, 0, due_ms=max(number, 0), names_due=True),
                number - now_ms,
            )
        else:
            delay_ms = number * 1000 if name == _DELAY_SEC else number
            schedule = DeliverySchedule(_TIMER_FIELD, 0, delay_ms=max(delay_ms, 0), names_due=True)
        if delay_ms > self._max_ms:
            remark = f"property {name[:-1].decode()}={number}: timer.max_delay_ms = {self._max_ms}"
            raise Refused(Reason.MESSAGE_ILLEGAL, remark)
        return Delayed(schedule, properties) if delay_ms > 0 else None

    def of_level(self, level: int) -> DeliverySchedule:
        """Returns the schedule of a delay level. Levels begin at 1; one above the last counts as the last."""
        level = min(level, len(self._levels_ms))
        return DeliverySchedule(_SCHEDULE_FIELD, level - 1, delay_ms=self._levels_ms[level - 1])

    def after(self, delay_ms: int) -> DeliverySchedule:
        """Returns the schedule of a delay in milliseconds that is not a level. It is cut to `timer.max_delay_ms`."""
        return DeliverySchedule(_TIMER_FIELD, 0, delay_ms=min(delay_ms, self._max_ms))


def addressed(delayed: Delayed, topic: str, queue_id: int, bytes_max: int) -> bytes:
    """Returns the properties of the delayed message with its final topic and queue added. Raises Refused if they would
    have more than `bytes_max` bytes, with those that are added at the delivery."""
    properties = delayed.properties
    if properties and properties[-1] != 2:
        properties += b"\x02"
    properties = b"%b%b%b\x02%b%d\x02" % (properties, REAL_TOPIC, topic.encode(), REAL_QID, queue_id)
    if len(properties) + DONE_BYTES > bytes_max:
        remark = f"the properties have {len(properties)} bytes with those that the broker adds: {bytes_max} are allowed"
        raise Refused(Reason.MESSAGE_ILLEGAL, remark)
    return properties


def _number(name: bytes, text: bytes) -> int:
    """Returns the number in `text`, read as Java's Long.parseLong does. `name`: the property, for the error. Raises
    Refused if the text is not a number of 64 bits."""
    sign, digits = (text[:1], text[1:]) if text[:1] in (b"-", b"+") else (b"", text)
    short = digits.lstrip(b"0")
    if digits.isdigit() and len(short) <= 19 and -(1 << 63) <= (number := int(sign + b"0" + short)) < 1 << 63:
        return number
    shown = text[:40].decode("utf-8", "replace")
    raise Refused(Reason.MESSAGE_ILLEGAL, f"property {name[:-1].decode()}={shown}: not a number of 64 bits")


# Sends of half messages (property TRAN_MSG): how they are stored, and when their producer is asked first.
#
# Source: RocketMQ's SendMessageProcessor and TransactionalMessageBridge.parseHalfMessageInner.

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
"""The topic under which a half message is stored, in queue 0, until its transaction ends."""
IMMUNITY_S_MAX = 86_400
"""The largest value of CHECK_IMMUNITY_TIME_IN_SECONDS, in seconds. Larger values count as this one, negative values as
0. There is a limit because an open transaction holds back the retention of the log."""

_TRANSACTION_MARK = b"TRAN_MSG\x01"
_GROUP_MARK = b"PGROUP\x01"
_IMMUNITY_MARK = b"CHECK_IMMUNITY_TIME_IN_SECONDS\x01"
_ADDED = (b"REAL_TOPIC\x01", b"REAL_QID\x01", b"__transactionId__\x01")
_FIELD = topic_field(HALF_TOPIC)


def is_half(topic: str, properties: bytes) -> bool:
    """Returns True if a send is a half message. A message that a consumer sends back (its topic begins with "%") never
    is one, whatever its properties say, because it was committed before."""
    return topic[:1] != "%" and property_of(properties, _TRANSACTION_MARK).lower() == b"true"


def half_of(properties: bytes, topic: str, queue_id: int, timeout_ms: int, bytes_max: int) -> Delayed:
    """Returns the schedule of a half message, and its properties as stored. Its producer is first asked for the outcome
    after `timeout_ms`, unless the message itself names a time. Delays in its properties are ignored, as in RocketMQ:
    the message is delivered as soon as it is committed. Raises Refused (response code 13) if the properties name no
    producer group, if their time is not a number, or if they would have more than `bytes_max` bytes.
    """
    if not producer_group_of(properties):
        remark = "a half message (TRAN_MSG) names the producer group that decides about it in PGROUP"
        raise Refused(Reason.MESSAGE_ILLEGAL, remark)
    kept = without(properties, DELAY, *TIMERS, *_ADDED)
    key = property_of(properties, UNIQUE_MARK)
    if key:
        kept += b"__transactionId__\x01%b\x02" % key
    half = Delayed(_schedule(properties, timeout_ms), kept)
    return half._replace(properties=addressed(half, topic, queue_id, bytes_max))


def _schedule(properties: bytes, timeout_ms: int) -> DeliverySchedule:
    """Returns the schedule after which the producer is first asked. Raises Refused if the time in the message's
    properties is not a number. RocketMQ uses its default then, without an error."""
    said = property_of(properties, _IMMUNITY_MARK)
    if said:
        timeout_ms = min(max(_number(_IMMUNITY_MARK, said), 0), IMMUNITY_S_MAX) * 1000
    return DeliverySchedule(_FIELD, 0, timeout_ms)


def producer_group_of(properties: bytes) -> str:
    """Returns the name of the producer group that commits or rolls back the message; "" if the properties name none."""
    return property_of(properties, _GROUP_MARK).decode("utf-8", "replace")

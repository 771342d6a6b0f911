"""Sends of half messages (property TRAN_MSG): how they are stored, and when their producer is asked first.

Source: RocketMQ's SendMessageProcessor and TransactionalMessageBridge.parseHalfMessageInner.
"""

from __future__ import annotations

from cluster.broker.delays import DELAY, TIMERS, Delayed, addressed, without
from cluster.broker.refusal import Reason, Refused
from cluster.replication.message_head import Schedule, topic_field
from cluster.replication.message_keys import UNIQUE_MARK, property_of

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
"""What a half message says its topic is, its queue being 0, until its transaction ends."""
IMMUNITY_S_MAX = 86_400
"""CHECK_IMMUNITY_TIME_IN_SECONDS: no longer. What is open holds back the retention of the log."""

_TRANSACTION_MARK = b"TRAN_MSG\x01"
_GROUP_MARK = b"PGROUP\x01"
_IMMUNITY_MARK = b"CHECK_IMMUNITY_TIME_IN_SECONDS\x01"
_ADDED = (b"REAL_TOPIC\x01", b"REAL_QID\x01", b"__transactionId__\x01")
_FIELD = topic_field(HALF_TOPIC)


def is_half(topic: str, properties: bytes) -> bool:
    """Whether a send is a half message. One that a consumer sends back was committed before, whatever it says."""
    return topic[:1] != "%" and property_of(properties, _TRANSACTION_MARK).lower() == b"true"


def half_of(properties: bytes, topic: str, queue_id: int, timeout_ms: int, bytes_max: int) -> Delayed:
    """A half message: where it waits and its properties as they are stored. Its producer is asked first after
    `timeout_ms`, unless it says otherwise. Raises Refused (13).

    It is delivered as soon as it is committed: RocketMQ ignores its delays.
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


def _schedule(properties: bytes, timeout_ms: int) -> Schedule:
    """Where it waits, and for how long. A time of its own that is no number of seconds is ignored, as in RocketMQ."""
    said = property_of(properties, _IMMUNITY_MARK)
    if 0 < len(said) <= len(str(IMMUNITY_S_MAX)) and said.isdigit():
        timeout_ms = min(int(said), IMMUNITY_S_MAX) * 1000
    return Schedule(_FIELD, 0, timeout_ms)


def producer_group_of(properties: bytes) -> str:
    """The producer group that decides about the message; "" if it names none."""
    return property_of(properties, _GROUP_MARK).decode("utf-8", "replace")

"""Says after which time a message whose consumption failed is delivered again to its group, and how many queues the
group's retry topic has.

Source: RocketMQ's AbstractSendMessageProcessor, which chooses the queue among the first `retryQueueNums`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.broker.name_rules import PERM_READ, PERM_WRITE
from cluster.broker.refusal import Reason, Refused
from cluster.runtime.request_limits import QUEUES_MAX
from raftlog.work import charge_text
from raftmq_wire.retry_policy import decode_policy
from statemachine.topics.topics import CreateTopic, placed_in

if TYPE_CHECKING:
    from statemachine.broker_state import BrokerState
    from statemachine.commands import Command
    from statemachine.consuming.groups import GroupConfig


def check_policy(text: str) -> None:
    """Raises Refused (INVALID) unless the text is a `groupRetryPolicy` that `raftmq_wire.retry_policy` can decode."""
    charge_text(len(text))
    try:
        decode_policy(text)
    except ValueError as error:
        raise Refused(Reason.INVALID, f"groupRetryPolicy: {error}") from None


def delay_ms_of(group: GroupConfig, failures: int) -> int | None:
    """Returns the milliseconds until a message is delivered again to the group, after `failures` failures; None if the
    delay levels decide it. A stored text that is not a policy, which a build before level 13 may have written, counts
    as none."""
    charge_text(len(group.group_retry_policy))
    try:
        return decode_policy(group.group_retry_policy).delay_ms(failures)
    except ValueError:
        return None


def own_topic(state: BrokerState, name: str, queues: int) -> list[Command]:
    """Returns the command that creates a group's topic (%RETRY% or %DLQ%) with that many queues in this group of
    brokers, or that adds the missing queues; [] if the topic has them. The topic never shrinks, because messages may
    wait in any of its queues."""
    topic = state.topics.get(name)
    queues = min(max(queues, 1), QUEUES_MAX)
    wanted = {"name": name, "read_queues": queues, "write_queues": queues}
    if topic is None:
        return [CreateTopic({**wanted, "perm": PERM_READ | PERM_WRITE}, if_absent=True)]
    if topic.write_queues >= queues:
        return []
    grown = {**wanted, "read_queues": max(topic.read_queues, queues)}
    several = state.broker_groups.by_number
    return [CreateTopic(placed_in(state.broker_groups.own, grown, topic) if several else grown, if_absent=False)]

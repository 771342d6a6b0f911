"""Messages that failed come again to their group: the time after which they do, and the queues of the group's topic.

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
    """Raises Refused (INVALID) unless the text is a groupRetryPolicy."""
    charge_text(len(text))
    try:
        decode_policy(text)
    except ValueError as error:
        raise Refused(Reason.INVALID, f"groupRetryPolicy: {error}") from None


def delay_ms_of(group: GroupConfig, failures: int) -> int | None:
    """Returns the time until a message that failed that often before comes again to the group; None if the delay levels
    say it. A text that is no policy, which a build before level 13 stored, says nothing."""
    charge_text(len(group.group_retry_policy))
    try:
        return decode_policy(group.group_retry_policy).delay_ms(failures)
    except ValueError:
        return None


def own_topic(state: BrokerState, name: str, queues: int) -> list[Command]:
    """Returns the command that makes a group's topic (%RETRY% or %DLQ%) with that many queues in this group of brokers,
    or lets it grow to them; none if it has them. It never shrinks, since messages may wait in any of its queues."""
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

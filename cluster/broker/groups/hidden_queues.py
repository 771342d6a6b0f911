"""Finds hidden queues: queues that consumers do not read any more because the number of the topic's read queues was
reduced, and that still keep messages.

RocketMQ has them too. No messages are lost: when the number of read queues is raised again, consumers read them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from cluster.broker.groups.group_lag import QUEUE_UNITS, QUEUES_PER_STEP, bounds
from cluster.broker.refusal import Reason, Refused
from raftlog.work import ITEM_UNITS, charge

if TYPE_CHECKING:
    from statemachine.broker_state import BrokerState
    from statemachine.topics.topics import TopicConfig


def hidden_queues(state: BrokerState, topic: TopicConfig) -> range:
    """Returns the ids of the topic's queues that consumers do not read. Some of the queues may be empty."""
    return range(topic.read_queues, state.stored_queues(topic))


def named(queues: range) -> str:
    """Returns a text that names the queues: "queue 0", "queues 2 to 7", or "none" if there are none."""
    if not queues:
        return "none"
    return f"queue {queues[0]}" if len(queues) == 1 else f"queues {queues[0]} to {queues[-1]}"


def unread(state: BrokerState, topic: TopicConfig, queues: range) -> Generator[None, None, int]:
    """Counts the kept messages of these queues that some group has yet to read, in steps. A group counts if it
    subscribes to the topic, or has committed in the queue. If there is no such group, all messages of the queue are
    unread."""
    kept: dict[int, tuple[int, int]] = {}
    for queue_id in queues:
        if queue_id % QUEUES_PER_STEP == 0:
            yield
        charge(QUEUE_UNITS)
        first, end = bounds(state, topic.id, queue_id)
        if first < end:
            kept[queue_id] = first, end
    lowest: dict[int, int] = {}
    for name, group in state.groups.items() if kept else ():
        yield
        committed = state.offsets_by_topic(name).get(topic.id, {})
        read = kept if topic.name in group.subscriptions else kept.keys() & committed.keys()
        charge(ITEM_UNITS * (1 + len(read)))
        for queue_id in read:
            at = committed.get(queue_id, 0)
            lowest[queue_id] = min(at, lowest.get(queue_id, at))
    return sum(max(0, end - max(first, lowest.get(queue_id, 0))) for queue_id, (first, end) in kept.items())


def check_hides_nothing(state: BrokerState, config: Mapping[str, Any]) -> Generator[None, None, None]:
    """Checks in steps that a change of a topic hides no unread messages. `config`: the fields that the change sets, as
    the command `CreateTopic` has them. Raises Refused (ILLEGAL), which names the number of these messages. A message
    that arrives during the check may still be hidden; a finding then reports it."""
    topic, wanted = state.topics.get(config["name"]), config.get("read_queues")
    if topic is None or wanted is None or wanted >= topic.read_queues:
        return
    lost = range(wanted, topic.read_queues)
    if messages := (yield from unread(state, topic, lost)):
        raise Refused(
            Reason.ILLEGAL,
            f"{messages} messages of topic {topic.name} that are not consumed lie in {named(lost)}, and consumers "
            f"would read only {named(range(wanted))}",
        )

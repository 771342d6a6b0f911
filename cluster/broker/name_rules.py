"""Checks names of topics and groups, and defines the names to which RocketMQ gives a meaning. Also defines the bits of
a permission."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import node_told
from cluster.runtime.request_limits import GROUP_LENGTH_MAX
from raftmq_wire.names import NAME, SIGNS
from raftmq_wire.topic_identity import IDENTITY_FIELD, parse_identity, why_another

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from statemachine.broker_state import BrokerState
    from statemachine.consuming.groups import GroupConfig
    from statemachine.topics.topics import TopicConfig

RETRY_PREFIX = "%RETRY%"
"""The prefix that makes a group's name the name of its retry topic, which has the messages that the group's consumers
sent back."""
DEAD_LETTER_PREFIX = "%DLQ%"
"""The prefix that makes a group's name the name of its dead-letter topic, which has the messages that the group's
consumers could not process after all tries."""

REPLY_SUFFIX = "_REPLY_TOPIC"
"""The suffix that makes the cluster's name the name of its reply topic. Replies name it, but are pushed to the
requester and not stored."""

AUTO_CREATE_NAMES = ("TBW102", "AUTO_CREATE_TOPIC_KEY")
"""The names of the topic from which new topics are created. RocketMQ 4.3 used the second name. No such topic is stored:
its route is derived from the configuration."""

SYSTEM_TOPICS = frozenset(
    {
        *AUTO_CREATE_NAMES,
        "BenchmarkTest",
        "OFFSET_MOVED_EVENT",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "SCHEDULE_TOPIC_XXXX",
        "SELF_TEST_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "rmq_sys_wheel_timer",
    }
)
"""RocketMQ's own topics. Tools hide them from lists of user topics, and administrators cannot create or change them."""
STAGED_TOPIC = "RAFTMQ_SYS_STAGED"
"""The topic name in a staged message, with queue 0, until the message is copied. No such topic exists."""
FORBIDDEN_TOPICS = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        STAGED_TOPIC,
    }
)
"""Topics to which clients cannot send. Other system topics, such as that of traces, are created by the first send to
them."""

PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1


def check_topic_name(name: str, length_max: int) -> None:
    """Raises Refused (INVALID) unless RocketMQ allows the name. `length_max`: the most characters."""
    if not NAME.fullmatch(name):
        raise Refused(Reason.INVALID, f'topic "{name[:80]}" may hold only {SIGNS}')
    if len(name) > length_max:
        raise Refused(Reason.INVALID, f"topic name has {len(name)} characters, limits.topic_length_max is {length_max}")


def check_no_system_topic(name: str) -> None:
    """Raises Refused (INVALID) if an administrator must not create or change this topic."""
    if name in SYSTEM_TOPICS or name in FORBIDDEN_TOPICS:
        raise Refused(Reason.INVALID, f"topic {name} is a system topic; choose another name")


def check_restored_topic(name: str) -> None:
    """Raises Refused (INVALID) if no cluster can have this topic, so that it cannot be restored from an export."""
    if name in FORBIDDEN_TOPICS or name in AUTO_CREATE_NAMES:
        check_no_system_topic(name)


def check_group_name(name: str) -> None:
    """Raises Refused (INVALID) unless RocketMQ allows the name for a group."""
    if not NAME.fullmatch(name) or len(name) > GROUP_LENGTH_MAX:
        raise Refused(
            Reason.INVALID,
            f'group "{name[:80]}" must have 1 to {GROUP_LENGTH_MAX} letters, digits and the signs % | _ -',
        )


def topic_named(state: BrokerState, name: str) -> TopicConfig:
    """Returns the topic of that name. Raises Refused (NO_TOPIC) if there is none."""
    topic = state.topics.get(name)
    if topic is None:
        raise no_topic(name[:255])
    return topic


def check_queue(state: BrokerState, topic: TopicConfig, queue_id: int) -> None:
    """Raises Refused (NO_QUEUE) unless the topic has or had the queue. A queue that was removed keeps its messages and
    offsets, because consumers that read it until then still commit."""
    queues = state.stored_queues(topic)
    if not 0 <= queue_id < queues:
        raise Refused(Reason.NO_QUEUE, f"topic {topic.name} has queues 0 to {queues - 1}, not {queue_id}")


def check_counted(services: Services, topic: TopicConfig, counted_in: str | None, offset: int) -> None:
    """Checks that an offset counts in this topic. `counted_in`: the identity of the topic in which the sender says that
    it counts (docs/wire-protocol.md); None if it does not say. Raises Refused: NO_TOPIC if that topic was deleted, even
    if another one now has its name; UNAVAILABLE if this node has not applied its creation yet; INVALID if the identity
    is malformed."""
    if counted_in is None:
        return
    met = services.topic_identity(topic.name)[IDENTITY_FIELD]
    if counted_in == met:
        return
    try:
        kept, now = parse_identity(counted_in), parse_identity(met)
    except ValueError as error:
        raise Refused(Reason.INVALID, str(error)) from error
    if kept[:2] == now[:2] and kept.topic_id > now.topic_id:  # ids of topics only grow
        raise Refused(Reason.UNAVAILABLE, f"{node_told(services)} has not seen the present topic {topic.name} yet")
    raise Refused(Reason.NO_TOPIC, f"offset {offset} means nothing in topic {topic.name}: {why_another(kept, now)}")


def group_named(state: BrokerState, name: str) -> GroupConfig:
    """Returns the consumer group of that name. Raises Refused (NO_GROUP) if there is none."""
    group = state.groups.get(name)
    if group is None:
        raise Refused(Reason.NO_GROUP, f"consumer group {name} does not exist")
    return group


def no_topic(topic: str) -> Refused:
    """Returns the refusal for a topic that does not exist."""
    return Refused(Reason.NO_TOPIC, f"topic {topic} does not exist")

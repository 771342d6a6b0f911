"""Estimates the bytes of large answers. That much memory is reserved before anything is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.broker.reads.message_lookup import BYTES_MAX
from cluster.runtime.request_limits import ANSWER_QUEUES_MAX

if TYPE_CHECKING:
    from cluster.config.service_sections import LimitsSection
    from cluster.requests.verb import Size
    from statemachine.broker_state import BrokerState

TOPIC_BYTES, GROUP_BYTES = 80, 640
"""Estimated bytes of the name of one topic or consumer group in a list, and of one consumer group's settings."""
RULE_BYTES = 250
"""Estimated bytes of a rule, and of a user, in a list."""
QUEUE_BYTES = 240
"""Estimated bytes of one queue's offsets in an answer of at most ANSWER_QUEUES_MAX queues."""
ROUTE_BYTES = 16 << 10
CONSUMERS_BYTES = 64 << 10
COUNTS_BYTES = 1 << 10


def constant(size: int) -> Size:
    """Makes the estimate of an answer that does not grow with what is stored."""
    return lambda state, limits: size


ROUTE, CONSUMERS, COUNTS = constant(ROUTE_BYTES), constant(CONSUMERS_BYTES), constant(COUNTS_BYTES)


def topic_names(state: BrokerState, limits: LimitsSection) -> int:
    return TOPIC_BYTES * len(state.topics)


def group_names(state: BrokerState, limits: LimitsSection) -> int:
    return TOPIC_BYTES * len(state.groups)


def group_settings(state: BrokerState, limits: LimitsSection) -> int:
    return GROUP_BYTES * len(state.groups)


def queue_figures(state: BrokerState, limits: LimitsSection) -> int:
    return QUEUE_BYTES * min(ANSWER_QUEUES_MAX, state.queue_count)


def found_messages(state: BrokerState, limits: LimitsSection) -> int:
    return BYTES_MAX + limits.message_bytes_max


def one_message(state: BrokerState, limits: LimitsSection) -> int:
    return limits.message_bytes_max + limits.properties_bytes_max


def users(state: BrokerState, limits: LimitsSection) -> int:
    return RULE_BYTES * len(state.access.users)


def rules(state: BrokerState, limits: LimitsSection) -> int:
    return RULE_BYTES * sum([1 + len(user.rules) for user in state.access.users.values()])

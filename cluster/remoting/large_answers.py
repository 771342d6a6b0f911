"""Requests whose answer may be much larger than the request: they wait for memory before anything is read.

What an answer may come to is estimated, and held until it is given. Pulls know it better, and ask for room themselves
(`cluster.broker.pulls`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cluster.broker.message_lookup import BYTES_MAX
from cluster.remoting.request import Handler, Request
from cluster.wire.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from cluster.config.config import LimitsSection
    from statemachine.broker_state import BrokerState

logger = logging.getLogger(__name__)

TOPIC_BYTES, GROUP_BYTES = 80, 640
"""Of one topic's name in a list, and of one group's settings."""
QUEUE_BYTES, STATS_ROWS_MAX = 240, 10_000
"""Of one queue's offsets, of which an answer has so many at most."""
ROUTE_BYTES = 16 << 10
CONSUMERS_BYTES = 64 << 10

Sizes = Mapping[int, Callable[[], int]]
"""Request code -> what its answer may come to now, bytes."""


def sizes(state: BrokerState, limits: Callable[[], LimitsSection]) -> Sizes:
    """Of each request with a large answer; `limits`: those in force."""

    def topics() -> int:
        return TOPIC_BYTES * len(state.topics)

    return {
        RequestCode.GET_KVLIST_BY_NAMESPACE: topics,
        RequestCode.GET_CONSUME_STATS: lambda: QUEUE_BYTES * min(STATS_ROWS_MAX, state.queue_count),
        RequestCode.GET_TOPIC_STATS_INFO: lambda: QUEUE_BYTES * min(STATS_ROWS_MAX, state.queue_count),
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: lambda: TOPIC_BYTES * len(state.groups),
        RequestCode.GET_CONSUMER_CONNECTION_LIST: lambda: CONSUMERS_BYTES,
        RequestCode.GET_PRODUCER_CONNECTION_LIST: lambda: CONSUMERS_BYTES,
        RequestCode.QUERY_MESSAGE: lambda: BYTES_MAX + limits().message_bytes_max,
        RequestCode.VIEW_MESSAGE_BY_ID: lambda: limits().message_bytes_max + limits().properties_bytes_max,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: topics,
        RequestCode.GET_TOPICS_BY_CLUSTER: topics,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: lambda: GROUP_BYTES * len(state.groups),
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: lambda: CONSUMERS_BYTES,
        RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda: ROUTE_BYTES,
        RequestCode.GET_TOPIC_CONFIG: lambda: ROUTE_BYTES,
        RequestCode.GET_BROKER_CLUSTER_INFO: lambda: ROUTE_BYTES,
    }


def with_room(handlers: Mapping[int, Handler], sizes: Sizes) -> dict[int, Handler]:
    """The handlers, those of large answers wrapped."""
    return {code: _waiting(handler, sizes[code]) if code in sizes else handler for code, handler in handlers.items()}


def _waiting(handler: Handler, size: Callable[[], int]) -> Handler:
    def handle(request: Request) -> None:
        if not request.room_for(size(), lambda: handle(request)):
            return
        request.promise(size())
        try:
            handler(request)
        except Exception as error:  # it may run long after its request came, and its room must come back
            logger.exception("request code %d failed", request.code)
            request.reply(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    return handle

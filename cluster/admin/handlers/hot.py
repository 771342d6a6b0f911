"""/v1/hot: lists the topics, queues and keys with the most messages. The leader of a group of brokers answers for its
group."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from cluster.admin import route, route_rights
from cluster.admin.handler_request import Call
from cluster.admin.route import Route
from cluster.broker.rights import READ, topic_need
from cluster.replication.hot_spots import TopicKey
from cluster.requests.verb import Serves
from cluster.runtime.figures.heavy_hitters import Heavy
from statemachine.rows.keys import Queue

H = TypeVar("H", Queue, TopicKey)

SHOWN_MAX: Final = 20
"""The most topics, queues and keys in an answer."""


class HotTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that got many messages."""

    topic: str
    share: float
    """The share of the counted messages that certainly went to it, from 0 to 1. The true share may be higher."""
    messages_per_s: float


class HotQueue(HotTopic, frozen=True, kw_only=True):
    """A queue that got many messages, with the name of its topic."""

    queue_id: int


class HotKey(HotTopic, frozen=True, kw_only=True):
    """A key that many messages had: their sharding key, or the first word of KEYS if they have none."""

    key: str


class HotView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/hot`: the topics, queues and keys with the most messages in the last window of about five
    seconds, the most first. The numbers are estimates from one of 64 messages."""

    node: int
    group: int
    window_ms: int
    """The length of the window in milliseconds; 0 if no message came in it."""
    busy: float
    """The share of the window, from 0 to 1, in which the leader's event loop used a core or waited for one."""
    messages_per_s: float
    topics: list[HotTopic]
    queues: list[HotQueue]
    keys: list[HotKey]


async def get_hot(call: Call) -> HotView:
    """Lists the topics, queues and keys with the most messages in this group of brokers."""
    port, window = call.port, call.port.limits.hot()
    topics, seconds, total = port.state.topics_by_id, window.took_ms / 1000 or 1.0, window.messages or 1

    def figures(topic_id: int, messages: int) -> dict[str, Any]:
        return {
            "topic": topics[topic_id].name,
            "share": messages / total,
            "messages_per_s": messages / seconds,
        }

    def is_readable(topic_id: int) -> bool:
        needs = [topic_need(topics[topic_id].name, READ)]
        return port.served.rights.is_allowed(call.caller.party, needs)

    def known(found: list[Heavy[H]]) -> list[Heavy[H]]:
        return [each for each in found if each.item[0] in topics and each.sure]

    by_topic = [each for each in window.topics().most_common() if each[0] in topics]
    keys = [each for each in known(window.keys)[:SHOWN_MAX] if is_readable(each.item[0])]
    return HotView(
        node=port.config.node.id,
        group=port.config.cluster.group,
        window_ms=window.took_ms,
        busy=window.busy,
        messages_per_s=window.messages / seconds,
        topics=[HotTopic(**figures(topic, count)) for topic, count in by_topic[:SHOWN_MAX]],
        queues=[
            HotQueue(queue_id=each.item[1], **figures(each.item[0], each.sure))
            for each in known(window.queues)[:SHOWN_MAX]
        ],
        keys=[HotKey(key=each.item[1], **figures(each.item[0], each.sure)) for each in keys],
    )


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET",
        "/v1/hot",
        get_hot,
        HotView,
        route.page(3 * SHOWN_MAX),
        route_rights.CLUSTER_GET._replace(stored="keys: Sub or Get on their topic"),
        Serves.LEADER,
    ),
)

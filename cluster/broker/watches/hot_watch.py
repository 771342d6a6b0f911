"""Finds out what keeps a busy leader busy, in a cluster of several groups of brokers: a topic that could get queues in
further groups, or a single queue, which more queues would not relieve."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from cluster.broker.hot_topics import Hot, hot_topic
from cluster.runtime.findings import Code, Condition

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.replication.hot_spots import Window

HOT_TOPIC: Final = Code("hot_topic", "info", "raftmq topic hot")
HOT_QUEUE: Final = Code("hot_queue", "info", "raftmq topic hot")
HOLD_MS: Final = 15_000
"""Milliseconds for which the load must last before it is a finding: several windows, so that a burst is none."""


def hot_conditions(services: Services, window: Window) -> Iterator[Condition]:
    """Yields the condition of the topic or queue that was hot in the last window, if there is one. Yields nothing
    unless this node leads one of several groups and is busy."""
    found = hot_topic(services.state, window) if services.writes_open() else None
    if found is None:
        return
    name, says = found.topic.name, _says(found, window, services.config.cluster.group)
    if found.queue_id is not None:
        yield Condition(
            HOT_QUEUE,
            f"queue {name}/{found.queue_id}",
            f"queue {found.queue_id} of topic {name} {says}; a key has one queue, so more queues do not help",
            hold_ms=HOLD_MS,
        )
        return
    which = ", ".join(map(str, found.further))
    where = f"it has no queues in group {which}" if len(found.further) == 1 else f"it has none in the groups {which}"
    moves = ", where keys would come to other queues" if found.topic.order else ""
    yield Condition(
        HOT_TOPIC,
        f"topic {name}",
        f"topic {name} {says}; {where}{moves}",
        do_now=f"raftmq topic spread {name}",
        hold_ms=HOLD_MS,
    )


def _says(found: Hot, window: Window, group: int) -> str:
    rate = 1000 * window.messages / window.took_ms
    return (
        f"gets {found.messages / window.messages:.0%} of the {rate:.0f} messages/s of group {group}, whose leader is "
        f"busy {window.busy:.0%} of the time"
    )

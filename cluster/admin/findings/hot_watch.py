"""Finds out what keeps a busy leader busy, in a cluster of several groups of brokers: a topic that could have queues in
further groups, or a queue that no further one helps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from cluster.admin.findings.finding import Condition
from cluster.broker.hot_topics import Hot, hot_topic

if TYPE_CHECKING:
    from cluster.admin.node_interface import AdminPort
    from cluster.replication.hot_spots import Window

HOLD_MS: Final = 15_000
"""Milliseconds, several windows: a burst is not hot."""


def hot_conditions(port: AdminPort) -> Iterator[Condition]:
    """Yields what was hot in the last window; nothing unless this node leads one of several groups and is busy."""
    window = port.hot()
    found = hot_topic(port.state, window) if port.services.writes_open() else None
    if found is None:
        return
    name, says = found.topic.name, _says(found, window, port.config.cluster.group)
    if found.queue_id is not None:
        yield Condition(
            "hot_queue",
            f"queue {name}/{found.queue_id}",
            f"queue {found.queue_id} of topic {name} {says}; a key has one queue, so more queues do not help",
            hold_ms=HOLD_MS,
        )
        return
    which = ", ".join(map(str, found.further))
    where = f"it has no queues in group {which}" if len(found.further) == 1 else f"it has none in the groups {which}"
    moves = ", where keys would come to other queues" if found.topic.order else ""
    yield Condition(
        "hot_topic",
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

"""Counts how many messages the queues of a topic got in the last minute, hour and day, by their store times.

Nothing is sampled: store times never decrease within a queue, so the first offset of a window is found by bisection,
and the count is right after a restart and on a new leader. Only messages on this node's disk count: a window that
reaches further back lacks those that were removed, or that are only in the tier.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from statemachine.broker_state import BrokerState

WINDOWS_MS: Final = (60_000, 3_600_000, 86_400_000)
"""A minute, an hour and a day, in milliseconds."""


def stored_lately(
    state: BrokerState, topic_id: int, queues: Iterable[int], until_ms: int
) -> Generator[None, None, tuple[int, ...]]:
    """Counts the messages of these queues that were stored in the windows before the time `until_ms`. `queues`: their
    ids. Returns a count for each of WINDOWS_MS. Makes a step for each queue."""
    counts = [0] * len(WINDOWS_MS)
    for queue_id in queues:
        end = state.max_offset(topic_id, queue_id)
        last = state.fetch(topic_id, queue_id, end - 1, 1)
        age_ms = until_ms - last[0].store_time_ms if last else max(WINDOWS_MS) + 1
        for place, window_ms in enumerate(WINDOWS_MS):
            if age_ms <= window_ms:
                first = state.offset_by_time(topic_id, queue_id, until_ms - window_ms, upper=False)
                counts[place] += max(0, end - first)
        yield
    return tuple(counts)

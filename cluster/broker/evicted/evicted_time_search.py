"""Searches a queue by store time: for the first offset at or after a time, for the last offset at or before it, and for
the time of the first message. The searches include messages that this node has evicted to the tier (the object store
with older parts of the log, `cluster.tier`).

Store times never decrease within a queue. The tier is asked only if even the oldest message on this node satisfies the
query. Only then may an older message, in the tier, be the right result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from cluster.broker.evicted.evicted_pulls import first_offset
from cluster.broker.refusal import Reason, Refused
from statemachine.rows.keys import Queue

if TYPE_CHECKING:
    from statemachine.broker_state import BrokerState

TimeAnswer = Callable[[int | Exception | None], None]


class EvictedBounds(Protocol):
    """Searches by store time among the messages in the tier. Implemented in `cluster.tier.fetch.index_reads`.

    Each method calls `done` later, unless the node stops: with its result, with None if the tier has no message for the
    query, or with the exception that says why the tier cannot be read now.
    """

    def offset_by_time(self, queue: Queue, time_ms: int, done: TimeAnswer) -> None:
        """Finds the first offset in the tier whose message was stored at or after the time."""

    def earliest_store_ms(self, queue: Queue, done: TimeAnswer) -> None:
        """Finds the store time of the queue's first message in the tier."""


def offset_by_time(
    state: BrokerState,
    evicted: EvictedBounds | None,
    queue: Queue,
    time_ms: int,
    done: Callable[[int | Refused], None],
    *,
    upper: bool,
) -> None:
    """Calls `done` with the result of `BrokerState.offset_by_time` over all messages on this node and in the tier, or
    with a Refused (UNAVAILABLE) if the tier is needed and cannot be read."""
    here, low, first = (
        state.offset_by_time(*queue, time_ms, upper),
        state.min_offset(*queue),
        first_offset(state, *queue),
    )
    if first >= low or here > low or (upper and _is_stored_by(state, queue, low, time_ms)):
        done(here)
        return
    if evicted is None:
        done(_unknown("this node has no tier: set tier.url, or ask another one"))
        return

    def told(found: int | Exception | None) -> None:
        if isinstance(found, Exception):
            done(_unknown(str(found)))
            return
        following = low if found is None else min(found, low)
        done(max(first, following - 1 if upper else following))

    evicted.offset_by_time(queue, time_ms + 1 if upper else time_ms, told)


def _is_stored_by(state: BrokerState, queue: Queue, offset: int, time_ms: int) -> bool:
    items = state.fetch(*queue, offset, 1)
    return bool(items) and items[0].store_time_ms <= time_ms


def earliest_store_ms(
    state: BrokerState, evicted: EvictedBounds | None, queue: Queue, done: Callable[[int | Refused | None], None]
) -> None:
    """Calls `done` with the store time of the queue's first message on this node or in the tier, with None if the queue
    is empty, or with a Refused (UNAVAILABLE) if the tier is needed and cannot be read."""
    low = state.min_offset(*queue)
    items = state.fetch(*queue, low, 1)
    here = items[0].store_time_ms if items else None
    if first_offset(state, *queue) >= low:
        done(here)
    elif evicted is None:
        done(_unknown("this node has no tier: set tier.url, or ask another one"))
    else:
        evicted.earliest_store_ms(
            queue, lambda found: done(_unknown(str(found)) if isinstance(found, Exception) else found or here)
        )


def _unknown(why: str) -> Refused:
    return Refused(Reason.UNAVAILABLE, f"older messages are in the tier: {why}")

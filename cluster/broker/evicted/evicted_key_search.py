"""Searches the tier (the object store with older parts of the log, `cluster.tier`) for evicted messages by key, after
the search in this node's own index."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cluster.broker.evicted.evicted_pulls import evicted_position
from cluster.broker.reads.message_lookup import KeyQuery, QueryResult, StoredMessage
from cluster.broker.refusal import Reason, Refused
from statemachine.topics.topics import TopicConfig

if TYPE_CHECKING:
    from statemachine.broker_state import BrokerState


logger = logging.getLogger(__name__)


class EvictedKeys(Protocol):
    """Finds messages in the tier by their keys. Implemented in `cluster.tier.fetch.index_reads`."""

    def find(self, topic: TopicConfig, query: KeyQuery, done: Callable[[QueryResult | Exception], None]) -> None:
        """Calls `done` later, unless the node stops: with the newest matching messages, or with the exception that says
        why the tier cannot be read now."""

    def at(self, position: int, done: Callable[[StoredMessage | Exception | None], None]) -> None:
        """Calls `done` later, unless the node stops: with the message in the tier that begins at this position of the
        log, with None if there is none, or with the exception that says why the tier cannot be read now."""


def complete(
    state: BrokerState,
    evicted: EvictedKeys | None,
    topic: TopicConfig,
    query: KeyQuery,
    found: QueryResult,
    done: Callable[[QueryResult | Refused], None],
) -> None:
    """Calls `done` with the messages `found` on this node, and with older ones from the tier if there may be any. If
    the tier cannot be read, the result is marked as incomplete (`stopped`). If nothing was found here either, it is
    unknown whether a matching message exists, and `done` gets a Refused (UNAVAILABLE)."""
    if found.stopped or state.kept.position >= evicted_position(state):
        done(found)
        return
    partial = found._replace(stopped=True)
    if len(found.messages) >= query.count_max:
        done(partial)
        return
    if evicted is None:
        done(partial if found.messages else _unknown("this node has no tier: set tier.url, or ask another one"))
        return

    def merge(older: QueryResult | Exception) -> None:
        if not isinstance(older, Exception):
            # A message is in both results if it was evicted between the two searches.
            known = {stored.message.position for stored in found.messages}
            more = [stored for stored in older.messages if stored.message.position not in known]
            every = [*found.messages, *more]
            stopped = older.stopped or len(every) > query.count_max
            done(found._replace(messages=every[: query.count_max], stopped=stopped))
        elif found.messages:
            logger.warning("older messages with the key %s are left out: %s", query.shown, older)
            done(partial)
        else:
            done(_unknown(str(older)))

    evicted.find(topic, query, merge)


def is_evicted(state: BrokerState, position: int) -> bool:
    """Returns True if the log's byte at this position is only in the tier."""
    return state.kept.position <= position < evicted_position(state)


def told(found: StoredMessage | Exception | None) -> StoredMessage | Refused | None:
    """Returns the tier's result for one message: the message, None if there is none, or a Refused in place of an
    exception."""
    return _unknown(str(found)) if isinstance(found, Exception) else found


def _unknown(why: str) -> Refused:
    return Refused(Reason.UNAVAILABLE, f"older messages are in the tier: {why}")


class EvictedPage(NamedTuple):
    """Messages of one queue in the order of their offsets."""

    messages: list[bytes]
    """The messages as they are stored, each intact."""
    next_offset: int
    """The offset at which the next page begins."""
    unreadable: list[int]
    """The offsets of messages of which no intact copy can be read."""


class EvictedPages(Protocol):
    """Reads pages of queues from the tier. Implemented in `cluster.tier.fetch.evicted_messages`."""

    async def page(self, topic_id: int, queue_id: int, offset: int, stop: int, count: int) -> EvictedPage:
        """Returns at most `count` messages with offsets from `offset` up to but not including `stop`. Raises an
        exception that says why the tier cannot be read now."""

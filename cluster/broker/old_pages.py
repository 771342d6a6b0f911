"""Pages of a queue, where the messages were evicted to the tier."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class OldPage(NamedTuple):
    """Messages of a queue, in the order of their offsets."""

    messages: list[bytes]
    """As they are stored, each intact."""
    next_offset: int
    """Where to go on."""
    unreadable: list[int]
    """Offsets of messages that cannot be had intact."""


class OldPages(Protocol):
    """Reads the tier (`cluster.tier.fetch.old_pages`)."""

    async def page(self, topic_id: int, queue_id: int, offset: int, stop: int, count: int) -> OldPage:
        """At most `count` messages from `offset` on, below `stop`. Raises an Exception that says why the tier cannot be
        read now."""

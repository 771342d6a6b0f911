"""A reset while messages are buffered: they are dropped, and the one in hand no longer counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from raftmq.client.consuming.message_buffer import MAX_UNACKED, Batch, Inbox, QueueFeed


class Stored:
    """The part of a message that the inbox looks at."""

    def __init__(self, queue_offset: int) -> None:
        self.queue_offset = self.position = queue_offset
        self.body = b"x"


def batch(feed: QueueFeed, first: int, count: int) -> Batch:
    messages = cast("Any", [Stored(offset) for offset in range(first, first + count)])
    return Batch(feed, messages, first + count)


def offset_of(message: Any) -> int:
    return int(message.queue_offset)


def test_what_is_buffered_is_dropped_and_others_go_on() -> None:
    inbox = Inbox(lambda feed: None)
    one, other = QueueFeed("orders", 0, 5), QueueFeed("orders", 1, 7)
    inbox.put(batch(one, 5, 3))
    inbox.put(batch(other, 7, 1))
    assert offset_of(inbox.take()) == 5
    inbox.rewind(one, 2)
    assert (one.position, one.next_offset, one.buffered_messages, one.buffered_bytes) == (2, 2, 0, 0)
    assert (inbox.settled(one), inbox.in_hand(one)) == (2, False)
    assert offset_of(inbox.take()) == 7
    inbox.put(batch(one, 2, 1))
    assert offset_of(inbox.take()) == 2
    assert inbox.take() is None
    assert (one.position, one.resets, other.resets) == (3, 1, 0)


@pytest.mark.parametrize(
    "how", [lambda inbox, feed: inbox.rewind(feed, MAX_UNACKED + 5), Inbox.revoke], ids=["reset", "lost"]
)
def test_who_waits_for_room_is_told_when_a_queue_waits_for_nothing_more(
    how: Callable[[Inbox, QueueFeed], object],
) -> None:
    """Messages of other queues are there, and nothing else may come."""
    told: list[bool] = []
    inbox = Inbox(lambda feed: None, acks=True, on_acked=lambda: told.append(inbox.empty))
    one, other = QueueFeed("orders", 0, 5), QueueFeed("orders", 1, 7)
    inbox.put(batch(one, 5, MAX_UNACKED))
    inbox.put(batch(other, 7, 1))
    assert [offset_of(inbox.take()) for _ in range(MAX_UNACKED)] == [*range(5, 5 + MAX_UNACKED)]
    assert (inbox.empty, told) == (True, [])
    how(inbox, one)
    assert told == [False]
    assert offset_of(inbox.take()) == 7
    how(inbox, other)
    assert told == [False], "nobody waits for room"

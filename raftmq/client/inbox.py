"""Between the pulls and the reader: what was pulled and not yet handed out, and how far the reader is.

A thread may read while the event loop fills and revokes; each step is under one lock. Invariants, per queue:
committed <= position <= next_offset, and a message is handed out only at or above `position`, so never twice.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from raftmq.client.errors import Failed
from raftmq.client.message import Message


class QueueFeed:
    """One queue that this consumer reads at present."""

    def __init__(self, queue_id: int, offset: int) -> None:
        self.queue_id = queue_id
        self.next_offset = offset
        """Where the next pull begins."""
        self.position = offset
        """Everything below was handed out or filtered out."""
        self.committed: int | None = None
        self.end: int | None = None
        """Where a reader that does not follow stops."""
        self.ask = 0
        """Broker id of whom to pull from, as the last reply suggested; 0 is the leader."""
        self.resets = 0
        """How often the group was reset while this consumer read the queue."""
        self.finished = False
        self.revoked = False
        self.buffered_messages = 0
        self.buffered_bytes = 0
        self.room = asyncio.Event()
        self.committing = asyncio.Lock()
        self.may_read: Callable[[], bool] = lambda: True
        """False once its lock has not been confirmed for too long: nothing more is handed out. Asked in any thread."""


class Batch:
    """What one pull gave; no messages if all were filtered out."""

    __slots__ = ("at", "feed", "messages", "next_offset", "size")

    def __init__(self, feed: QueueFeed, messages: list[Message], next_offset: int) -> None:
        self.feed = feed
        self.messages = messages
        self.next_offset = next_offset
        self.size = sum(len(m.body) for m in messages)
        self.at = 0


class Inbox:
    """Batches in arrival order. `on_room(feed)` runs in the reader's thread when a batch is used up."""

    def __init__(self, on_room: Callable[[QueueFeed], None]) -> None:
        self._lock = threading.Lock()
        self._ready: deque[Batch] = deque()
        self._current: tuple[QueueFeed, int] | None = None
        self._on_room = on_room

    def put(self, batch: Batch) -> None:
        """Adds a batch; the feed's next pull begins behind it."""
        feed = batch.feed
        with self._lock:
            if feed.revoked:
                return
            feed.next_offset = batch.next_offset
            feed.buffered_messages += len(batch.messages)
            feed.buffered_bytes += batch.size
            self._ready.append(batch)

    def take(self) -> Message | None:
        """The next message, None if there is none now. Asking for it says that the one before is dealt with."""
        used: list[QueueFeed] = []
        with self._lock:
            self._current = None
            message = self._take(used)
        for feed in used:
            self._on_room(feed)
        return message

    def _take(self, used: list[QueueFeed]) -> Message | None:
        while self._ready:
            batch = self._ready[0]
            feed = batch.feed
            message = None
            if not feed.may_read():
                feed.revoked = True
            if not feed.revoked and batch.at < len(batch.messages):
                message = batch.messages[batch.at]
                batch.at += 1
                if message.queue_offset < feed.position:
                    raise Failed(f"queue {feed.queue_id} offset {message.queue_offset} would be handed out twice")
                self._current = (feed, message.queue_offset)
                feed.position = message.queue_offset + 1
            if feed.revoked or batch.at == len(batch.messages):
                self._ready.popleft()
                feed.buffered_messages -= len(batch.messages)
                feed.buffered_bytes -= batch.size
                feed.position = feed.position if feed.revoked else batch.next_offset
                used.append(feed)
            if message is not None:
                return message
        return None

    @property
    def empty(self) -> bool:
        """True if `take` would find no batch."""
        return not self._ready

    def rewind(self, feed: QueueFeed, offset: int) -> None:
        """Goes on from `offset`: drops what is buffered. The message that is being dealt with does not count."""
        with self._lock:
            self._ready = deque(batch for batch in self._ready if batch.feed is not feed)
            feed.buffered_messages = feed.buffered_bytes = 0
            feed.next_offset = feed.position = feed.committed = offset
            feed.resets += 1
            if self._current is not None and self._current[0] is feed:
                self._current = None

    def revoke(self, feed: QueueFeed) -> int:
        """Stops handing out from `feed`; returns its position without the message still being dealt with."""
        with self._lock:
            feed.revoked = True
            return self._settled(feed)

    def in_hand(self, feed: QueueFeed) -> bool:
        """Whether the message handed out last is the feed's and may not be dealt with yet."""
        with self._lock:
            return self._current is not None and self._current[0] is feed

    def settled(self, feed: QueueFeed) -> int:
        """The feed's position without the message handed out last, which may not be dealt with yet."""
        with self._lock:
            return self._settled(feed)

    def _settled(self, feed: QueueFeed) -> int:
        if self._current is not None and self._current[0] is feed:
            return self._current[1]
        return feed.position

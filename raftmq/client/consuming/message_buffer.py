"""The buffer between a consumer's pulls and its reader: messages that were pulled and not yet handed out, and the
reader's position in each queue.

A thread may read while the event loop adds batches and revokes queues; each step is under one lock. Invariants, per
queue: committed <= position <= next_offset, and a message is handed out only at or above `position`, so never twice.
The one exception is a message that its reader puts back: `position` returns to it, and the queue rests until `resume`.
A seek sets new positions in its queue.

A reader that acknowledges each message may do so in any order and on any thread. The `settled` position of a queue is
its first message that was handed out and not acknowledged.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from raftmq.client.errors import Failed
from raftmq.client.message import Message
from raftmq_wire.queue_numbers import queue_text
from raftmq_wire.topic_identity import TopicIdentity


class QueueKey(NamedTuple):
    """The name of a queue: its topic and its id."""

    topic: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic} queue {queue_text(self.queue_id)}"


MAX_UNACKED = 10_000
"""The most messages that may be handed out and not acknowledged; at this number `take` hands out nothing more."""


class QueueFeed:
    """The state of one queue that this consumer reads: its positions, limits and lock."""

    def __init__(self, topic: str, queue_id: int, offset: int, counted_in: TopicIdentity | None = None) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.key = QueueKey(topic, queue_id)
        self.counted_in = counted_in
        """The identity of the topic in which the feed's offsets count; None if the cluster does not report it."""
        self.last_position = -1
        """Position in the log of the last message that was pulled."""
        self.gone_position = -1
        """Messages up to this position in the log belong to deleted topics of the same name. Positions in the log only
        grow."""
        self.next_offset = offset
        """The offset at which the next pull begins."""
        self.position = offset
        """The reader's position: every message below it was handed out or filtered out."""
        self.committed: int | None = None
        self.end: int | None = None
        """The offset at which a reader with `follow=False` stops; None for a reader that follows."""
        self.ask = 0
        """Broker id of the node to pull from, as the last reply suggested; 0 is the leader."""
        self.asked = ""
        """The address of the node that was asked last."""
        self.resets = 0
        """The number of times that a reset of the group or a seek has moved the queue's position."""
        self.finished = False
        self.revoked = False
        self.buffered_messages = 0
        self.buffered_bytes = 0
        self.room = asyncio.Event()
        self.committing = asyncio.Lock()
        self.unacked: dict[int, None] = {}
        """Offsets that were handed out and not acknowledged, ascending; filled only for a reader that acknowledges each
        message."""
        self.may_read: Callable[[], bool] = lambda: True
        """Returns whether messages may be handed out: False once the queue's lock has gone unconfirmed for too long.
        May be called in any thread."""


class Batch:
    """The result of one pull of a feed; it has no messages if all were filtered out."""

    __slots__ = ("at", "feed", "messages", "next_offset", "size")

    def __init__(self, feed: QueueFeed, messages: list[Message], next_offset: int) -> None:
        self.feed = feed
        self.messages = messages
        self.next_offset = next_offset
        self.size = sum(len(m.body) for m in messages)
        self.at = 0


class Inbox:
    """Holds batches of pulled messages in order of arrival. `on_room(feed)` runs in the reader's thread when all
    messages of a batch were handed out.

    `acks`: the reader acknowledges each message. Then `on_acked()` runs, in the thread that acknowledges, when the
    number of unacknowledged messages has fallen enough to hand out more; also when a queue is rewound or revoked.
    """

    def __init__(
        self, on_room: Callable[[QueueFeed], None], *, acks: bool = False, on_acked: Callable[[], None] | None = None
    ) -> None:
        self.acks = acks
        self._on_acked = on_acked
        self._unacked = 0
        self._lock = threading.Lock()
        self._ready: deque[Batch] = deque()
        self._current: tuple[QueueFeed | None, Message] | None = None
        """The message that was handed out last, with its feed; the feed is None after a reset of the group."""
        self._resting: dict[QueueFeed, deque[Batch]] = {}
        """Batches of queues that rest: none of their messages are handed out until `resume`."""
        self._on_room = on_room

    def put(self, batch: Batch) -> None:
        """Adds a batch and moves the feed's `next_offset` behind it. Drops the batch if the queue was revoked."""
        feed = batch.feed
        with self._lock:
            if feed.revoked:
                return
            feed.next_offset = batch.next_offset
            if batch.messages:
                feed.last_position = batch.messages[-1].position
            feed.buffered_messages += len(batch.messages)
            feed.buffered_bytes += batch.size
            self._resting.get(feed, self._ready).append(batch)

    def take(self) -> Message | None:
        """Returns the next message; None if there is none now. The message that was handed out before counts as handled
        from now on."""
        used: list[QueueFeed] = []
        with self._lock:
            self._current = None
            message = self._take(used)
        for feed in used:
            self._on_room(feed)
        return message

    def _take(self, used: list[QueueFeed]) -> Message | None:
        while self._ready and self._unacked < MAX_UNACKED:
            batch = self._ready[0]
            feed = batch.feed
            message = None
            if not feed.may_read():
                feed.revoked = True
            if not feed.revoked and batch.at < len(batch.messages):
                message = batch.messages[batch.at]
                batch.at += 1
                if message.queue_offset < feed.position:
                    raise Failed(f"{feed.key} offset {message.queue_offset} would be handed out twice")
                self._current = (feed, message)
                feed.position = message.queue_offset + 1
                if self.acks:
                    feed.unacked[message.queue_offset] = None
                    self._unacked += 1
            if feed.revoked or batch.at == len(batch.messages):
                self._ready.popleft()
                feed.buffered_messages -= len(batch.messages)
                feed.buffered_bytes -= batch.size
                feed.position = feed.position if feed.revoked else batch.next_offset
                used.append(feed)
            if message is not None:
                return message
        return None

    def put_back(self, message: Message) -> QueueFeed | None:
        """Puts the message handed out last back into its queue, and counts one more failure of it. The queue rests
        until `resume`, then the message is handed out again. Returns the queue's feed; None if this consumer has lost
        the queue, or the group was reset. Raises ValueError for any other message."""
        with self._lock:
            if self._current is None or self._current[1].position != message.position:
                raise ValueError("in an ordered consumer, only the message that was handed out last can be tried again")
            feed, self._current = self._current[0], None
            if feed is None or feed.revoked:
                return None
            again = msgspec.structs.replace(message, reconsume_times=message.reconsume_times + 1)
            first = Batch(feed, [again], feed.position)
            feed.position = message.queue_offset
            feed.buffered_messages += 1
            feed.buffered_bytes += first.size
            self._resting[feed] = deque(itertools.chain((first,), (b for b in self._ready if b.feed is feed)))
            self._ready = deque(batch for batch in self._ready if batch.feed is not feed)
            return feed

    def resume(self, feed: QueueFeed) -> None:
        """Ends the rest of a queue: the messages that were withheld are handed out again."""
        with self._lock:
            self._ready.extendleft(reversed(self._resting.pop(feed, ())))

    @property
    def resting(self) -> bool:
        """True if a message was put back and its queue still rests."""
        return bool(self._resting)

    @property
    def empty(self) -> bool:
        """True if `take` would find no batch, or must hand none out because too many messages are unacknowledged."""
        return not self._ready or self._unacked >= MAX_UNACKED

    def ack(self, feed: QueueFeed, queue_offset: int, *, and_before: bool = False) -> None:
        """Acknowledges the message at this offset; with `and_before`, all messages of its queue up to it. Any thread
        may call it."""
        with self._lock:
            if and_before:
                done = [offset for offset in feed.unacked if offset <= queue_offset]
            else:
                done = [queue_offset] if queue_offset in feed.unacked else []
            room = self._settle_unacked(feed, done)
        self._tell(room=room)

    def _settle_unacked(self, feed: QueueFeed, done: list[int]) -> bool:
        """Removes these offsets from the unacknowledged ones. Returns True if the number of unacknowledged messages
        fell below MAX_UNACKED, so that messages can be handed out again."""
        full = self._unacked >= MAX_UNACKED
        for offset in done:
            del feed.unacked[offset]
        self._unacked -= len(done)
        return full and self._unacked < MAX_UNACKED

    def _tell(self, *, room: bool) -> None:
        if room and self._on_acked is not None:
            self._on_acked()

    def rewind(self, feed: QueueFeed, offset: int, *, stored: bool = True) -> None:
        """Continues the feed at `offset` and drops its buffered messages. A message that the reader is still handling
        no longer affects the feed's position. `stored` says that the cluster already has `offset` as the group's
        committed offset."""
        with self._lock:
            self._ready = deque(batch for batch in self._ready if batch.feed is not feed)
            self._resting.pop(feed, None)
            feed.buffered_messages = feed.buffered_bytes = 0
            room = self._settle_unacked(feed, [*feed.unacked])
            feed.next_offset = feed.position = offset
            feed.committed = offset if stored else feed.committed
            feed.resets += 1
            if self._current is not None and self._current[0] is feed:
                self._current = (None, self._current[1])
        self._tell(room=room)

    def revoke(self, feed: QueueFeed) -> int:
        """Stops handing out messages of `feed`; returns its position without the messages that are still being
        handled."""
        with self._lock:
            feed.revoked = True
            self._resting.pop(feed, None)
            settled = self._settled(feed)
            room = self._settle_unacked(feed, [*feed.unacked])
        self._tell(room=room)
        return settled

    def in_hand(self, feed: QueueFeed) -> bool:
        """Returns True if the message handed out last belongs to the feed, and the reader may still be handling it."""
        with self._lock:
            return self._current is not None and self._current[0] is feed

    def settled(self, feed: QueueFeed) -> int:
        """Returns the feed's position without messages that may still be handled: the one handed out last, or those
        that are not acknowledged."""
        with self._lock:
            return self._settled(feed)

    def _settled(self, feed: QueueFeed) -> int:
        if self.acks:
            return next(iter(feed.unacked), feed.position)
        if self._current is not None and self._current[0] is feed:
            return self._current[1].queue_offset
        return feed.position

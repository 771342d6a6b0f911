"""AsyncConsumer: reads the queues that its group assigns to it, and commits the offsets of messages that were handed
out or acknowledged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType

from raftmq.client.arguments import check_count, check_named, check_seconds, names_of
from raftmq.client.cluster_view import ClusterView
from raftmq.client.consuming.assigned_queues import QueueShare
from raftmq.client.consuming.message_buffer import Inbox, QueueFeed, QueueKey
from raftmq.client.consuming.offsets import Start, check_start
from raftmq.client.consuming.pull import PullRequest, pull_once
from raftmq.client.consuming.run_loop import RunTimes, log_failure
from raftmq.client.consuming.send_back import BY_BACK_OFF, DEAD, LEVELS_S, RETRY_TOPIC, level_of, seconds_of, send_back
from raftmq.client.consuming.subscription import subscription
from raftmq.client.errors import Failed, RaftMQError, Unreachable
from raftmq.client.message import Message, check_queue_id
from raftmq.client.patience import COMMIT_EVERY_S
from raftmq.client.producing.delivery_delay import Delay
from raftmq_wire.codes import RequestCode
from raftmq_wire.topic_identity import Position

_log = logging.getLogger("raftmq")
_CHECK_S = 10.0


class AsyncConsumer:
    """One member of `group` reading one topic or several. Iterate over it; `commit()` covers all messages that were
    handed out so far.

    Leaving the `async with` block commits too. If the block ends with an exception, the message handed out last is not
    committed, and is delivered again. Without a block, the iteration opens the consumer, and the end of the iteration
    or of the client closes it. A consumer hands each message out once; after a crash or a rebalance the messages that
    were not committed are delivered again, to the consumer that then owns the queue. `trimmed` counts offsets that
    retention removed before they were read.

    With `manual_ack`, a message counts as handled once `ack(message)` is called, in any order. Commits, which are then
    made every 5 s, stop in each queue before the first message that is not acknowledged.

    With `ordered`, a consumer reads a queue only while it holds the queue's lock, so one consumer of the group reads it
    at a time, one message after the other. After a rebalance, the next owner begins once this reader has asked for a
    message after the queue's last one, or has closed. All members of the group should be ordered. A reader that handles
    one message for longer than the lock lasts loses the queue.
    """

    def __init__(
        self,
        view: ClusterView,
        group: str,
        topics: str | Iterable[str],
        *,
        start: Start = "earliest",
        tags: str | None = None,
        filter: str | None = None,
        follow: bool = True,
        max_wait_s: float | None = None,
        ordered: bool = False,
        max_retries: int | None = None,
        manual_ack: bool = False,
    ) -> None:
        check_start(start)
        if max_retries is not None:
            check_count("max_retries", max_retries)
        if max_wait_s is not None:
            check_seconds("max_wait_s", max_wait_s, zero=True)
        self.topics = names_of("topic", topics)
        if not group or not self.topics or not all(self.topics):
            raise ValueError("a consumer needs a group and a topic, or a list of topics")
        check_named("group", group)
        for topic in self.topics:
            check_named("topic", topic)
        if ordered and manual_ack:
            raise ValueError(
                "an ordered consumer deals with one message at a time, and asking for the next one acknowledges it: "
                "leave out manual_ack, or ordered"
            )
        self.group = group
        self.max_wait_s = max_wait_s
        self._view = view
        self._follow = follow
        self._ordered = ordered
        self._loop = view.bind_loop()
        self.inbox = Inbox(self._on_room, acks=manual_ack, on_acked=self._on_acked)
        self._max_retries = max_retries
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._closed = False
        self._opened_by_reading = False
        self._share = QueueShare(
            view,
            group,
            self.topics,
            self.inbox,
            subscription=subscription(tags, filter),
            start=start,
            follow=follow,
            ordered=ordered,
            on_change=self._changed.set,
            fail=self._fail,
            give_back=self._give_back,
        )

    async def open(self) -> AsyncConsumer:
        """Joins the group and starts to pull; does nothing if the consumer is open. Raises NotFound if a topic does not
        exist, other RaftMQErrors, and RuntimeError once the consumer is closed."""
        self._view.bind_loop()
        if self._closed:
            raise RuntimeError("the consumer is closed; make a new one")
        if not self._share.tasks:
            await self._share.open()
            if self.inbox.acks:
                self._share.tasks.append(self._share.spawn(self._keep_committing))
        return self

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._changed.set()

    def _on_room(self, feed: QueueFeed) -> None:
        if not feed.room.is_set():
            self._loop.call_soon_threadsafe(feed.room.set)

    def _on_acked(self) -> None:
        self._loop.call_soon_threadsafe(self._changed.set)

    # -- reading

    @property
    def undecoded(self) -> int:
        """The number of messages that went back to the group because their bodies cannot be decompressed."""
        return self._share.undecoded

    @property
    def trimmed(self) -> int:
        """The number of offsets that retention removed before they were read."""
        return self._share.trimmed

    @property
    def at_end(self) -> bool:
        """True if a consumer with `follow=False` has handed out all messages that it has to read."""
        share = self._share
        if self._follow or not self.inbox.empty or self.inbox.resting or share.missing or not share.assigned:
            return False
        return all(f.finished and not f.revoked for f in self._share.feeds.values())

    async def poll(self, timeout_s: float | None = None) -> Message | None:
        """Returns the next message; None at the end, or if none came within `timeout_s`."""
        while True:
            message = self.inbox.take()
            if message is not None or not await self.wait(timeout_s):
                return message

    async def wait(self, timeout_s: float | None) -> bool:
        """Waits until `inbox.take` may find a message. Returns False at the end, or after `timeout_s` without a
        message. Raises the error that ended the reading in the background, and RuntimeError if the consumer is not
        open."""
        self._view.bind_loop()
        self._check_open()
        try:
            async with asyncio.timeout(timeout_s):
                while self.inbox.empty:
                    if self._error is not None:
                        raise self._error
                    if self.is_over:
                        return False
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _check_open(self) -> None:
        if not self._share.tasks and not self._closed:
            raise RuntimeError("the consumer is not open: use it inside its `with` block, or call open() first")

    def __aiter__(self) -> AsyncConsumer:
        return self

    async def __anext__(self) -> Message:
        await self.open_for_reading()
        message = await self.poll(self.max_wait_s)
        if message is None:
            await self.end_of_reading()
            raise StopAsyncIteration
        return message

    async def open_for_reading(self) -> None:
        """Opens the consumer if it is iterated over without a `with` block."""
        if not self._share.tasks and not self._closed:
            await self.open()
            self._opened_by_reading = True

    async def end_of_reading(self) -> None:
        """Closes the consumer at the end of the iteration if `open_for_reading` opened it, since the program will
        not."""
        if self._opened_by_reading:
            await self.close()

    async def seek(
        self, to: Start | Position | Message, *, topic: str | None = None, queue_id: int | None = None
    ) -> None:
        """Continues reading at another place: "earliest", "latest", an aware datetime, an offset (with `queue_id`), or
        a message, which then comes again.

        A program that stores an offset should pass it as a Position, which has the topic's identity, because the offset
        is meaningless once the topic was deleted and created again. `seek` moves the queues that this consumer reads at
        present; `topic` and `queue_id` choose among them. The group's offsets move with the next commit. Raises
        ValueError for a queue that this consumer does not read, for an offset outside the queue, and for a position or
        a message of another topic; RaftMQError if the offsets cannot be asked for.
        """
        self._check_open()
        if queue_id is not None:
            check_queue_id(queue_id)
        if isinstance(to, Message):
            key = self._key_of(to)
            await self._check_there(key, to)
            await self._share.seek(key, to.queue_offset)
            return
        check_start(to.offset if isinstance(to, Position) else to)
        wanted = self.topics if topic is None else (topic,)
        keys = [k for k in sorted(self._share.feeds) if k.topic in wanted and queue_id in (None, k.queue_id)]
        if not keys:
            raise ValueError(f"this consumer reads no such queue at present; it reads {self._reads()}")
        if isinstance(to, int | Position) and (queue_id is None or len(keys) > 1):
            raise ValueError(
                "an offset counts the messages of one queue: give queue_id=, and topic= if there are several"
            )
        offsets = await asyncio.gather(*(self._checked_offset(key, to) for key in keys))
        for key, offset in zip(keys, offsets, strict=True):
            if key in self._share.feeds:
                await self._share.seek(key, offset)

    async def _checked_offset(self, key: QueueKey, to: Start | Position) -> int:
        offsets = self._share.offsets
        if isinstance(to, Position):
            _, met = await offsets.counted(RequestCode.GET_MAX_OFFSET, *key)
            if another := to.why_not_in(met):
                raise ValueError(f"offset {to.offset} means nothing in {key}: {another}")
            to = to.offset
        if isinstance(to, int):
            low, high = await asyncio.gather(offsets.min_offset(*key), offsets.max_offset(*key))
            if not low <= to <= high:
                raise ValueError(f"{key} has offsets {low} to {high}, and {to} is outside")
        return (await offsets.begin(*key, to)).offset

    async def _check_there(self, key: QueueKey, message: Message) -> None:
        """Raises ValueError if another message now has this message's offset, or if the queue ends below it: the topic
        was deleted and created again. A message that retention removed passes. Raises RaftMQError."""
        offset = message.queue_offset
        gone = await self._share.offsets.max_offset(*key) <= offset
        if not gone:
            try:
                async with asyncio.timeout(_CHECK_S):
                    view = await self._view.groups.at(key.queue_id)
                    link = await view.links.get(await view.find_leader())
                    found = await pull_once(link, PullRequest(*key, offset, self.group, max_messages=1))
            except OSError as error:
                what = f"pull of {key} offset {offset}"
                raise Unreachable(f"{what}: {error or 'no answer'}", retryable=True) from error
            there = (*found.messages, *found.unreadable)
            gone = any(one.queue_offset == offset and one.position != message.position for one in there)
        if gone:
            raise ValueError(f"message {message.message_id} is not in {key} any more")

    def _reads(self) -> str:
        keys = (key for key in sorted(self._share.feeds) if key.topic in self.topics)
        return ", ".join(map(str, keys)) or "none"

    def _key_of(self, message: Message) -> QueueKey:
        """Returns the queue that a message was read from, which is one of the retry topic if the message came again.
        Raises ValueError for a message of another topic."""
        again = message.reconsume_times > 0 and RETRY_TOPIC in message.properties
        key = QueueKey(self._share.retry_topic if again else message.topic, message.queue_id)
        if key.topic not in (*self.topics, self._share.retry_topic):
            raise ValueError(f"the message is of {message.topic}, and this consumer reads {', '.join(self.topics)}")
        return key

    # -- acknowledging, and what could not be handled

    def ack(self, message: Message) -> None:
        """Acknowledges the message: the next commit may cover it. Any thread may call it, in any order.

        It does nothing for a message whose queue has been assigned to another member: the message is delivered again
        there. Raises RuntimeError without `manual_ack`.
        """
        if not self.inbox.acks:
            raise RuntimeError(
                "ack() is for consumers made with manual_ack=True; without it, asking for the next message "
                "acknowledges the one before, and commit(message) stores it at once"
            )
        self._acked(message, and_before=False)

    def _acked(self, message: Message, *, and_before: bool) -> None:
        feed = self._share.feeds.get(self._key_of(message))
        if self.inbox.acks and feed is not None and message.position > feed.gone_position:
            self.inbox.ack(feed, message.queue_offset, and_before=and_before)

    async def retry(self, message: Message, *, after: Delay = None, level: int | None = None) -> None:
        """Stores the message to be delivered to the group again, after at least `after` seconds (or a timedelta), or at
        RocketMQ's delay level 1 (1 s) to 18 (2 h). Without either it is delivered after 10 s the first time, and one
        level later after each further failure. `after` is rounded up to a delay level. After `max_retries` retries the
        message is a dead letter.

        In an ordered consumer the message's queue waits for it, for exactly `after` (default 1 s), and only the message
        that was handed out last can be retried.

        When this returns, the retry is stored and the message counts as handled, so it may be committed. Raises
        RaftMQError if the retry could not be stored.
        """
        wanted = level_of(after, level)
        if not self._ordered:
            await send_back(self._view, self.group, message, wanted, self._max_retries)
            self._acked(message, and_before=False)
        elif self._max_retries is not None and message.reconsume_times >= self._max_retries:
            await self.dead_letter(message)
        else:
            self._rest(message, seconds_of(after) if after is not None else LEVELS_S[max(wanted, 1) - 1])

    async def dead_letter(self, message: Message) -> None:
        """Makes the message a dead letter: it is stored in `%DLQ%group` (`raftmq dlq`) and does not come again. Raises
        RaftMQError if it was not stored."""
        await send_back(self._view, self.group, message, DEAD, self._max_retries)
        self._acked(message, and_before=False)

    async def _give_back(self, message: Message) -> None:
        """Gives a message that cannot be read back to the cluster. It counts as failed, and another member of the group
        may read it. In an ordered consumer, where it would block its queue, it becomes a dead letter. Raises
        RaftMQError if it was not stored."""
        level = DEAD if self._ordered else BY_BACK_OFF
        await send_back(self._view, self.group, message, level, self._max_retries)

    def _rest(self, message: Message, seconds: float) -> None:
        feed = self.inbox.put_back(message)
        if feed is not None:
            self._loop.call_later(seconds, self._resume, feed, feed.resets)

    def _resume(self, feed: QueueFeed, resets: int) -> None:
        if feed.resets == resets:  # else a reset of the group has resumed the queue already
            self.inbox.resume(feed)
            self._changed.set()

    async def run(
        self, handle: Callable[[Message], Awaitable[object]], *, commit_every_s: float = COMMIT_EVERY_S
    ) -> None:
        """Calls `handle` for each message, one after the other, until there are no more messages to read, as in an
        iteration; commits every `commit_every_s` seconds.

        If `handle` raises an exception, it is logged and the message is retried as by `retry(message)`. Raises
        RaftMQError if the retry is not possible, or if nothing can be read; messages that were not handled then come
        again.
        """
        pace = self._pace(commit_every_s)
        while True:
            message = self.inbox.take()
            if message is not None:
                try:
                    await handle(message)
                except Exception:  # noqa: BLE001 - the program's own function
                    self._log_failure(message)
                    await self.retry(message)
                pace.handled()
            elif not await self.wait(pace.patience_s()) and (self.is_over or pace.waited_enough()):
                return
            if pace.commit_is_due():
                await self._try_to_commit()

    def _log_failure(self, message: Message) -> None:
        """Logs the exception that is being handled, and whether the message is retried or becomes a dead letter."""
        log_failure(self.group, message, self._max_retries, self._ordered)

    def _pace(self, commit_every_s: float) -> RunTimes:
        """Returns the `RunTimes` of one `run`: when it commits and when it ends."""
        return RunTimes(self._loop.time, commit_every_s, self.max_wait_s)

    @property
    def is_over(self) -> bool:
        """True if the consumer hands out no more messages."""
        return self.at_end or self._closed

    # -- committing

    def positions(self, topic: str | None = None) -> dict[int, int]:
        """Returns queue id -> the offset that `commit()` would store, for `topic`, which may be left out if there is
        only one. Raises ValueError for a topic that this consumer does not read."""
        return {queue_id: position.offset for queue_id, position in self.bookmarks(topic).items()}

    def bookmarks(self, topic: str | None = None) -> dict[int, Position]:
        """Returns the offsets of `positions` in a form to be stored: each as a Position, with the identity of its
        topic. `seek` accepts a Position, and refuses it in another topic."""
        if topic is None and len(self.topics) > 1:
            raise ValueError(f"this consumer reads several topics: positions(topic), one of {', '.join(self.topics)}")
        wanted = self.topics[0] if topic is None else topic
        if wanted not in self.topics:
            raise ValueError(f"this consumer does not read {wanted} but {', '.join(self.topics)}")
        return {
            key.queue_id: Position(self._committable(feed), feed.counted_in)
            for key, feed in self._share.feeds.items()
            if key.topic == wanted
        }

    def _committable(self, feed: QueueFeed) -> int:
        return self.inbox.settled(feed) if self.inbox.acks else feed.position

    async def commit(self, message: Message | None = None) -> None:
        """Commits all messages that were handed out so far, durably; with `manual_ack`, those that are acknowledged. If
        `message` is given, commits only its queue, up to and including this message.

        Raises RuntimeError if the consumer was never opened, and Unknown if the commit was not confirmed in time. With
        a message, raises Failed if its queue has been assigned to another member, to which the message is delivered
        again.
        """
        self._view.bind_loop()
        self._check_open()
        if message is None:
            await self._commit_all([(feed, self._committable(feed)) for feed in self._share.feeds.values()])
            return
        feed = self._share.feeds.get(self._key_of(message))
        if feed is not None and message.position <= feed.gone_position:
            return  # the message is of a deleted topic, from which nothing can be delivered again
        if feed is None or feed.revoked:
            raise Failed(
                f"commit of {message.place}: the queue has gone "
                f"to another member of {self.group}, and the message comes again there",
                hint="Make the handling of a message repeatable: look its key up before you act on it again.",
            )
        self._acked(message, and_before=True)
        await self._share.commit(feed, min(message.queue_offset + 1, feed.position))

    async def _commit_all(self, positions: Iterable[tuple[QueueFeed, int]]) -> None:
        commits = [self._share.commit(feed, position) for feed, position in positions]
        done = await asyncio.gather(*commits, return_exceptions=True)
        for outcome in done:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _try_to_commit(self) -> None:
        """Commits; only logs a failure, because the next commit covers the same messages."""
        try:
            await self.commit()
        except RaftMQError as error:
            _log.warning("group %s: not committed yet: %s", self.group, error)

    async def _keep_committing(self) -> None:
        while True:
            await asyncio.sleep(self._view.environment.patience.commit_every_s)
            await self._try_to_commit()

    async def close(self, *, commit: bool = True, current_done: bool = True) -> None:
        """Commits, leaves the group and closes the consumer. With `current_done=False`, the message handed out last
        counts as not handled."""
        if self._closed:
            return
        self._closed = True
        feeds = await self._share.stop()
        try:
            if commit:
                at = self._committable if current_done else self.inbox.settled
                await self._commit_all([(feed, at(feed)) for feed in feeds.values()])
        finally:
            self._changed.set()
            await self._share.leave(feeds)

    async def __aenter__(self) -> AsyncConsumer:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(current_done=kind is None)

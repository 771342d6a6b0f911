"""AsyncConsumer: reads the queues that its group gives it, and commits what was handed out.

Besides its topic it reads its share of `%RETRY%group`, where messages come again that the group could not handle.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from types import TracebackType

from raftmq.client.consuming.group_member import GroupMember, allocate_averagely
from raftmq.client.consuming.handling import COMMIT_EVERY_S, Pace, log_failure
from raftmq.client.consuming.inbox import Inbox, QueueFeed, QueueKey
from raftmq.client.consuming.locked_queues import QueueLocks
from raftmq.client.consuming.offsets import Offsets, Start, check_start
from raftmq.client.consuming.queue_puller import QueuePuller
from raftmq.client.consuming.send_back import BY_BACK_OFF, DEAD, LEVELS_S, RETRY_PREFIX, level_of, seconds_of, send_back
from raftmq.client.consuming.subscription import ALL, subscription
from raftmq.client.errors import NotFound, RaftMQError
from raftmq.client.message import Message
from raftmq.client.producing.delay import Delay
from raftmq.client.view import ClusterView

HEARTBEAT_S = 5.0
RELOCK_S = 1.0
"""Time after which an ordered consumer asks again for a queue that another client still holds, in seconds."""
DEALT_WITH_S = 0.05
"""Interval at which it looks if the reader is done with the last message of a queue that it hands over, in seconds."""
REBALANCE_S = 20.0
LEADER_CHECK_S = 2.0

_log = logging.getLogger("raftmq.consumer")


class AsyncConsumer:
    """One member of `group` reading one topic. Iterate it; `commit()` covers all that was handed out so far.

    Leaving the `async with` block commits too; after an exception without the message handed out last, which then
    comes again. Each message is handed out once by a consumer; after a crash or a rebalance what was not committed
    comes again, to the queue's owner then. `trimmed` counts offsets that retention removed before they were read.

    `ordered`: a queue is read only under its lock, so by one consumer of the group at a time, one message after the
    other: the next owner begins when the reader has asked for the message after the last one, or closes. All members of
    the group should be ordered. A reader that takes longer than the lock lasts loses the queue.
    """

    def __init__(
        self,
        view: ClusterView,
        group: str,
        topic: str,
        *,
        start: Start = "earliest",
        tags: str | None = None,
        filter: str | None = None,
        follow: bool = True,
        max_wait_s: float | None = None,
        ordered: bool = False,
        max_retries: int | None = None,
    ) -> None:
        check_start(start)
        if max_retries is not None and max_retries < 0:
            raise ValueError(f"max_retries={max_retries} is negative")
        if not group or not topic:
            raise ValueError("a consumer needs a group and a topic")
        self.group = group
        self.topic = topic
        self.max_wait_s = max_wait_s
        self._view = view
        self._start = start
        self._subscription = subscription(tags, filter)
        self._follow = follow
        self._loop = asyncio.get_running_loop()
        self.inbox = Inbox(self._on_room)
        self._retry_topic = RETRY_PREFIX + group
        self._max_retries = max_retries
        self._feeds: dict[QueueKey, QueueFeed] = {}
        self._pulls: dict[QueueKey, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._rebalance = asyncio.Event()
        self._error: Exception | None = None
        self._closed = False
        from_where = "CONSUME_FROM_LAST_OFFSET" if start == "latest" else "CONSUME_FROM_FIRST_OFFSET"
        wanted = {topic: self._subscription, self._retry_topic: ALL}
        self._member = GroupMember(view, group, wanted, from_where, self._rebalance.set)
        client_id = self._member.client_id
        self._offsets = Offsets(view, committer=client_id if ordered else None)
        links = self._member.links
        self._locks = QueueLocks(view, links, group, topic, client_id) if ordered else None
        self._puller = QueuePuller(
            view, links, group, wanted, self.inbox, self._changed.set, follow=follow, give_back=self._give_back
        )
        self._missing: frozenset[int] = frozenset()
        """Queues that are mine and locked by others."""
        self._leaving: dict[QueueKey, QueueFeed] = {}
        """Queues of others, whose last message the reader is still dealing with."""
        self._locking = asyncio.Lock()
        """Held while the cluster is asked: a lock that arrives behind an unlock would keep the queue from its owner."""

    async def open(self) -> AsyncConsumer:
        """Joins the group and starts to pull. Raises NotFound for no such topic, and other RaftMQErrors."""
        try:
            await self._view.route(self.topic, timeout_s=10.0, fresh=True)
            await self._member.join()
            await self._assign()
        except BaseException:
            self._member.links.close()
            raise
        self._tasks = [self._spawn(self._keep_membership), self._spawn(self._watch_leader)]
        return self

    def _spawn(self, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        return self._loop.create_task(self._guard(work))

    async def _guard(self, work: Callable[[], Awaitable[None]]) -> None:
        """An unexpected end of a background task reaches the reader."""
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - handed to the reader
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._changed.set()

    # -- membership

    async def _keep_membership(self) -> None:
        rebalance_at = self._loop.time() + REBALANCE_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RELOCK_S if self._missing else HEARTBEAT_S):
                    await self._rebalance.wait()
            asked = self._rebalance.is_set()
            self._rebalance.clear()
            try:
                await self._member.heartbeat()
                if asked or self._locks is not None or self._loop.time() >= rebalance_at:
                    rebalance_at = self._loop.time() + REBALANCE_S
                    await self._assign()
            except NotFound:
                raise
            except RaftMQError as error:
                _log.info("group %s: rebalance put off: %s", self.group, error)

    async def _assign(self) -> None:
        """Takes the queues that are mine by the members' common rule, gives up the others."""
        members = await self._member.members()
        route = await self._view.route(self.topic, timeout_s=10.0, fresh=True)
        retry_queues = await self._count_retry_queues()
        if self._member.client_id not in members:
            return
        mine: dict[str, frozenset[int]] = {
            topic: frozenset(allocate_averagely(members, self._member.client_id, queues))
            for topic, queues in ((self.topic, route.read_queues), (self._retry_topic, retry_queues))
        }
        for key in [key for key in self._feeds if key.queue_id not in mine[key.topic]]:
            await self._release(key)
        if self._locks is not None:
            mine[self.topic] = await self._locked(self._locks, mine[self.topic])
        keys = [QueueKey(topic, queue_id) for topic, queues in mine.items() for queue_id in sorted(queues)]
        new = [key for key in keys if key not in self._feeds]
        feeds = await asyncio.gather(*(self._make_feed(key) for key in new))
        for key, feed in zip(new, feeds, strict=True):
            self._feeds[key] = feed
            self._pulls[key] = self._spawn(partial(self._keep_pulling, feed))
        self._changed.set()

    async def _count_retry_queues(self) -> int:
        """The cluster makes the topic for a group's first member, unless the group wants no retries."""
        try:
            return (await self._view.route(self._retry_topic, timeout_s=10.0, fresh=True)).read_queues
        except NotFound:
            return 0

    def _of_topic(self) -> dict[int, QueueFeed]:
        """queue id -> the feeds of the consumer's own topic, which alone are locked."""
        return {key.queue_id: feed for key, feed in self._feeds.items() if key.topic == self.topic}

    async def _locked(self, locks: QueueLocks, mine: frozenset[int]) -> frozenset[int]:
        """Locks my queues, again if they are locked already; those that it may read. Gives up what it has lost."""
        for queue_id in [q for q in self._of_topic() if not locks.holds(q)]:
            self._lose(queue_id)  # somebody else may have read on meanwhile
        async with self._locking:  # which queues are leaving changes while it is waited for
            held = await locks.lock(mine | self._leaving_ids())
        for queue_id in [q for q, feed in self._of_topic().items() if q not in held or feed.revoked]:
            self._lose(queue_id)
        readable = mine & held - self._leaving_ids()
        self._missing = mine - readable
        return readable

    def _leaving_ids(self) -> frozenset[int]:
        return frozenset(key.queue_id for key in self._leaving)

    def _lose(self, queue_id: int) -> None:
        """Drops a queue whose lock is lost. Messages that were read and not committed come again, to the client that
        then holds the queue."""
        _log.warning("group %s queue %d: its lock is lost", self.group, queue_id)
        key = QueueKey(self.topic, queue_id)
        self._pulls.pop(key).cancel()
        self.inbox.revoke(self._feeds.pop(key))

    async def _make_feed(self, key: QueueKey) -> QueueFeed:
        topic, queue_id = key
        committed = await self._offsets.committed(self.group, topic, queue_id)
        offset = committed
        if offset is None:
            start = self._start if topic == self.topic else "earliest"  # what failed before must not be skipped
            offset = await self._offsets.begin(topic, queue_id, start)
        feed = QueueFeed(topic, queue_id, offset)
        feed.committed = committed
        if self._locks is not None and topic == self.topic:
            feed.may_read = partial(self._locks.holds, queue_id)
        if not self._follow:
            feed.end = await self._offsets.max_offset(topic, queue_id)
            feed.finished = offset >= feed.end
        return feed

    async def _release(self, key: QueueKey) -> None:
        feed = self._feeds.pop(key)
        self._pulls.pop(key).cancel()
        position = self.inbox.revoke(feed)
        if self._locks is not None and key.topic == self.topic:
            self._leaving[key] = feed
            self._tasks.append(self._spawn(partial(self._hand_over, self._locks, key, feed)))
            return
        try:
            await self._commit_feed(feed, position)
        except RaftMQError as error:
            _log.warning("group %s queue %d: released without a commit: %s", self.group, key.queue_id, error)

    async def _hand_over(self, locks: QueueLocks, key: QueueKey, feed: QueueFeed) -> None:
        """Lets the next owner begin once the reader is done with the queue's last message."""
        while self.inbox.in_hand(feed) and locks.holds(feed.queue_id):  # noqa: ASYNC110 - the reader may be a thread
            await asyncio.sleep(DEALT_WITH_S)
        try:
            await self._commit_feed(feed, self.inbox.settled(feed))
        except RaftMQError as error:
            _log.warning("group %s queue %d: handed over without a commit: %s", self.group, feed.queue_id, error)
        async with self._locking:
            del self._leaving[key]
            try:
                await locks.unlock([feed.queue_id])
            except RaftMQError as error:
                _log.warning("group %s queue %d: free when its lock ends: %s", self.group, feed.queue_id, error)

    # -- pulling

    async def _keep_pulling(self, feed: QueueFeed) -> None:
        try:
            await self._puller.keep_pulling(feed)
        except NotFound:
            if feed.topic == self.topic:
                raise
            self._drop(feed)
        self._changed.set()

    def _drop(self, feed: QueueFeed) -> None:
        """The group's retry topic was deleted. If it is made again, the next rebalance finds it."""
        key = QueueKey(feed.topic, feed.queue_id)
        self._feeds.pop(key, None)
        self._pulls.pop(key, None)
        self.inbox.revoke(feed)

    async def _watch_leader(self) -> None:
        while True:
            await asyncio.sleep(LEADER_CHECK_S)
            await self._puller.check_leader(LEADER_CHECK_S)

    def _on_room(self, feed: QueueFeed) -> None:
        if not feed.room.is_set():
            self._loop.call_soon_threadsafe(feed.room.set)

    # -- reading

    @property
    def trimmed(self) -> int:
        """Offsets that retention removed before they were read."""
        return self._puller.trimmed

    @property
    def at_end(self) -> bool:
        """True if nothing is left to hand out of what a reader that does not follow wants."""
        if self._follow or not self.inbox.empty or self.inbox.resting or self._missing:
            return False
        return all(f.finished and not f.revoked for f in self._feeds.values())

    async def poll(self, timeout_s: float | None = None) -> Message | None:
        """The next message; None at the end, or when none came within `timeout_s`."""
        while True:
            message = self.inbox.take()
            if message is not None or not await self.wait(timeout_s):
                return message

    async def wait(self, timeout_s: float | None) -> bool:
        """Waits until `inbox.take` may find something. False: the end, or `timeout_s` without anything. Raises the
        error that ended the reading, RuntimeError before the consumer is open."""
        if not self._tasks and not self._closed:
            raise RuntimeError("the consumer is not open: read it inside its `with` block, or call open() first")
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

    def __aiter__(self) -> AsyncConsumer:
        return self

    async def __anext__(self) -> Message:
        message = await self.poll(self.max_wait_s)
        if message is None:
            raise StopAsyncIteration
        return message

    # -- what could not be handled

    async def retry(self, message: Message, *, after: Delay = None, level: int | None = None) -> None:
        """The message comes again to the group, after at least `after` seconds (or a timedelta), or at RocketMQ's delay
        level 1 (1 s) to 18 (2 h); without either 10 s after the first failure, and a level longer each time. The delay
        is the shortest level that is long enough. After `max_retries` retries the message is a dead letter.

        In an ordered consumer its queue waits for it, for exactly `after` (else 1 s), and only the message that was
        handed out last can be retried.

        Returns when it is safe: the message is dealt with and may be committed. Raises RaftMQError if it is not.
        """
        wanted = level_of(after, level)
        if self._locks is None:
            await send_back(self._view, self.group, message, wanted, self._max_retries)
        elif self._max_retries is not None and message.reconsume_times >= self._max_retries:
            await self.dead_letter(message)
        else:
            self._rest(message, seconds_of(after) if after is not None else LEVELS_S[max(wanted, 1) - 1])

    async def dead_letter(self, message: Message) -> None:
        """Gives the message up: it is stored in `%DLQ%group` (`raftmq dlq`) and does not come again. Raises RaftMQError
        if it was not stored."""
        await send_back(self._view, self.group, message, DEAD, self._max_retries)

    async def _give_back(self, message: Message) -> None:
        """Gives a message back that cannot be read. It counts as failed: another member of the group may read it. In an
        ordered consumer, where it would keep its queue waiting for ever, it is a dead letter. Raises RaftMQError if it
        was not stored."""
        level = BY_BACK_OFF if self._locks is None else DEAD
        await send_back(self._view, self.group, message, level, self._max_retries)

    def _rest(self, message: Message, seconds: float) -> None:
        feed = self.inbox.put_back(message)
        if feed is not None:
            self._loop.call_later(seconds, self._resume, feed, feed.resets)

    def _resume(self, feed: QueueFeed, resets: int) -> None:
        if feed.resets == resets:  # else its queue goes on already
            self.inbox.resume(feed)
            self._changed.set()

    async def run(
        self, handle: Callable[[Message], Awaitable[object]], *, commit_every_s: float = COMMIT_EVERY_S
    ) -> None:
        """Calls `handle` for each message, one after the other, until the iteration would end; commits now and then.

        An exception of `handle` is logged and the message retried, as by `retry(message)`. Raises RaftMQError if that
        is not possible, or nothing can be read: what was not dealt with comes again.
        """
        pace = self.pace(commit_every_s)
        while True:
            message = self.inbox.take()
            if message is not None:
                try:
                    await handle(message)
                except Exception:  # noqa: BLE001 - the program's own function
                    self.log_failure(message)
                    await self.retry(message)
                pace.handled()
            elif not await self.wait(pace.patience_s()) and (self.is_over or pace.waited_enough()):
                return
            if pace.commit_is_due():
                await self.try_to_commit()

    def log_failure(self, message: Message) -> None:
        """Tells of the exception that is being handled, and what becomes of its message."""
        log_failure(self.group, message, self._max_retries, self._locks is not None)

    def pace(self, commit_every_s: float) -> Pace:
        """Returns the pace of one `run`."""
        return Pace(self._loop.time, commit_every_s, self.max_wait_s)

    @property
    def is_over(self) -> bool:
        """True if nothing more is handed out."""
        return self.at_end or self._closed

    async def try_to_commit(self) -> None:
        """Commits; if that fails, what is not committed is part of the next commit."""
        try:
            await self.commit()
        except RaftMQError as error:
            _log.warning("group %s: not committed yet: %s", self.group, error)

    # -- committing

    def positions(self) -> dict[int, int]:
        """queue id -> the offset that `commit()` would store, of the consumer's topic."""
        return {queue_id: feed.position for queue_id, feed in self._of_topic().items()}

    async def commit(self) -> None:
        """Commits everything handed out so far, durably. Raises Unknown if nobody confirmed it in time."""
        await self._commit_all([(feed, feed.position) for feed in self._feeds.values()])

    async def _commit_all(self, positions: Iterable[tuple[QueueFeed, int]]) -> None:
        commits = [self._commit_feed(feed, position) for feed, position in positions]
        done = await asyncio.gather(*commits, return_exceptions=True)
        for outcome in done:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _commit_feed(self, feed: QueueFeed, position: int) -> None:
        resets = feed.resets
        async with feed.committing:
            if feed.committed != position and feed.resets == resets and feed.may_read():
                await self._offsets.commit(self.group, feed.topic, feed.queue_id, position)
                feed.committed = position

    async def close(self, *, commit: bool = True, current_done: bool = True) -> None:
        """Commits, leaves the group, closes. `current_done=False`: the last message handed out is not dealt with."""
        if self._closed:
            return
        self._closed = True
        feeds = {**self._leaving, **self._feeds}
        locked = {key.queue_id for key in feeds if key.topic == self.topic}
        tasks = (*self._pulls.values(), *self._tasks)
        async with self._locking:
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            if commit:
                settle = self.inbox.settled
                await self._commit_all([(f, f.position if current_done else settle(f)) for f in feeds.values()])
        finally:
            self._changed.set()
            if self._locks is not None:
                with contextlib.suppress(RaftMQError):  # they expire
                    await self._locks.unlock(locked)
            await self._member.leave()

    async def __aenter__(self) -> AsyncConsumer:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(current_done=kind is None)

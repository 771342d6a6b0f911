"""AsyncConsumer: reads the queues that its group gives it, and commits what was handed out.

One pull per queue is always on its way or parked at the leader. After a leader change each queue goes on at its own
next offset, which the pulled messages must continue without a gap; anything else is an error, not a skip.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from types import TracebackType

from cluster.wire.codes import RequestCode, ResponseCode
from raftmq.client.errors import Failed, NotFound, RaftMQError, Refused, Unreachable
from raftmq.client.group_member import GroupMember, allocate_averagely
from raftmq.client.inbox import Batch, Inbox, QueueFeed
from raftmq.client.locked_queues import QueueLocks
from raftmq.client.message import Message
from raftmq.client.offsets import Offsets, Start, check_start
from raftmq.client.pull import PullRequest, PullResult, PullStatus, pull_once
from raftmq.client.subscription import subscription
from raftmq.client.view import Backoff, ClusterView

HEARTBEAT_S = 5.0
RELOCK_S = 1.0
"""How soon an ordered consumer asks again for a queue that another client still holds."""
DEALT_WITH_S = 0.05
"""How often it looks whether the reader is done with the last message of a queue that it hands over."""
REBALANCE_S = 20.0
LONG_POLL_S = 15.0
LEADER_CHECK_S = 2.0
PULL_RETRY_S = 30.0
"""How long a queue's pulls may fail with errors of the server before the reader is told."""
MAX_BUFFERED_MESSAGES = 2048
MAX_BUFFERED_BYTES = 64 << 20

_log = logging.getLogger("raftmq.consumer")


class AsyncConsumer:
    """One member of `group` reading one topic. Iterate it; `commit()` covers all that was handed out so far.

    Leaving the `async with` block commits too; after an exception without the message handed out last, which then
    comes again. Each message is handed out once by a consumer; after a crash or a rebalance what was not committed
    comes again, to whoever owns the queue. `trimmed` counts offsets that retention removed before they were read.

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
    ) -> None:
        check_start(start)
        if not group or not topic:
            raise ValueError("a consumer needs a group and a topic")
        self.group = group
        self.topic = topic
        self.trimmed = 0
        self.max_wait_s = max_wait_s
        self._view = view
        self._start = start
        self._subscription = subscription(tags, filter)
        self._follow = follow
        self._loop = asyncio.get_running_loop()
        self.inbox = Inbox(self._on_room)
        self._feeds: dict[int, QueueFeed] = {}
        self._pulls: dict[int, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._rebalance = asyncio.Event()
        self._error: Exception | None = None
        self._closed = False
        from_where = "CONSUME_FROM_LAST_OFFSET" if start == "latest" else "CONSUME_FROM_FIRST_OFFSET"
        self._member = GroupMember(view, group, topic, self._subscription, from_where, self._rebalance.set)
        client_id = self._member.client_id
        self._offsets = Offsets(view, committer=client_id if ordered else None)
        self._locks = QueueLocks(view, group, topic, client_id) if ordered else None
        self._missing: frozenset[int] = frozenset()
        """Queues that are mine and locked by others."""
        self._leaving: dict[int, QueueFeed] = {}
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
        if self._member.client_id not in members:
            return
        mine: Iterable[int] = allocate_averagely(members, self._member.client_id, route.read_queues)
        for queue_id in [q for q in self._feeds if q not in mine]:
            await self._release(queue_id)
        if self._locks is not None:
            mine = await self._locked(self._locks, frozenset(mine))
        new = [q for q in mine if q not in self._feeds]
        feeds = await asyncio.gather(*(self._make_feed(q) for q in new))
        for feed in feeds:
            self._feeds[feed.queue_id] = feed
            self._pulls[feed.queue_id] = self._spawn(partial(self._keep_pulling, feed))
        self._changed.set()

    async def _locked(self, locks: QueueLocks, mine: frozenset[int]) -> list[int]:
        """Locks my queues, again if they are locked already; those that it may read. Gives up what it has lost."""
        for queue_id in [q for q in self._feeds if not locks.holds(q)]:
            self._lose(queue_id)  # somebody else may have read on meanwhile
        async with self._locking:
            held = await locks.lock(mine | self._leaving.keys())
        for queue_id in [q for q, feed in self._feeds.items() if q not in held or feed.revoked]:
            self._lose(queue_id)
        readable = mine & held - self._leaving.keys()
        self._missing = mine - readable
        return sorted(readable)

    def _lose(self, queue_id: int) -> None:
        """What was read and not committed comes again, to whoever holds the queue."""
        _log.warning("group %s queue %d: its lock is lost", self.group, queue_id)
        self._pulls.pop(queue_id).cancel()
        self.inbox.revoke(self._feeds.pop(queue_id))

    async def _make_feed(self, queue_id: int) -> QueueFeed:
        committed = await self._offsets.committed(self.group, self.topic, queue_id)
        offset = committed
        if offset is None:
            offset = await self._offsets.begin(self.topic, queue_id, self._start)
        feed = QueueFeed(queue_id, offset)
        feed.committed = committed
        if self._locks is not None:
            feed.may_read = partial(self._locks.holds, queue_id)
        if not self._follow:
            feed.end = await self._offsets.max_offset(self.topic, queue_id)
            feed.finished = offset >= feed.end
        return feed

    async def _release(self, queue_id: int) -> None:
        feed = self._feeds.pop(queue_id)
        self._pulls.pop(queue_id).cancel()
        position = self.inbox.revoke(feed)
        if self._locks is not None:
            self._leaving[queue_id] = feed
            self._tasks.append(self._spawn(partial(self._hand_over, self._locks, feed)))
            return
        try:
            await self._commit_feed(feed, position)
        except RaftMQError as error:
            _log.warning("group %s queue %d: released without a commit: %s", self.group, queue_id, error)

    async def _hand_over(self, locks: QueueLocks, feed: QueueFeed) -> None:
        """Lets the next owner begin once the reader is done with the queue's last message."""
        while self.inbox.in_hand(feed) and locks.holds(feed.queue_id):  # noqa: ASYNC110 - the reader may be a thread
            await asyncio.sleep(DEALT_WITH_S)
        try:
            await self._commit_feed(feed, self.inbox.settled(feed))
        except RaftMQError as error:
            _log.warning("group %s queue %d: handed over without a commit: %s", self.group, feed.queue_id, error)
        async with self._locking:
            del self._leaving[feed.queue_id]
            try:
                await locks.unlock([feed.queue_id])
            except RaftMQError as error:
                _log.warning("group %s queue %d: free when its lock ends: %s", self.group, feed.queue_id, error)

    # -- pulling

    async def _keep_pulling(self, feed: QueueFeed) -> None:
        backoff, failing_since = Backoff(self._view.jitter), None
        while not feed.finished:
            await self._wait_for_room(feed)
            began = self._loop.time()
            try:
                result = await self._pull(feed)
                idle = await self._take_in(feed, result)
            except OSError:
                await backoff.pause()
                continue
            except RaftMQError as error:
                failing_since = began if failing_since is None else failing_since
                if not _passes(error) or self._loop.time() - failing_since > PULL_RETRY_S:
                    raise
                await backoff.pause()
                continue
            failing_since = None
            if idle and self._loop.time() - began < 0.01:
                await backoff.pause()
            else:
                backoff = Backoff(self._view.jitter)
        self._changed.set()

    async def _wait_for_room(self, feed: QueueFeed) -> None:
        most = max(256 << 10, MAX_BUFFERED_BYTES // max(1, len(self._feeds)))
        while feed.buffered_messages >= MAX_BUFFERED_MESSAGES or feed.buffered_bytes >= most:
            feed.room.clear()
            if feed.buffered_messages >= MAX_BUFFERED_MESSAGES or feed.buffered_bytes >= most:
                await feed.room.wait()

    def _on_room(self, feed: QueueFeed) -> None:
        if not feed.room.is_set():
            self._loop.call_soon_threadsafe(feed.room.set)

    async def _pull(self, feed: QueueFeed) -> PullResult:
        """One pull, at the leader unless a reply suggested another node. Raises OSError after telling the view, so that
        the next one looks for the leader."""
        async with asyncio.timeout(30.0):
            leader = await self._view.find_leader()
        address = self._view.by_id.get(str(feed.ask), leader) if feed.ask else leader
        request = PullRequest(
            self.topic,
            feed.queue_id,
            feed.next_offset,
            self.group,
            subscription=self._subscription,
            wait_s=LONG_POLL_S if self._follow else 0.0,
        )
        try:
            result = await pull_once(await self._member.links.get(address), request)
        except TimeoutError:
            feed.ask = 0
            self._member.links.drop(address)
            self._view.suspect(address)
            raise
        except OSError:
            feed.ask = 0
            self._view.suspect(address)
            raise
        except RaftMQError:
            feed.ask = 0
            raise
        feed.ask = result.ask_next
        return result

    async def _take_in(self, feed: QueueFeed, result: PullResult) -> bool:
        """Puts a pull's messages into the inbox; True if it brought nothing."""
        if result.status is PullStatus.MOVED:
            await self._moved(feed, result)
            return True
        if result.status is PullStatus.RESET:
            async with feed.committing:  # a commit from before is answered before the broker hears that we know
                self.inbox.rewind(feed, result.next_offset)
            _log.warning("%s queue %d: group %s was reset to %d", self.topic, feed.queue_id, self.group, feed.position)
            return False
        idle = result.status is PullStatus.END or result.next_offset <= feed.next_offset
        if not idle:
            self.inbox.put(Batch(feed, result.messages, result.next_offset))
        if feed.end is not None and feed.next_offset >= feed.end:
            feed.finished = True
        self._changed.set()
        return idle

    async def _moved(self, feed: QueueFeed, result: PullResult) -> None:
        """The offset lies outside the queue. Below the first: retention was faster, go on there and count it. Above
        the last: a replica may lag, so the leader is asked; if it is true, the queue was cut or made anew.
        """
        offset = feed.next_offset
        if result.next_offset > offset:
            self.trimmed += result.next_offset - offset
            _log.warning(
                "%s queue %d: offsets %d to %d were removed by retention before group %s read them",
                self.topic,
                feed.queue_id,
                offset,
                result.next_offset - 1,
                self.group,
            )
            self.inbox.put(Batch(feed, [], result.next_offset))
            return
        last = await self._offsets.max_offset(self.topic, feed.queue_id)
        if last < offset:
            raise Failed(
                f"{self.topic} queue {feed.queue_id} ends at offset {last}, group {self.group} is already at {offset}",
                code=ResponseCode.PULL_OFFSET_MOVED,
                hint="Was the topic deleted and created again? Delete the group's offsets, or commit a lower one.",
            )

    async def _watch_leader(self) -> None:
        """A parked pull hides a stopped or deposed leader: ask it now and then, and let go when it does not answer."""
        while True:
            await asyncio.sleep(LEADER_CHECK_S)
            leader = self._view.leader
            if leader is None:
                continue
            try:
                link = await self._member.links.get(leader)
                await link.call(RequestCode.GET_BROKER_CLUSTER_INFO, {}, timeout_s=LEADER_CHECK_S)
            except OSError:
                self._member.links.drop(leader)
                self._view.links.drop(leader)
                self._view.suspect(leader)

    # -- reading

    @property
    def at_end(self) -> bool:
        """True if nothing is left to hand out of what a reader that does not follow wants."""
        if self._follow or not self.inbox.empty or self._missing:
            return False
        return all(f.finished and not f.revoked for f in self._feeds.values())

    async def wait(self, timeout_s: float | None) -> bool:
        """Until `inbox.take` may find something. False: the end, or `timeout_s` without anything. Raises what ended
        the reading."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.inbox.empty:
                    if self._error is not None:
                        raise self._error
                    if self.at_end or self._closed:
                        return False
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def __aiter__(self) -> AsyncConsumer:
        return self

    async def __anext__(self) -> Message:
        while True:
            message = self.inbox.take()
            if message is not None:
                return message
            if not await self.wait(self.max_wait_s):
                raise StopAsyncIteration

    # -- committing

    def positions(self) -> dict[int, int]:
        """queue id -> the offset that `commit()` would store."""
        return {q: feed.position for q, feed in self._feeds.items()}

    async def commit(self) -> None:
        """Commits everything handed out so far, durably. Raises Unknown if nobody confirmed it in time."""
        await self._commit_all({q: feed.position for q, feed in self._feeds.items()})

    async def _commit_all(self, positions: dict[int, int]) -> None:
        feeds = {**self._leaving, **self._feeds}
        commits = [self._commit_feed(feeds[q], position) for q, position in positions.items()]
        done = await asyncio.gather(*commits, return_exceptions=True)
        for outcome in done:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _commit_feed(self, feed: QueueFeed, position: int) -> None:
        resets = feed.resets
        async with feed.committing:
            if feed.committed != position and feed.resets == resets and feed.may_read():
                await self._offsets.commit(self.group, self.topic, feed.queue_id, position)
                feed.committed = position

    async def close(self, *, commit: bool = True, current_done: bool = True) -> None:
        """Commits, leaves the group, closes. `current_done=False`: the last message handed out is not dealt with."""
        if self._closed:
            return
        self._closed = True
        feeds = {**self._leaving, **self._feeds}
        tasks = (*self._pulls.values(), *self._tasks)
        async with self._locking:
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._leaving = {q: feed for q, feed in feeds.items() if q not in self._feeds}
        try:
            if commit:
                settled = {q: f.position if current_done else self.inbox.settled(f) for q, f in feeds.items()}
                await self._commit_all(settled)
        finally:
            self._changed.set()
            if self._locks is not None:
                with contextlib.suppress(RaftMQError):  # they expire
                    await self._locks.unlock(feeds)
            await self._member.leave()

    async def __aenter__(self) -> AsyncConsumer:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(current_done=kind is None)


def _passes(error: RaftMQError) -> bool:
    """Errors of a pull that may be over soon: a subscription not yet known, a busy or changing leader."""
    if isinstance(error, Unreachable) or error.retryable:
        return True
    return error.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_NOT_EXIST) or (
        isinstance(error, Refused) and error.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    )

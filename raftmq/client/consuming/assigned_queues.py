"""The queues that one consumer reads: its share of the topics. The consumer takes up and gives up queues as members of
the group come and go. It also reads its share of `%RETRY%group`, the topic with messages that the group failed to
handle.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

from raftmq.client.cluster_view import Backoff, ClusterView
from raftmq.client.consuming.group_member import GroupMember, allocate_averagely
from raftmq.client.consuming.locked_queues import QueueLocks
from raftmq.client.consuming.message_buffer import Inbox, QueueFeed, QueueKey
from raftmq.client.consuming.offsets import Offsets, Start
from raftmq.client.consuming.queue_puller import QueuePuller, check_not_beyond
from raftmq.client.consuming.send_back import RETRY_PREFIX
from raftmq.client.consuming.subscription import ALL, Subscription
from raftmq.client.errors import Denied, Failed, NotFound, RaftMQError, Refused, error_of
from raftmq.client.group_views import of_each
from raftmq.client.message import Message
from raftmq.client.route import PERM_WRITE, Route
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.denial import unreadable_topic
from raftmq_wire.queue_numbers import group_of
from raftmq_wire.topic_identity import Position, why_another

REBALANCE_S = 20.0
LEADER_CHECK_S = 2.0
COMMIT_TRIES, COMMIT_PAUSE_S = 4, 0.2
ROUTE_TRIES = 6

_log = logging.getLogger("raftmq")


class QueueShare:
    """Keeps one consumer's group membership, and a feed for each queue that it reads. `on_change` runs when there may
    be something to read, `fail(error)` when a background task ends with an error."""

    def __init__(
        self,
        view: ClusterView,
        group: str,
        topics: Sequence[str],
        inbox: Inbox,
        *,
        subscription: Subscription,
        start: Start,
        follow: bool,
        ordered: bool,
        on_change: Callable[[], None],
        fail: Callable[[Exception], None],
        give_back: Callable[[Message], Awaitable[None]],
    ) -> None:
        self.group = group
        self.topics = topics
        self.retry_topic = RETRY_PREFIX + group
        self.feeds: dict[QueueKey, QueueFeed] = {}
        self.leaving: dict[QueueKey, QueueFeed] = {}
        """Queues that now belong to other members, while this reader still handles the last message of each."""
        self.assigned = False
        """True once this consumer has taken its whole share. It cannot while a new leader does not list it as a member
        yet."""
        self.behind = False
        """True while this consumer has not begun to read some queues of its share, because their group of brokers does
        not answer."""
        self.missing: frozenset[QueueKey] = frozenset()
        """Queues that belong to this consumer and are still locked by others."""
        self.tasks: list[asyncio.Task[None]] = []
        self.rebalance = asyncio.Event()
        self.locking = asyncio.Lock()
        """Held while locks are requested or released. Otherwise a lock request could reach the server after the unlock,
        and keep the queue from its next owner."""
        self._view = view
        self._patience = view.environment.patience
        self._inbox = inbox
        self._start = start
        self._follow = follow
        self._on_change = on_change
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._pulls: dict[QueueKey, asyncio.Task[None]] = {}
        wanted = {**dict.fromkeys(topics, subscription), self.retry_topic: ALL}
        from_where = "CONSUME_FROM_LAST_OFFSET" if start == "latest" else "CONSUME_FROM_FIRST_OFFSET"
        self.member = GroupMember(view, group, wanted, from_where, self.rebalance.set)
        client_id, links = self.member.client_id, self.member.links
        self.offsets = Offsets(view, committer=client_id if ordered else None)
        self.locks: Mapping[str, QueueLocks] = (
            {topic: QueueLocks(view, links, group, topic, client_id) for topic in topics} if ordered else {}
        )
        self._puller = QueuePuller(view, links, group, wanted, inbox, on_change, follow=follow, give_back=give_back)

    @property
    def undecoded(self) -> int:
        """The number of messages that went back because their bodies cannot be decompressed."""
        return self._puller.undecoded

    @property
    def trimmed(self) -> int:
        """The number of offsets that retention removed before they were read."""
        return self._puller.trimmed

    async def open(self) -> None:
        """Joins the group and starts to pull. Raises NotFound if a topic does not exist, Denied if a topic may not be
        read and the consumer has `follow=False`, and other RaftMQErrors."""
        try:
            routes = await asyncio.gather(*(self._view.route(t, timeout_s=10.0, fresh=True) for t in self.topics))
            if not self._follow:
                _check_readable(routes)
            self.member.belong_to(_groups_of(routes))
            await self.member.join()
            await self._assign()
        except BaseException:
            self.member.close()
            raise
        self.tasks = [self.spawn(self._keep_membership), self.spawn(self._watch_leader)]

    def spawn(self, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Runs `work` in the background; if it ends with an error, the reader gets the error."""
        return self._loop.create_task(self._guard(work))

    async def _guard(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - handed to the reader
            self._fail(error)

    # -- membership

    async def _keep_membership(self) -> None:
        rebalance_at, gone_since = self._loop.time() + REBALANCE_S, None
        while True:
            soon = self.missing or not self.assigned
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience.relock_every_s if soon else self._patience.heartbeat_every_s):
                    await self.rebalance.wait()
            asked = self.rebalance.is_set()
            self.rebalance.clear()
            try:
                await self.member.heartbeat()
                if asked or self.locks or not self.assigned or self._loop.time() >= rebalance_at:
                    rebalance_at = self._loop.time() + REBALANCE_S
                    await self._assign()
                    gone_since = None
            except RaftMQError as error:
                gone = isinstance(error, NotFound)
                gone_since = (self._loop.time() if gone_since is None else gone_since) if gone else None
                too_long = gone_since is not None and self._loop.time() - gone_since > self._patience.gone_s
                # An offset beyond the end of the queue is an error that does not pass by itself either.
                if too_long or error.code == ResponseCode.PULL_OFFSET_MOVED:
                    raise
                _log.info("group %s: rebalance put off: %s", self.group, error)

    async def _assign(self) -> None:
        """Starts reading the queues that `allocate_averagely` assigns to this consumer, and stops reading all others.
        Does nothing while the cluster does not list this consumer as a member."""
        members = await self.member.members()
        routes = await asyncio.gather(*(self._view.route(t, timeout_s=10.0, fresh=True) for t in self.topics))
        self.member.belong_to(_groups_of(routes))
        readable = {route.topic: route.readable for route in routes}
        readable[self.retry_topic] = await self._retry_queues()
        if self.member.client_id not in members.consumerIdList:
            return
        mine = {
            QueueKey(topic, queues[place])
            for topic, queues in readable.items()
            for place in allocate_averagely(members.sharers(topic), self.member.client_id, len(queues))
        }
        for key in [key for key in self.feeds if key not in mine]:
            await self._release(key)
        if self.locks:
            mine = {key for key in mine if key.topic not in self.locks} | await self.locked(mine)
        await self._take_up([key for key in sorted(mine) if key not in self.feeds])
        self.assigned = not self.behind
        self._on_change()

    async def _take_up(self, new: list[QueueKey]) -> None:
        """Starts to read the queues in `new`. If a group of brokers does not answer, its queues are left for the next
        rebalance, provided that the reader follows new messages and other queues can be read; otherwise raises the
        error of the group."""
        self.behind = False
        if not self._view.groups.several:
            await self._begin_to_read(new)
            return
        by_group: dict[int, list[QueueKey]] = {}
        for key in new:
            by_group.setdefault(group_of(key.queue_id), []).append(key)
        found = await of_each({group: self._begin_to_read(keys) for group, keys in by_group.items()})
        for failure in (each for each in found.values() if each is not None):
            passes = isinstance(failure, RaftMQError) and failure.retryable and self._follow
            if not passes or not self.feeds:
                raise failure
            _log.info("group %s: some of its queues are put off: %s", self.group, failure)
            self.behind = True

    async def _begin_to_read(self, new: list[QueueKey]) -> None:
        feeds = await asyncio.gather(*(self._make_feed(key) for key in new))
        for key, feed in zip(new, feeds, strict=True):
            self.feeds[key] = feed
            self._pulls[key] = self.spawn(partial(self._keep_pulling, feed))

    async def _retry_queues(self) -> Sequence[int]:
        """Returns the ids of the queues of the group's retry topic; () if there is no such topic. The cluster creates
        it for a group's first member, unless the group wants no retries."""
        try:
            return (await self._view.route(self.retry_topic, timeout_s=10.0, fresh=True)).readable
        except NotFound:
            return ()

    async def locked(self, mine: Iterable[QueueKey]) -> frozenset[QueueKey]:
        """Locks the queues in `mine`, and renews the locks that the consumer holds already. Returns the queues that it
        may read, and drops the queues whose locks it has lost."""
        wanted = frozenset(key for key in mine if key.topic in self.locks)
        for key in [key for key in self._under_lock() if not self.locks[key.topic].holds(key.queue_id)]:
            self._lose(key)  # another member may have read on in the meantime
        held: set[QueueKey] = set()
        async with self.locking:  # `leaving` may change while the lock is awaited
            for topic, locks in self.locks.items():
                asked = {key.queue_id for key in (*wanted, *self.leaving) if key.topic == topic}
                held |= {QueueKey(topic, queue_id) for queue_id in await locks.lock(asked)}
        for key, feed in self._under_lock().items():
            if key not in held or feed.revoked:
                self._lose(key)
        readable = wanted & held - self.leaving.keys()
        self.missing = wanted - readable
        return readable

    def _under_lock(self) -> dict[QueueKey, QueueFeed]:
        """Returns the feeds that are read under a lock: those of the consumer's own topics, not those of the retry
        topic."""
        return {key: feed for key, feed in self.feeds.items() if key.topic in self.locks}

    def _lose(self, key: QueueKey) -> None:
        """Drops a queue whose lock is lost. Messages that were read and not committed are delivered again to the client
        that then holds the lock."""
        _log.warning("group %s: %s: its lock is lost", self.group, key)
        self._pulls.pop(key).cancel()
        self._inbox.revoke(self.feeds.pop(key))

    async def _make_feed(self, key: QueueKey, *, again: bool = False) -> QueueFeed:
        """Returns the feed of a queue. `again`: the topic was deleted and created again while this consumer read it.
        All of its messages are new, so the feed begins at the first one, unless the consumer starts at a time."""
        topic, queue_id = key
        committed = at = await self.offsets.kept_position(self.group, topic, queue_id)
        if at is None:
            start = self._start if topic in self.topics else "earliest"  # no failed message may be skipped
            if again and not isinstance(start, datetime.datetime):
                start = "earliest"
            at = await self.offsets.begin(topic, queue_id, start)
        offset = at.offset
        feed = QueueFeed(topic, queue_id, *at)
        feed.committed = None if committed is None else committed.offset
        if topic in self.locks:
            feed.may_read = partial(self.locks[topic].holds, queue_id)
        if not self._follow:
            feed.end = await self.offsets.max_offset(topic, queue_id)
            check_not_beyond(self.group, feed, feed.end)
            feed.finished = offset >= feed.end
        return feed

    async def _release(self, key: QueueKey) -> None:
        feed = self.feeds.pop(key)
        self._pulls.pop(key).cancel()
        position = self._inbox.revoke(feed)
        if key.topic in self.locks:
            self.leaving[key] = feed
            self.tasks.append(self.spawn(partial(self._hand_over, self.locks[key.topic], key, feed)))
            return
        try:
            await self.commit(feed, position)
        except RaftMQError as error:
            _log.warning("group %s: %s: released without a commit: %s", self.group, key, error)

    async def _hand_over(self, locks: QueueLocks, key: QueueKey, feed: QueueFeed) -> None:
        """Waits until the reader has handled the queue's last message, then releases the queue's lock, so that the next
        owner can begin."""
        while self._inbox.in_hand(feed) and locks.holds(feed.queue_id):  # noqa: ASYNC110 - the reader may be a thread
            await asyncio.sleep(self._patience.dealt_with_every_s)
        try:
            await self.commit(feed, self._inbox.settled(feed))
        except RaftMQError as error:
            _log.warning("group %s: %s: handed over without a commit: %s", self.group, key, error)
        async with self.locking:
            del self.leaving[key]
            try:
                await locks.unlock([feed.queue_id])
            except RaftMQError as error:
                _log.warning("group %s: %s: free when its lock ends: %s", self.group, key, error)

    # -- pulling

    async def _keep_pulling(self, feed: QueueFeed) -> None:
        following: QueueFeed | None = feed
        while following is not None:
            feed, following = following, None
            try:
                await self._puller.keep_pulling(feed)
            except NotFound as error:
                following = await self._of_new_topic(feed, error)
            except Refused as refused:
                if refused.code != ResponseCode.INVALID_PARAMETER or not await self._is_hidden(feed):
                    raise
                self.rebalance.set()
        self._on_change()

    async def _is_hidden(self, feed: QueueFeed) -> bool:
        """Returns True if the topic has fewer read queues by now, or the feed's group of brokers has retired, so that
        the feed's queue belongs to no consumer. The node that tells the route may learn of the change a moment later,
        so it is asked several times."""
        if self._view.groups.known(group_of(feed.queue_id)) is None:
            return True
        for _ in range(ROUTE_TRIES):
            route = await self._view.route(feed.topic, timeout_s=10.0, fresh=True)
            if feed.queue_id not in route.readable:
                return True
            await asyncio.sleep(self._patience.route_pause_s)
        return False

    async def _of_new_topic(self, feed: QueueFeed, error: NotFound) -> QueueFeed | None:
        """Returns the feed with which to continue when a feed's topic was deleted: the same queue of the topic that was
        created again under the name, or the same feed if only the node that was asked has no such topic. Returns None
        if the new topic lacks the queue, and always for the retry topic. Raises `error` if the feed has no identity of
        its topic, or if there is no topic of the name for `gone_s`; raises Denied if the new topic may not be read."""
        key, backoff, since = QueueKey(feed.topic, feed.queue_id), Backoff(self._view.jitter), self._loop.time()
        if key.topic == self.retry_topic:
            self._drop(feed)
            return None
        if feed.counted_in is None:
            raise error
        while True:
            await backoff.pause()
            try:
                fresh = await self._make_feed(key, again=True)
            except Denied:
                raise
            except Refused:  # the new topic has no such queue
                self._drop(feed)
                self.rebalance.set()
                return None
            except RaftMQError as why_not:
                if self._loop.time() - since > self._patience.gone_s:
                    raise error from why_not
                continue
            if not (why := why_another(feed.counted_in, fresh.counted_in)):
                return feed
            self._begin_anew(key, feed, fresh, why)
            return fresh

    def _begin_anew(self, key: QueueKey, feed: QueueFeed, fresh: QueueFeed, why: str) -> None:
        """Replaces the feed of a deleted topic by one of the topic that was created again under its name."""
        fresh.gone_position = max(feed.gone_position, feed.last_position)
        self._inbox.revoke(feed)
        self.feeds[key] = fresh
        self.rebalance.set()  # the new topic may have more queues
        text = "group %s was at offset %d of %s and goes on at %d: %s"
        _log.warning(text, self.group, feed.position, key, fresh.position, why)

    def _drop(self, feed: QueueFeed) -> None:
        """Drops a queue that no longer exists. If its topic is created again, the next rebalance finds it."""
        key = QueueKey(feed.topic, feed.queue_id)
        self.feeds.pop(key, None)
        self._pulls.pop(key, None)
        self._inbox.revoke(feed)

    async def _watch_leader(self) -> None:
        while True:
            await asyncio.sleep(LEADER_CHECK_S)
            await self._puller.check_leader(LEADER_CHECK_S)

    async def seek(self, key: QueueKey, offset: int) -> None:
        """Continues a queue at `offset`, and cancels a pull in flight, so that it adds no messages after the seek.
        Raises Failed if the queue has been assigned to another member."""
        feed = self.feeds[key]
        async with feed.committing:
            pull = self._pulls[key]
            pull.cancel()
            await asyncio.gather(pull, return_exceptions=True)
            if self.feeds.get(key) is not feed or feed.revoked:
                raise Failed(
                    f"seek in {key}: the queue has gone to another member of {self.group}",
                    hint="Seek again once the members have shared the queues out: `positions()` has those of this one.",
                )
            self._inbox.rewind(feed, offset, stored=False)
            feed.finished = feed.end is not None and offset >= feed.end
            self._pulls[key] = self.spawn(partial(self._keep_pulling, feed))
        self._on_change()

    # -- ending

    async def commit(self, feed: QueueFeed, position: int) -> None:
        """Commits a position of a feed, unless it is already committed, an operator has reset the group's offsets in
        the meantime, or the queue's lock is lost."""
        resets = feed.resets
        async with feed.committing:
            if feed.committed != position and feed.resets == resets and feed.may_read():
                await self._commit(feed, position)
                feed.committed = position

    async def _commit(self, feed: QueueFeed, position: int) -> None:
        """Commits a position. If the group does not exist, a heartbeat creates it again: the heartbeat that first
        created it may have been lost in an election, although the leader lists this member. Commits nothing if the
        feed's topic was deleted and created again."""
        kept = Position(position, feed.counted_in)
        for _ in range(COMMIT_TRIES - 1):
            try:
                await self.offsets.commit(self.group, feed.topic, feed.queue_id, kept)
            except NotFound:
                if why := await self._why_gone(feed):
                    _log.warning("group %s: offset %d is not committed: %s", self.group, position, why)
                    return
                await self.member.heartbeat()
                await asyncio.sleep(COMMIT_PAUSE_S)
            else:
                return
        await self.offsets.commit(self.group, feed.topic, feed.queue_id, kept)

    async def _why_gone(self, feed: QueueFeed) -> str:
        """Returns, in words, why a feed's offsets no longer count in the topic of this name; "" if they do, or if there
        is no such topic."""
        with contextlib.suppress(NotFound, Refused):
            _, met = await self.offsets.counted(RequestCode.GET_MAX_OFFSET, feed.topic, feed.queue_id)
            return why_another(feed.counted_in, met)
        return ""

    async def stop(self) -> dict[QueueKey, QueueFeed]:
        """Stops pulls and background tasks; returns the feeds, for a last commit before `leave`."""
        feeds = {**self.leaving, **self.feeds}
        tasks = (*self._pulls.values(), *self.tasks)
        async with self.locking:
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return feeds

    async def leave(self, feeds: Iterable[QueueKey]) -> None:
        """Releases the locks and leaves the group."""
        for topic, locks in self.locks.items():
            with contextlib.suppress(RaftMQError):  # a failed unlock does no harm: the locks expire
                await locks.unlock({key.queue_id for key in feeds if key.topic == topic})
        await self.member.leave()


def _groups_of(routes: Iterable[Route]) -> frozenset[int]:
    return frozenset(each.group for route in routes for each in route.groups)


def _check_readable(routes: Iterable[Route]) -> None:
    """Raises Denied if a topic has no readable queues. Without this check, a consumer with `follow=False` would end at
    once without a word."""
    for route in routes:
        if not route.readable:
            remark = unreadable_topic(route.topic, PERM_WRITE)
            raise error_of(ResponseCode.NO_PERMISSION, remark, f"read {route.topic} to its end")

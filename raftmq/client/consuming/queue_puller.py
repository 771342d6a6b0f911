"""A consumer's pulls: for each of its queues, one pull is always in flight, or waits at the leader until messages come.

After a leader change each queue continues at its own next offset, and the pulled messages must follow it without a gap;
anything else is an error, not a skip.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from raftmq.client.cluster_view import Backoff, ClusterView, why_not
from raftmq.client.connection import ConnectionPool
from raftmq.client.consuming.message_buffer import Batch, Inbox, QueueFeed
from raftmq.client.consuming.offsets import Offsets
from raftmq.client.consuming.pull import PullRequest, PullResult, PullStatus, pull_once
from raftmq.client.consuming.send_back import RETRY_PREFIX, RETRY_TOPIC
from raftmq.client.consuming.subscription import Subscription
from raftmq.client.errors import Denied, Failed, RaftMQError, Refused, Unreachable
from raftmq.client.message import Message
from raftmq.client.retries import Retry
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.queue_numbers import queue_text

MAX_BUFFERED_MESSAGES = 2048
MAX_BUFFERED_BYTES = 64 << 20

_log = logging.getLogger("raftmq")


class QueuePuller:
    """Pulls the queues of one consumer and fills its inbox. `trimmed` counts offsets that retention removed before they
    were read, `undecoded` the messages that were sent back to the cluster because their bodies cannot be
    decompressed."""

    def __init__(
        self,
        view: ClusterView,
        links: Callable[[int], ConnectionPool],
        group: str,
        subscriptions: Mapping[str, Subscription],
        inbox: Inbox,
        on_news: Callable[[], None],
        *,
        follow: bool,
        give_back: Callable[[Message], Awaitable[None]],
    ) -> None:
        """`links`: group of brokers -> the connections to its nodes. `subscriptions`: topic -> the subscription that
        its pulls carry. `on_news` runs when the inbox or a feed has changed. `give_back` returns a message to the
        cluster whose body cannot be decompressed."""
        self.trimmed = 0
        self.undecoded = 0
        self._view = view
        self._patience = view.environment.patience
        self._links = links
        self._group = group
        self._subscriptions = subscriptions
        self._inbox = inbox
        self._on_news = on_news
        self._follow = follow
        self._give_back = give_back
        self._offsets = Offsets(view)
        self._loop = asyncio.get_running_loop()
        self._off: set[QueueFeed] = set()
        """Feeds whose pulls were refused because an operator has switched off their topic or the group."""
        self._pulled: set[int] = set()
        """The groups of brokers from which messages were pulled."""
        self._queues = 0
        """The number of queues that are pulled from at present; they share the inbox's room."""

    async def keep_pulling(self, feed: QueueFeed) -> None:
        """Pulls a queue until the feed is finished or revoked. Raises RaftMQError for an error that waiting does not
        end."""
        self._queues += 1
        try:
            await self._keep_pulling(feed)
        finally:
            self._queues -= 1
            self._off.discard(feed)

    async def _keep_pulling(self, feed: QueueFeed) -> None:
        backoff, failing_since = Backoff(self._view.jitter), None
        while not feed.finished:
            await self._wait_for_room(feed)
            began = self._loop.time()
            try:
                result = await self._pull(feed)
                idle = await self._take_in(feed, result)
            except OSError as error:
                self._tell(feed, why_not(error), 0)
                await backoff.pause()
                continue
            except RaftMQError as error:
                if self._follow and isinstance(error, Denied) and error.switched_off:
                    await self._wait_until_on(feed, error)
                    continue
                failing_since = began if failing_since is None else failing_since
                if not _passes(error) or self._loop.time() - failing_since > self._patience.pull_retry_s:
                    raise
                self._tell(feed, f"says: {error}", error.code)
                await backoff.pause()
                continue
            failing_since = None
            self._off.discard(feed)
            if idle and self._loop.time() - began < 0.01:
                await backoff.pause()
            else:
                backoff = Backoff(self._view.jitter)

    async def _wait_until_on(self, feed: QueueFeed, error: Denied) -> None:
        """Waits for `switched_off_s` before the next pull of a topic or group that an operator has switched off. The
        caller repeats this until it is switched on."""
        if feed not in self._off:
            self._off.add(feed)
            _log.warning("group %s waits: %s", self._group, error)
        self._tell(feed, f"says: {error}", error.code)
        await asyncio.sleep(self._patience.switched_off_s)

    def _tell(self, feed: QueueFeed, cause: str, code: int) -> None:
        what = f"pull of {feed.key} by group {self._group}"
        self._view.retries.tell(Retry(what, feed.asked, cause, code))

    async def _wait_for_room(self, feed: QueueFeed) -> None:
        most = max(256 << 10, MAX_BUFFERED_BYTES // max(1, self._queues))
        while feed.buffered_messages >= MAX_BUFFERED_MESSAGES or feed.buffered_bytes >= most:
            feed.room.clear()
            if feed.buffered_messages >= MAX_BUFFERED_MESSAGES or feed.buffered_bytes >= most:
                await feed.room.wait()

    async def _pull(self, feed: QueueFeed) -> PullResult:
        """Sends one pull, to the leader unless a reply suggested another node. Raises OSError after reporting it to the
        view, so that the next pull looks for the leader."""
        async with asyncio.timeout(30.0):
            view = await self._view.groups.at(feed.queue_id)
            leader = await view.find_leader()
        self._pulled.add(view.group)
        links = self._links(view.group)
        address = view.by_id.get(str(feed.ask), leader) if feed.ask else leader
        feed.asked = address
        request = PullRequest(
            feed.topic,
            feed.queue_id,
            feed.next_offset,
            self._group,
            subscription=self._subscriptions[feed.topic],
            wait_s=self._patience.long_poll_s if self._follow else 0.0,
            counted_in=feed.counted_in,
        )
        try:
            result = await pull_once(await links.get(address), request)
        except TimeoutError:
            feed.ask = 0
            links.drop(address)
            view.suspect(address)
            raise
        except OSError:
            feed.ask = 0
            view.suspect(address)
            raise
        except RaftMQError:
            feed.ask = 0
            raise
        feed.ask = result.ask_next
        return result

    async def _take_in(self, feed: QueueFeed, result: PullResult) -> bool:
        """Puts the messages of a pull into the inbox; returns True if the pull brought nothing new."""
        if result.status is PullStatus.MOVED:
            await self._moved(feed, result)
            return True
        if result.status is PullStatus.RESET:
            async with feed.committing:  # waits for commits in flight before it acts on the reset
                self._inbox.rewind(feed, result.next_offset)
            _log.warning("%s: group %s was reset to %d", feed.key, self._group, feed.position)
            return False
        idle = result.status is PullStatus.END or result.next_offset <= feed.next_offset
        if not idle:
            for message in result.unreadable:
                where, why = message.place, message.undecoded
                _log.warning("group %s: message %s goes back: %s %s", self._group, message.message_id, where, why)
                await self._give_back(message)
                self.undecoded += 1
            messages = result.messages
            if feed.topic.startswith(RETRY_PREFIX):
                messages = [_of_first_topic(message) for message in messages]
            self._inbox.put(Batch(feed, messages, result.next_offset))
        if feed.end is not None and feed.next_offset >= feed.end:
            feed.finished = True
        self._on_news()
        return idle

    async def _moved(self, feed: QueueFeed, result: PullResult) -> None:
        """Handles an offset outside the queue. If it lies below the first offset, retention has removed messages before
        they were read: continues at the first offset and counts the removed ones. If it lies above the last offset, the
        replica that answered may lag, so the leader is asked for the end of the queue. Raises Failed if the leader's
        end is also below the offset: the queue was cut, or deleted and created again."""
        offset = feed.next_offset
        if result.next_offset > offset:
            self.trimmed += result.next_offset - offset
            _log.warning(
                "%s: offsets %d to %d were removed by retention before group %s read them",
                feed.key,
                offset,
                result.next_offset - 1,
                self._group,
            )
            self._inbox.put(Batch(feed, [], result.next_offset))
            return
        check_not_beyond(self._group, feed, await self._offsets.max_offset(feed.topic, feed.queue_id))

    async def check_leader(self, timeout_s: float) -> None:
        """Checks that the leader of each group of brokers answers within `timeout_s`, and drops the connection to a
        leader that does not. A pull that waits at the leader would not show that the leader stopped or was deposed."""
        await asyncio.gather(*(self._check(view, timeout_s) for view in self._view.groups.living(self._pulled)))

    async def _check(self, view: ClusterView, timeout_s: float) -> None:
        leader, links = view.leader, self._links(view.group)
        if leader is None:
            return
        try:
            link = await links.get(leader)
            await link.call(RequestCode.GET_BROKER_CLUSTER_INFO, {}, timeout_s=timeout_s)
        except OSError:
            links.drop(leader)
            view.links.drop(leader)
            view.suspect(leader)


def check_not_beyond(group: str, feed: QueueFeed, end: int) -> None:
    """Raises Failed if the group's position in the queue lies beyond `end`, the end that the leader has confirmed.
    Reading on from there would skip the next messages that are stored."""
    if feed.next_offset > end:
        queue = queue_text(feed.queue_id)
        raise Failed(
            f"{feed.key} ends at offset {end}, group {group} is already at {feed.next_offset}",
            code=ResponseCode.PULL_OFFSET_MOVED,
            hint=f"`raftmq group reset {group} --topic {feed.topic} --queue {queue} --to latest` mends it.",
        )


def _of_first_topic(message: Message) -> Message:
    """Returns a message of a retry topic with the name of the topic to which it was first sent."""
    return msgspec.structs.replace(message, topic=message.properties.get(RETRY_TOPIC, message.topic))


def _passes(error: RaftMQError) -> bool:
    """Returns True if an error of a pull may soon pass by itself: the node does not know the subscription yet, or the
    leader is busy or changing."""
    if isinstance(error, Unreachable) or error.retryable:
        return True
    return error.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_NOT_EXIST) or (
        isinstance(error, Refused) and error.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    )

"""AsyncClient: a client of one cluster, from which producers and consumers are made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import TypeVar, Unpack

from raftmq.client.admin import AsyncAdmin
from raftmq.client.arguments import check_named, check_seconds
from raftmq.client.cluster_view import Backoff, ClusterView
from raftmq.client.connection import Reply
from raftmq.client.consuming.consumer import AsyncConsumer
from raftmq.client.consuming.offsets import Start
from raftmq.client.consuming.pull import (
    MAX_PULL_MESSAGES,
    PulledFrames,
    PullRequest,
    PullResult,
    ask,
    read_frames,
    read_reply,
)
from raftmq.client.consuming.subscription import subscription
from raftmq.client.discovery import find_servers, found_folder
from raftmq.client.environment import REAL, Environment, with_credentials, with_tls
from raftmq.client.errors import RaftMQError, Unreachable, error_of
from raftmq.client.message import MessageOptions, SendOptions, SendResult, check_queue_id
from raftmq.client.port_probe import hint_for
from raftmq.client.producing.producer import ATTEMPT_S, DEFAULT_GROUP, MAX_BYTES, MAX_MESSAGES, AsyncProducer
from raftmq.client.producing.transaction_producer import AsyncCheck, AsyncTransactionProducer
from raftmq.client.retries import OnRetry
from raftmq.client.tls import Tls
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.message_format import decode_recall_handle
from raftmq_wire.queue_numbers import FIRST_GROUP, number_of, queue_text
from raftmq_wire.topic_identity import Position

_T = TypeVar("_T")


def aconnect(
    servers: str | Iterable[str] | None = None,
    *,
    access_key: str = "",
    secret_key: str = "",
    tls: Tls | bool | None = None,
    timeout_s: float = 30.0,
    on_retry: OnRetry | None = None,
    environment: Environment = REAL,
) -> AsyncClient:
    """Returns a client of a cluster, for `async with`. `servers` is "host:port;host:port"; without it RAFTMQ_SERVERS,
    the local cluster's file, or 127.0.0.1:9876-9878 say where the cluster is. `access_key` and `secret_key` are the
    name and the secret of a user: every request is signed with them. The CA and the first user of a local cluster are
    used only if the client finds the cluster by its directory. `on_retry(retry)` is called on the event loop for each
    attempt that failed and is repeated. `tls` is Tls(ca=FILE, cert=FILE, key=FILE), or True for the CAs of the
    operating system; without it RAFTMQ_TLS, RAFTMQ_TLS_CA, RAFTMQ_TLS_CERT and RAFTMQ_TLS_KEY decide. The client opens
    no connection before it needs one. Raises ValueError for a bad address, and for files that cannot be used."""
    found, local = find_servers(servers), found_folder(servers)
    environment = with_tls(with_credentials(environment, access_key, secret_key, local=local), tls, local)
    return AsyncClient(found, timeout_s=timeout_s, on_retry=on_retry, environment=environment)


class AsyncClient:
    """A client of one cluster. It belongs to the event loop on which it was first used; a call on another loop raises
    RuntimeError. `timeout_s` bounds each send of the default producer."""

    def __init__(
        self,
        servers: Sequence[str],
        *,
        timeout_s: float = 30.0,
        on_retry: OnRetry | None = None,
        environment: Environment = REAL,
    ) -> None:
        check_seconds("timeout_s", timeout_s)
        self.servers = tuple(servers)
        self._timeout_s = timeout_s
        self._view = ClusterView(environment, self.servers, on_retry)
        self._producer: AsyncProducer | None = None
        self._producers: list[AsyncProducer] = []
        self._consumers: list[AsyncConsumer] = []
        self._transaction_producers: list[AsyncTransactionProducer] = []
        self.admin = AsyncAdmin(self._view)

    @property
    def cluster_ids(self) -> tuple[str, ...]:
        """The uuid of the cluster, then the uuids of the clusters from which it was restored; () until a server has
        answered."""
        return self._view.groups.clusters

    @property
    def created_topics(self) -> frozenset[str]:
        """The topics that did not exist when this client first sent to them, and that its messages have created."""
        return frozenset(self._view.missing)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self.servers)}>"

    @property
    def view(self) -> ClusterView:
        """The ClusterView that all parts of this client share."""
        return self._view

    def producer(
        self,
        *,
        group: str = DEFAULT_GROUP,
        timeout_s: float | None = None,
        attempt_timeout_s: float = ATTEMPT_S,
        max_messages: int = MAX_MESSAGES,
        max_bytes: int = MAX_BYTES,
    ) -> AsyncProducer:
        """Returns a new producer session.

        `timeout_s` bounds each send; the default is the client's. After `attempt_timeout_s` without an answer, a send
        is attempted again. At most `max_messages` messages and `max_bytes` bytes may be unsettled.
        """
        producer = AsyncProducer(
            self._view,
            group=group,
            timeout_s=self._timeout_s if timeout_s is None else timeout_s,
            attempt_timeout_s=attempt_timeout_s,
            max_messages=max_messages,
            max_bytes=max_bytes,
        )
        self._producers.append(producer)
        return producer

    def transaction_producer(
        self, group: str, *, check: AsyncCheck, timeout_s: float | None = None
    ) -> AsyncTransactionProducer:
        """Returns a producer of transactions that is a member of the producer group `group`, for `async with`.

        The cluster asks `check` about each message of the group, sent by any of its programs, whose transaction was not
        ended in time. `check` gets the message and returns the outcome of its transaction. It runs on the event loop,
        for one message at a time.
        """
        producer = AsyncTransactionProducer(
            self._view, group, check, timeout_s=self._timeout_s if timeout_s is None else timeout_s
        )
        self._transaction_producers.append(producer)
        return producer

    def _default_producer(self) -> AsyncProducer:
        if self._producer is None:
            self._producer = self.producer()
        return self._producer

    async def send(self, topic: str, body: bytes, **options: Unpack[MessageOptions]) -> SendResult:
        """Sends one message through the client's default producer; see AsyncProducer.send."""
        return await self._default_producer().send(topic, body, **options)

    async def send_batch(self, topic: str, bodies: Sequence[bytes], **options: Unpack[SendOptions]) -> list[SendResult]:
        """Sends a batch through the client's default producer; see AsyncProducer.send_batch."""
        return await self._default_producer().send_batch(topic, bodies, **options)

    async def recall(self, topic: str, recall_handle: str, *, timeout_s: float = 10.0) -> None:
        """Recalls a message whose delivery is delayed, named by its `SendResult.recall_handle`. Returns once it is
        certain that the message will not be delivered, also if it was recalled before. Raises Refused if the message is
        due already."""
        check_named("topic", topic)
        check_seconds("timeout_s", timeout_s)
        ext = {"producerGroup": "raftmq", "topic": topic, "recallHandle": recall_handle}
        what = f"recall of a message of {topic}"
        view = await self._view.groups.at(number_of(self._group_of_handle(recall_handle), 0))
        await view.call(RequestCode.RECALL_MESSAGE, ext, what=what, timeout_s=timeout_s, writes=True)

    def _group_of_handle(self, recall_handle: str) -> int:
        """Returns the number of the group of brokers that a recall handle belongs to; the first group if the handle is
        malformed, so that a server refuses it."""
        try:
            return self._view.groups.group_of_name(decode_recall_handle(recall_handle).broker_name) or FIRST_GROUP
        except ValueError:
            return FIRST_GROUP

    def consumer(
        self,
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
    ) -> AsyncConsumer:
        """Returns a consumer that is a member of `group` and reads one topic or several, for `async with` and `async
        for`.

        `start` says where to begin in queues without a committed offset. `tags` is "a || b"; `filter` is an SQL92
        expression over properties, for example "price > 10 AND TAGS = 'new'", and a wrong one raises Refused when the
        block is entered. `follow=False` ends the iteration at the messages that are stored when it begins; `max_wait_s`
        ends it when no message came for that long. With `ordered`, each queue is read in its order, by one consumer of
        the group at a time. `max_retries` is the number of times that a message may come again before it is a dead
        letter (the default is the group's `retryMaxTimes`, 16; an ordered consumer has no limit). With `manual_ack`, a
        message counts as handled only once `ack(message)` is called.
        """
        consumer = AsyncConsumer(
            self._view,
            group,
            topics,
            start=start,
            tags=tags,
            filter=filter,
            follow=follow,
            max_wait_s=max_wait_s,
            ordered=ordered,
            max_retries=max_retries,
            manual_ack=manual_ack,
        )
        self._consumers.append(consumer)
        return consumer

    async def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int | Position,
        max_messages: int = MAX_PULL_MESSAGES,
        *,
        node: str | None = None,
        tags: str | None = None,
        filter: str | None = None,
        wait_s: float = 0.0,
        timeout_s: float = 10.0,
        as_stored: bool = False,
    ) -> PullResult:
        """Pulls messages of one queue once. With `node` ("host:port"), only that node is asked, and it answers from the
        entries that it has applied itself.

        Without `node` the leader is asked, and the new leader if it changes. A body that cannot be decompressed is
        returned as stored, with the reason in `Message.undecoded`; with `as_stored` every body is returned as stored,
        and `Message.decoded` decompresses one. Raises NotFound for a Position in another topic, and other RaftMQErrors.
        """
        check_named("topic", topic)
        check_queue_id(queue_id)
        check_seconds("timeout_s", timeout_s)
        at, counted_in = offset if isinstance(offset, Position) else Position(offset)
        check_seconds("wait_s", wait_s, zero=True)
        wanted = subscription(tags, filter)
        request = PullRequest(topic, queue_id, at, max_messages=max_messages, subscription=wanted, wait_s=wait_s)
        request = request._replace(counted_in=counted_in)
        return await self._pull(request, node, timeout_s, partial(read_reply, as_stored=as_stored))

    async def pull_frames(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = MAX_PULL_MESSAGES,
        *,
        node: str | None = None,
        wait_s: float = 0.0,
        timeout_s: float = 10.0,
    ) -> PulledFrames:
        """Pulls like `pull`, but leaves the messages in their stored form, for `raftmq.arrow`."""
        request = PullRequest(topic, queue_id, offset, max_messages=max_messages, wait_s=wait_s)
        return await self._pull(request, node, timeout_s, read_frames)

    async def entries_at(
        self, positions: bytes, *, node: str | None = None, timeout_s: float = 10.0, group: int = FIRST_GROUP
    ) -> bytes:
        """Returns the log entries of stored messages, in the form in which request 700005 answers. `positions` holds
        the messages' positions in the log of a group of brokers, each as 8 bytes big-endian, at most 1,024 of them.

        With `node` ("host:port") that node is asked, once; without it the leader is asked. Raises RaftMQError.
        """
        what = f"entries of {len(positions) // 8} messages"
        if node is None:
            view = await self._view.groups.when_heard(group)
            return (await view.call(RequestCode.ENTRIES_AT, {}, positions, what=what, timeout_s=timeout_s)).body
        try:
            link = await self._view.links.get(node)
            reply = await link.call(RequestCode.ENTRIES_AT, {}, positions, timeout_s=timeout_s)
        except OSError as error:
            raise Unreachable(f"{what} from {node}: {str(error) or 'no answer'}", retryable=True) from error
        if reply.code != ResponseCode.SUCCESS:
            raise error_of(reply.code, reply.remark, what)
        return reply.body

    async def _pull(
        self, request: PullRequest, node: str | None, timeout_s: float, read: Callable[[PullRequest, Reply], _T]
    ) -> _T:
        deadline = asyncio.get_running_loop().time() + timeout_s + request.wait_s
        backoff = Backoff(self._view.jitter)
        view = self._view if node else await self._view.groups.at(request.queue_id)
        failure: RaftMQError | None = None
        while True:
            asked = node
            try:
                async with asyncio.timeout_at(deadline):
                    asked = asked or await view.find_leader()
                    link = await view.links.get(asked)
                    return read(request, await ask(link, request))
            except OSError as error:
                view.suspect(view.leader)
                if failure is not None and asyncio.get_running_loop().time() >= deadline:
                    raise failure from error  # an earlier error tells more than "no time is left"
                why = (str(error) or "no answer") if asked else view.why_no_leader()
                failure = Unreachable(
                    f"pull of {request.topic} queue {queue_text(request.queue_id)} from {node or 'the leader'}: {why}",
                    retryable=True,
                    hint=hint_for(why),
                )
            except RaftMQError as error:
                if not error.retryable:
                    raise
                failure = error
            pause = backoff.next_s()
            if asyncio.get_running_loop().time() + pause >= deadline:
                raise failure
            await asyncio.sleep(pause)

    async def close(self, *, current_done: bool = True) -> None:
        """Closes consumers, flushes and closes producers, and ends the connections. With `current_done=False`, the
        message that each consumer handed out last counts as not handled."""
        self._view.bind_loop()
        for consumer in self._consumers:
            await consumer.close(current_done=current_done)
        await asyncio.gather(*(producer.close() for producer in self._transaction_producers))
        await asyncio.gather(*(producer.close() for producer in self._producers))
        self._view.close()
        if self._view.environment.ended is not None:
            await self._view.environment.ended()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(current_done=kind is None)

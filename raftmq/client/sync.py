"""The blocking client: the same things as `aconnect`, with one background loop per `connect()`."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Unpack

from raftmq.client.client import AsyncClient
from raftmq.client.consuming.consumer import AsyncConsumer
from raftmq.client.consuming.handling import COMMIT_EVERY_S
from raftmq.client.consuming.offsets import Start
from raftmq.client.consuming.pull import MAX_PULL_MESSAGES, PulledFrames, PullResult
from raftmq.client.discovery import find_servers
from raftmq.client.environment import REAL, Environment, with_credentials
from raftmq.client.loop_thread import LoopThread
from raftmq.client.message import Message, MessageOptions, SendOptions, SendResult
from raftmq.client.producing.delay import Delay
from raftmq.client.producing.producer import AsyncProducer
from raftmq.client.producing.send_frame import SendRequest, Submission, build_batch, build_single, in_users_words
from raftmq.client.producing.staging import StagedWrites
from raftmq.client.sync_admin import Admin
from raftmq.client.sync_transactions import Check, TransactionProducer


def connect(
    servers: str | Iterable[str] | None = None,
    *,
    access_key: str = "",
    secret_key: str = "",
    timeout_s: float = 30.0,
) -> Client:
    """A client for `with`. `servers` is "host:port;host:port"; without it RAFTMQ_SERVERS, the local cluster's file,
    or 127.0.0.1:9876-9878. `access_key` and `secret_key` are the name and the secret of a user: every request is signed
    with them. Nothing is dialled before it is needed. Raises ValueError for a bad address.
    """
    return Client(find_servers(servers), access_key=access_key, secret_key=secret_key, timeout_s=timeout_s)


class Client:
    """Usable from any thread. `timeout_s` bounds each send of the default producer."""

    def __init__(
        self, servers: Sequence[str], *, access_key: str = "", secret_key: str = "", timeout_s: float = 30.0
    ) -> None:
        environment = with_credentials(REAL, access_key, secret_key)
        self._thread = LoopThread()
        self._client = self._thread.run(_make(servers, timeout_s, environment))
        self._timeout_s = timeout_s
        self._producer: Producer | None = None
        self._transaction_producers: list[TransactionProducer] = []
        self.admin = Admin(self._client.admin, self._thread)

    @property
    def servers(self) -> tuple[str, ...]:
        """The addresses that are asked."""
        return self._client.servers

    @property
    def cluster_ids(self) -> tuple[str, ...]:
        """The uuid of the cluster, and of those that it goes on from; () until a server has answered."""
        return self._client.view.clusters

    def producer(self, **options: Any) -> Producer:
        """A producer session of its own; options as of AsyncProducer."""
        return Producer(self._thread.run(_producer(self._client, options)), self._thread)

    def transaction_producer(self, group: str, *, check: Check, timeout_s: float | None = None) -> TransactionProducer:
        """A member of the producer group `group`, for `with`.

        `check` gets a message whose transaction was not ended in time, of any program of the group, and says what
        became of it. It runs in a thread of its own, one message at a time.
        """
        producer = TransactionProducer(
            self._thread, self._client.view, group, check, timeout_s=timeout_s or self._timeout_s
        )
        self._transaction_producers.append(producer)
        return producer

    def _default_producer(self) -> Producer:
        if self._producer is None:
            self._producer = self.producer()
        return self._producer

    def send(self, topic: str, body: bytes, **options: Unpack[MessageOptions]) -> SendResult:
        """Sends through the client's own producer and waits; see Producer.send."""
        return self._default_producer().send(topic, body, **options)

    def send_batch(self, topic: str, bodies: Sequence[bytes], **options: Unpack[SendOptions]) -> list[SendResult]:
        """Sends several messages to one queue, consecutively, all or none, and waits."""
        return self._default_producer().send_batch(topic, bodies, **options)

    def staged_writes(self, *, timeout_s: float = 60.0) -> StagedWrites:
        """Returns the staged writes that Spark's sink writes with; `timeout_s` bounds each request."""
        return StagedWrites(self._client.view, self._thread, timeout_s)

    def recall(self, topic: str, recall_handle: str, *, timeout_s: float = 10.0) -> None:
        """Takes back a message that is delivered later; see AsyncClient.recall."""
        self._thread.run(self._client.recall(topic, recall_handle, timeout_s=timeout_s))

    def consumer(
        self,
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
    ) -> Consumer:
        """A member of `group` for `with` and `for`; see AsyncClient.consumer."""
        options: dict[str, Any] = {"start": start, "tags": tags, "filter": filter, "follow": follow}
        options |= {"max_wait_s": max_wait_s, "ordered": ordered, "max_retries": max_retries}
        made = _consumer(self._client, group, topic, **options)
        return Consumer(self._thread.run(made), self._thread)

    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = MAX_PULL_MESSAGES,
        *,
        node: str | None = None,
        tags: str | None = None,
        filter: str | None = None,
        wait_s: float = 0.0,
        timeout_s: float = 10.0,
    ) -> PullResult:
        """One pull; `node` ("host:port") asks that node for what it has applied itself, and no other."""
        return self._thread.run(
            self._client.pull(
                topic,
                queue_id,
                offset,
                max_messages,
                node=node,
                tags=tags,
                filter=filter,
                wait_s=wait_s,
                timeout_s=timeout_s,
            )
        )

    def pull_frames_soon(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = MAX_PULL_MESSAGES,
        *,
        node: str | None = None,
        wait_s: float = 0.0,
        timeout_s: float = 10.0,
    ) -> concurrent.futures.Future[PulledFrames]:
        """Begins one pull; its future ends as AsyncClient.pull_frames would."""
        work = self._client.pull_frames(
            topic, queue_id, offset, max_messages, node=node, wait_s=wait_s, timeout_s=timeout_s
        )
        return self._thread.begin(work)

    def entries_at(self, positions: bytes, *, node: str | None = None, timeout_s: float = 10.0) -> bytes:
        """Calls AsyncClient.entries_at."""
        return self._thread.run(self._client.entries_at(positions, node=node, timeout_s=timeout_s))

    def close(self) -> None:
        """Closes consumers, flushes and closes producers, ends the connections and the thread."""
        if self._thread.loop.is_closed():
            return
        try:
            for producer in self._transaction_producers:
                producer.close()
            self._thread.run(self._client.close())
        finally:
            self._thread.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Producer:
    """AsyncProducer for threads: calls from several threads are stored in some order, those of one in theirs."""

    def __init__(self, producer: AsyncProducer, thread: LoopThread) -> None:
        self._producer = producer
        self._thread = thread
        self._room = producer.room
        self._pipeline = producer.pipeline
        self._ids = producer.ids

    @property
    def producer_id(self) -> str:
        """The session's identity, 32 hex digits."""
        return self._producer.producer_id

    def send(self, topic: str, body: bytes, **options: Unpack[MessageOptions]) -> SendResult:
        """Sends and waits until a majority holds it on disk. Raises Failed, Unknown, Refused, NotFound."""
        self._thread.check_may_wait()
        return self.send_soon(topic, body, **options).result()

    def send_soon(
        self, topic: str, body: bytes, **options: Unpack[MessageOptions]
    ) -> concurrent.futures.Future[SendResult]:
        """Queues a send, blocking only while the producer is full; the future ends as `send` would."""
        try:
            request = build_single(self._ids, topic, body, **options)
        except TypeError as error:
            raise in_users_words(error, "send", options, MessageOptions) from None
        future: concurrent.futures.Future[SendResult] = concurrent.futures.Future()
        self._submit(request, future)
        return future

    def send_batch(self, topic: str, bodies: Sequence[bytes], **options: Unpack[SendOptions]) -> list[SendResult]:
        """Sends several messages to one queue, consecutively, all or none, and waits."""
        self._thread.check_may_wait()
        try:
            request = build_batch(self._ids, topic, bodies, **options)
        except TypeError as error:
            raise in_users_words(error, "send_batch", options, SendOptions) from None
        future: concurrent.futures.Future[list[SendResult]] = concurrent.futures.Future()
        self._submit(request, future)
        return future.result()

    def _submit(self, request: SendRequest, future: concurrent.futures.Future[Any]) -> None:
        self._producer.check_open()
        if not self._room.take(request.size):
            if self._thread.is_current:
                raise RuntimeError("the producer is full; a callback of a send must not wait for other sends")
            self._room.take_blocking(request.size)
            if self._producer.closed:
                self._room.give_back(1, request.size)
                self._producer.check_open()
        pipeline = self._pipeline
        pipeline.submit(Submission(request, future, pipeline.loop.time() + pipeline.timeout_s), from_loop=False)

    def flush(self) -> None:
        """Blocks until every send so far is settled; look at the futures for how."""
        self._thread.run(self._producer.flush())

    def close(self) -> None:
        """Flushes and closes; at most the send timeout."""
        if not self._producer.closed:
            self._thread.run(self._producer.close())

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Consumer:
    """AsyncConsumer for a thread: messages already pulled are handed out without a thread switch."""

    def __init__(self, consumer: AsyncConsumer, thread: LoopThread) -> None:
        self._consumer = consumer
        self._thread = thread

    @property
    def trimmed(self) -> int:
        """Offsets that retention removed before they were read."""
        return self._consumer.trimmed

    @property
    def at_end(self) -> bool:
        """True if nothing is left to hand out; never while it follows."""
        return self._consumer.at_end

    def open(self) -> Consumer:
        """Joins the group and starts to pull. Raises NotFound for no such topic, and other RaftMQErrors."""
        self._thread.run(self._consumer.open())
        return self

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        message = self.poll(self._consumer.max_wait_s)
        if message is None:
            raise StopIteration
        return message

    def poll(self, timeout_s: float | None = None) -> Message | None:
        """The next message; None at the end, or when none came within `timeout_s`."""
        while True:
            message = self._consumer.inbox.take()
            if message is not None or not self._thread.run(self._consumer.wait(timeout_s)):
                return message

    def run(self, handle: Callable[[Message], object], *, commit_every_s: float = COMMIT_EVERY_S) -> None:
        """Calls `handle` for each message in this thread, one after the other, until the iteration would end; commits
        now and then.

        An exception of `handle` is logged and the message retried, as by `retry(message)`. Raises RaftMQError if that
        is not possible, or nothing can be read: what was not dealt with comes again.
        """
        consumer = self._consumer
        pace = consumer.pace(commit_every_s)
        while True:
            message = consumer.inbox.take()
            if message is not None:
                try:
                    handle(message)
                except Exception:  # noqa: BLE001 - the program's own function
                    consumer.log_failure(message)
                    self.retry(message)
                pace.handled()
            elif not self._thread.run(consumer.wait(pace.patience_s())) and (consumer.is_over or pace.waited_enough()):
                return
            if pace.commit_is_due():
                self._thread.run(consumer.try_to_commit())

    def retry(self, message: Message, *, after: Delay = None, level: int | None = None) -> None:
        """The message comes again to the group, after at least `after` seconds (or a timedelta), or at a delay level;
        see AsyncConsumer.retry."""
        self._thread.run(self._consumer.retry(message, after=after, level=level))

    def dead_letter(self, message: Message) -> None:
        """Gives the message up: it is stored in `%DLQ%group` (`raftmq dlq`) and does not come again. Raises RaftMQError
        if it was not stored."""
        self._thread.run(self._consumer.dead_letter(message))

    def positions(self) -> dict[int, int]:
        """queue id -> the offset that `commit()` would store, of the consumer's topic."""
        return self._consumer.positions()

    def commit(self) -> None:
        """Commits everything handed out so far, durably. Raises Unknown if nobody confirmed it in time."""
        self._thread.run(self._consumer.commit())

    def close(self, *, commit: bool = True) -> None:
        """Commits, leaves the group, closes."""
        self._thread.run(self._consumer.close(commit=commit))

    def __enter__(self) -> Consumer:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._consumer.close(current_done=kind is None))


async def _make(servers: Sequence[str], timeout_s: float, environment: Environment) -> AsyncClient:
    return AsyncClient(servers, timeout_s=timeout_s, environment=environment)


async def _producer(client: AsyncClient, options: dict[str, Any]) -> AsyncProducer:
    return client.producer(**options)


async def _consumer(client: AsyncClient, group: str, topic: str, **options: Any) -> AsyncConsumer:
    return client.consumer(group, topic, **options)

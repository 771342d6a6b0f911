"""The blocking client. It offers what the client of `aconnect` offers; each `connect()` starts an event loop in a
background thread."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar, Unpack

from raftmq.client.client import AsyncClient
from raftmq.client.cluster_view import Contact
from raftmq.client.consuming.consumer import AsyncConsumer
from raftmq.client.consuming.offsets import Start
from raftmq.client.consuming.pull import MAX_PULL_MESSAGES, PulledFrames, PullResult
from raftmq.client.discovery import find_servers, found_folder
from raftmq.client.environment import REAL, Environment, with_credentials, with_tls
from raftmq.client.loop_thread import LoopThread
from raftmq.client.message import Message, MessageOptions, SendOptions, SendResult
from raftmq.client.patience import COMMIT_EVERY_S
from raftmq.client.producing.delivery_delay import Delay
from raftmq.client.producing.pipeline import FlushResult
from raftmq.client.producing.producer import ATTEMPT_S, DEFAULT_GROUP, MAX_BYTES, MAX_MESSAGES, AsyncProducer
from raftmq.client.producing.send_frame import (
    SendRequest,
    Submission,
    build_batch,
    build_copy,
    build_single,
    in_users_words,
)
from raftmq.client.producing.staged_writes_client import StagedWrites
from raftmq.client.retries import OnRetry
from raftmq.client.sync_admin import Admin
from raftmq.client.sync_transactions import Check, TransactionProducer
from raftmq.client.tls import Tls
from raftmq_wire.topic_identity import Position


def connect(
    servers: str | Iterable[str] | None = None,
    *,
    access_key: str = "",
    secret_key: str = "",
    tls: Tls | bool | None = None,
    timeout_s: float = 30.0,
    on_retry: OnRetry | None = None,
) -> Client:
    """Returns a client of a cluster, for `with`. `servers` is "host:port;host:port"; without it RAFTMQ_SERVERS, the
    local cluster's file, or 127.0.0.1:9876-9878 say where the cluster is. `access_key` and `secret_key` are the name
    and the secret of a user: every request is signed with them. The CA and the first user of a local cluster are used
    only if the client finds the cluster by its directory. `on_retry(retry)` is called for each attempt that failed and
    is repeated, in the client's own thread: it must not wait for the client. `tls` is Tls(ca=FILE, cert=FILE,
    key=FILE), or True for the CAs of the operating system; without it RAFTMQ_TLS, RAFTMQ_TLS_CA, RAFTMQ_TLS_CERT and
    RAFTMQ_TLS_KEY decide. The client opens no connection before it needs one. Raises ValueError for a bad address, and
    for files that cannot be used."""
    return Client(
        find_servers(servers),
        access_key=access_key,
        secret_key=secret_key,
        tls=tls,
        timeout_s=timeout_s,
        on_retry=on_retry,
        local=found_folder(servers),
    )


_T = TypeVar("_T", SendResult, list[SendResult])


class Client:
    """A blocking client of one cluster, usable from any thread. `timeout_s` bounds each send of the default
    producer."""

    def __init__(
        self,
        servers: Sequence[str],
        *,
        access_key: str = "",
        secret_key: str = "",
        tls: Tls | bool | None = None,
        timeout_s: float = 30.0,
        on_retry: OnRetry | None = None,
        local: Path | None = None,
    ) -> None:
        """`local`: the folder of the local cluster in which these servers were found; the client uses its CA and its
        first user. None for servers that were named explicitly."""
        environment = with_tls(with_credentials(REAL, access_key, secret_key, local=local), tls, local)
        client = AsyncClient(servers, timeout_s=timeout_s, on_retry=on_retry, environment=environment)
        self._thread = LoopThread()
        self._client = client
        self._timeout_s = timeout_s
        self._producer: Producer | None = None
        self._transaction_producers: list[TransactionProducer] = []
        self.admin = Admin(self._client.admin, self._thread)

    @property
    def servers(self) -> tuple[str, ...]:
        """The addresses of the servers that this client asks."""
        return self._client.servers

    @property
    def environment(self) -> Environment:
        """The network of this client, and the user who signs its requests."""
        return self._client.view.environment

    @property
    def cluster_ids(self) -> tuple[str, ...]:
        """The uuid of the cluster, then the uuids of the clusters from which it was restored; () until a server has
        answered."""
        return self._client.cluster_ids

    @property
    def created_topics(self) -> frozenset[str]:
        """The topics that did not exist when this client first sent to them, and that its messages have created."""
        return self._client.created_topics

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self.servers)}>"

    def contact(self, wait_s: float) -> Contact:
        """Searches for the leader for at most `wait_s` seconds."""
        return self._thread.run(self._client.view.contact(wait_s))

    def producer(
        self,
        *,
        group: str = DEFAULT_GROUP,
        timeout_s: float | None = None,
        attempt_timeout_s: float = ATTEMPT_S,
        max_messages: int = MAX_MESSAGES,
        max_bytes: int = MAX_BYTES,
    ) -> Producer:
        """Returns a new producer session; see AsyncClient.producer."""

        async def made() -> AsyncProducer:
            return self._client.producer(
                group=group,
                timeout_s=timeout_s,
                attempt_timeout_s=attempt_timeout_s,
                max_messages=max_messages,
                max_bytes=max_bytes,
            )

        return Producer(self._thread.run(made()), self._thread)

    def transaction_producer(self, group: str, *, check: Check, timeout_s: float | None = None) -> TransactionProducer:
        """Returns a producer of transactions that is a member of the producer group `group`, for `with`.

        The cluster asks `check` about a message whose transaction was not ended in time, sent by any program of the
        group. `check` gets the message and returns the outcome of its transaction. It runs in a thread of its own, for
        one message at a time.
        """
        producer = TransactionProducer(
            self._thread,
            self._client.view,
            group,
            check,
            timeout_s=self._timeout_s if timeout_s is None else timeout_s,
        )
        self._transaction_producers.append(producer)
        return producer

    def _default_producer(self) -> Producer:
        if self._producer is None:
            self._producer = self.producer()
        return self._producer

    def send(self, topic: str, body: bytes, **options: Unpack[MessageOptions]) -> SendResult:
        """Sends one message through the client's default producer and waits; see Producer.send."""
        return self._default_producer().send(topic, body, **options)

    def send_batch(self, topic: str, bodies: Sequence[bytes], **options: Unpack[SendOptions]) -> list[SendResult]:
        """Sends several messages to one queue, consecutively, either all or none, and waits."""
        return self._default_producer().send_batch(topic, bodies, **options)

    def staged_writes(self, *, timeout_s: float = 60.0) -> StagedWrites:
        """Returns the client of staged writes, which Spark's sink uses; `timeout_s` bounds each request."""
        return StagedWrites(self._client.view, self._thread, timeout_s)

    def recall(self, topic: str, recall_handle: str, *, timeout_s: float = 10.0) -> None:
        """Recalls a message whose delivery is delayed; see AsyncClient.recall."""
        self._thread.run(self._client.recall(topic, recall_handle, timeout_s=timeout_s))

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
    ) -> Consumer:
        """Returns a consumer that is a member of `group` and reads one topic or several, for `with` and `for`; see
        AsyncClient.consumer."""

        async def made() -> AsyncConsumer:
            return self._client.consumer(
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

        return Consumer(self._thread.run(made()), self._thread)

    def pull(
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
        entries that it has applied itself; see AsyncClient.pull for `as_stored`. Raises NotFound for a Position in
        another topic."""
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
                as_stored=as_stored,
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
        """Begins a pull; the returned future ends as AsyncClient.pull_frames would."""
        work = self._client.pull_frames(
            topic, queue_id, offset, max_messages, node=node, wait_s=wait_s, timeout_s=timeout_s
        )
        return self._thread.begin(work)

    def entries_at(
        self, positions: bytes, *, node: str | None = None, timeout_s: float = 10.0, group: int = 1
    ) -> bytes:
        """Returns the log entries of stored messages; see AsyncClient.entries_at."""
        return self._thread.run(self._client.entries_at(positions, node=node, timeout_s=timeout_s, group=group))

    def close(self, *, current_done: bool = True) -> None:
        """Closes consumers, flushes and closes producers, and ends the connections and the thread; see
        AsyncClient.close."""
        if self._thread.loop.is_closed():
            return
        try:
            for producer in self._transaction_producers:
                producer.close()
            self._thread.run(self._client.close(current_done=current_done))
        finally:
            self._thread.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(current_done=kind is None)


class Producer:
    """A producer for threads: the blocking form of AsyncProducer. Sends of one thread are stored in the order of its
    calls; sends of several threads have no order among each other."""

    def __init__(self, producer: AsyncProducer, thread: LoopThread) -> None:
        self._producer = producer
        self._thread = thread
        self._room = producer.room
        self._pipeline = producer.pipeline
        self._ids = producer.ids

    @property
    def producer_id(self) -> str:
        """The session's identity, as 32 hex digits."""
        return self._producer.producer_id

    def send(self, topic: str, body: bytes, **options: Unpack[MessageOptions]) -> SendResult:
        """Sends a message and waits until a majority has it on disk. Raises Failed, Unknown, Refused, NotFound."""
        self._thread.check_may_wait()
        return self.send_soon(topic, body, **options).result()

    def send_soon(
        self, topic: str, body: bytes, **options: Unpack[MessageOptions]
    ) -> concurrent.futures.Future[SendResult]:
        """Queues a send; blocks only while too much is unsettled. The returned future ends as `send` would."""
        try:
            request = build_single(self._ids, topic, body, **options)
        except TypeError as error:
            raise in_users_words(error, "send", options, MessageOptions) from None
        future: concurrent.futures.Future[SendResult] = concurrent.futures.Future()
        self._submit(request, future)
        return future

    def send_copy(
        self, topic: str, original: Message, properties: Mapping[str, str], *, queue_id: int | None = None
    ) -> SendResult:
        """Sends a copy of a stored message and waits; see AsyncProducer.send_copy."""
        self._thread.check_may_wait()
        request = build_copy(self._ids, topic, original, properties, queue_id=queue_id)
        future: concurrent.futures.Future[SendResult] = concurrent.futures.Future()
        self._submit(request, future)
        return future.result()

    def send_batch(self, topic: str, bodies: Sequence[bytes], **options: Unpack[SendOptions]) -> list[SendResult]:
        """Sends several messages to one queue, consecutively, either all or none, and waits."""
        self._thread.check_may_wait()
        try:
            request = build_batch(self._ids, topic, bodies, **options)
        except TypeError as error:
            raise in_users_words(error, "send_batch", options, SendOptions) from None
        future: concurrent.futures.Future[list[SendResult]] = concurrent.futures.Future()
        self._submit(request, future)
        return future.result()

    def _submit(self, request: SendRequest, future: concurrent.futures.Future[_T]) -> None:
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

    def flush(self) -> FlushResult:
        """Blocks until no send is unsettled: at most for the send timeout, unless more is sent meanwhile; see
        AsyncProducer.flush."""
        return self._thread.run(self._producer.flush())

    def close(self) -> None:
        """Flushes and closes the producer; takes at most as long as the send timeout."""
        if not self._producer.closed:
            self._thread.run(self._producer.close())

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Consumer:
    """A consumer for a thread: the blocking form of AsyncConsumer. Messages that are already buffered are handed out
    without a thread switch. Iterated over without a `with` block, it opens itself; the end of the iteration or of the
    client closes it."""

    def __init__(self, consumer: AsyncConsumer, thread: LoopThread) -> None:
        self._consumer = consumer
        self._thread = thread
        self._opened = False

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the consumer reads."""
        return self._consumer.topics

    @property
    def undecoded(self) -> int:
        """The number of messages that went back to the group because their bodies cannot be decompressed."""
        return self._consumer.undecoded

    @property
    def trimmed(self) -> int:
        """The number of offsets that retention removed before they were read."""
        return self._consumer.trimmed

    @property
    def at_end(self) -> bool:
        """True if nothing is left to hand out; never true for a consumer with `follow=True`."""
        return self._consumer.at_end

    def open(self) -> Consumer:
        """Joins the group and starts to pull; does nothing if the consumer is open. Raises NotFound if a topic does not
        exist, other RaftMQErrors, and RuntimeError once the consumer is closed."""
        self._thread.run(self._consumer.open())
        return self

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        if not self._opened:
            self._thread.run(self._consumer.open_for_reading())
            self._opened = True
        message = self.poll(self._consumer.max_wait_s)
        if message is None:
            self._thread.run(self._consumer.end_of_reading())
            raise StopIteration
        return message

    def poll(self, timeout_s: float | None = None) -> Message | None:
        """Returns the next message; None at the end, or if none came within `timeout_s`."""
        while True:
            message = self._consumer.inbox.take()
            if message is not None or not self._thread.run(self._consumer.wait(timeout_s)):
                return message

    def run(self, handle: Callable[[Message], object], *, commit_every_s: float = COMMIT_EVERY_S) -> None:
        """Calls `handle` for each message in this thread, one after the other, until there are no more messages to
        read, as in an iteration; commits every `commit_every_s` seconds.

        If `handle` raises an exception, it is logged and the message is retried as by `retry(message)`. Raises
        RaftMQError if the retry is not possible, or if nothing can be read; messages that were not handled then come
        again.
        """
        consumer = self._consumer
        pace = consumer._pace(commit_every_s)
        while True:
            message = consumer.inbox.take()
            if message is not None:
                try:
                    handle(message)
                except Exception:  # noqa: BLE001 - the program's own function
                    consumer._log_failure(message)
                    self.retry(message)
                pace.handled()
            elif not self._thread.run(consumer.wait(pace.patience_s())) and (consumer.is_over or pace.waited_enough()):
                return
            if pace.commit_is_due():
                self._thread.run(consumer._try_to_commit())

    def retry(self, message: Message, *, after: Delay = None, level: int | None = None) -> None:
        """Stores the message to be delivered to the group again, after at least `after` seconds (or a timedelta), or at
        a delay level; see AsyncConsumer.retry."""
        self._thread.run(self._consumer.retry(message, after=after, level=level))

    def dead_letter(self, message: Message) -> None:
        """Makes the message a dead letter: it is stored in `%DLQ%group` (`raftmq dlq`) and does not come again. Raises
        RaftMQError if it was not stored."""
        self._thread.run(self._consumer.dead_letter(message))

    def ack(self, message: Message) -> None:
        """Acknowledges the message: the next commit may cover it. Any thread may call it, in any order; see
        AsyncConsumer.ack. Raises RuntimeError without `manual_ack`."""
        self._consumer.ack(message)

    def seek(self, to: Start | Position | Message, *, topic: str | None = None, queue_id: int | None = None) -> None:
        """Continues reading at another place: "earliest", "latest", an aware datetime, an offset (with `queue_id`), a
        Position, or a message, which then comes again; see AsyncConsumer.seek."""
        self._thread.run(self._consumer.seek(to, topic=topic, queue_id=queue_id))

    def positions(self, topic: str | None = None) -> dict[int, int]:
        """Returns queue id -> the offset that `commit()` would store, for `topic`, which may be left out if there is
        only one."""
        return self._consumer.positions(topic)

    def bookmarks(self, topic: str | None = None) -> dict[int, Position]:
        """Returns the offsets of `positions` in a form to be stored: each as a Position, with the identity of its
        topic, which `seek` accepts."""
        return self._consumer.bookmarks(topic)

    def commit(self, message: Message | None = None) -> None:
        """Commits all messages that were handed out so far (with `manual_ack`: those acknowledged), durably. If
        `message` is given, commits only its queue, up to and including this message. Raises Unknown if the commit was
        not confirmed in time, Failed if the message's queue has been assigned to another member."""
        self._thread.run(self._consumer.commit(message))

    def close(self, *, commit: bool = True) -> None:
        """Commits, leaves the group and closes the consumer."""
        self._thread.run(self._consumer.close(commit=commit))

    def __enter__(self) -> Consumer:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._consumer.close(current_done=kind is None))

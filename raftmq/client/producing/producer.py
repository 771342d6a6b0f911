"""AsyncProducer: sends messages with one identity, in order; each is stored exactly once, or its outcome is reported as
unknown."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TypeVar, Unpack

from raftmq.client.arguments import check_count, check_named, check_seconds
from raftmq.client.cluster_view import ClusterView
from raftmq.client.message import Message, MessageOptions, SendOptions, SendResult
from raftmq.client.producing.pipeline import FlushResult, SendPipeline
from raftmq.client.producing.send_frame import (
    MessageIds,
    SendRequest,
    Submission,
    build_batch,
    build_copy,
    build_single,
    in_users_words,
)
from raftmq.client.send_room import Room

_T = TypeVar("_T", SendResult, list[SendResult])
DEFAULT_GROUP = "raftmq-python"
TIMEOUT_S = 30.0
ATTEMPT_S = 3.0
MAX_MESSAGES = 4096
MAX_BYTES = 8 << 20


class AsyncProducer:
    """A producer session: a random identity, sequences from 1, one connection to the leader.

    Sends of one producer are stored in the order of the calls, per queue; only a send that a node refused temporarily
    can fall behind later sends that were in flight then. While `max_messages` messages or `max_bytes` bytes are
    unsettled, `send_soon` waits.
    """

    def __init__(
        self,
        view: ClusterView,
        *,
        group: str = DEFAULT_GROUP,
        timeout_s: float = TIMEOUT_S,
        attempt_timeout_s: float = ATTEMPT_S,
        max_messages: int = MAX_MESSAGES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        view.bind_loop()
        check_named("group", group)
        check_seconds("timeout_s", timeout_s)
        check_seconds("attempt_timeout_s", attempt_timeout_s)
        check_count("max_messages", max_messages, least=1)
        check_count("max_bytes", max_bytes, least=1)
        self.room = Room(max_messages, max_bytes)
        self._make_pipeline = functools.partial(
            SendPipeline, room=self.room, group=group, timeout_s=timeout_s, attempt_s=attempt_timeout_s
        )
        self.pipeline = self._make_pipeline(view)
        """The pipeline of the first group of brokers, to which all sends are handed."""
        self._further: dict[int, SendPipeline] = {}
        """Group of brokers -> its pipeline, for each further group that was sent to: each group has a session of its
        own."""
        self.pipeline.sort_out_with(self._pipeline_of)
        self.ids = MessageIds(view.environment.entropy(10))
        self.closed = False

    @property
    def producer_id(self) -> str:
        """The identity of the session with the first group of brokers, as 32 hex digits."""
        return self.pipeline.producer_id.hex()

    def _pipeline_of(self, group: int) -> SendPipeline | None:
        found = self._further.get(group)
        if found is None:
            view = self.pipeline.view.groups.known(group)
            if view is None or view is self.pipeline.view:
                return None
            found = self._further[group] = self._make_pipeline(view)
        return found

    async def send(self, topic: str, body: bytes, **options: Unpack[MessageOptions]) -> SendResult:
        """Sends a message and waits until a majority has it on disk. Raises Failed, Unknown, Refused, or NotFound."""
        future = await self.send_soon(topic, body, **options)
        return await future

    async def send_soon(self, topic: str, body: bytes, **options: Unpack[MessageOptions]) -> asyncio.Future[SendResult]:
        """Queues a send; waits only while too much is unsettled. The returned future ends as `send` would."""
        try:
            request = build_single(self.ids, topic, body, **options)
        except TypeError as error:
            raise in_users_words(error, "send", options, MessageOptions) from None
        future: asyncio.Future[SendResult] = self.pipeline.loop.create_future()
        await self._submit(request, future)
        return future

    async def send_copy(
        self, topic: str, original: Message, properties: Mapping[str, str], *, queue_id: int | None = None
    ) -> SendResult:
        """Sends a copy of a stored message to a topic and waits, as `send` does. The body is sent unchanged, even if it
        is compressed; `properties` are all properties of the copy, including KEYS and TAGS."""
        request = build_copy(self.ids, topic, original, properties, queue_id=queue_id)
        future: asyncio.Future[SendResult] = self.pipeline.loop.create_future()
        await self._submit(request, future)
        return await future

    async def send_batch(self, topic: str, bodies: Sequence[bytes], **options: Unpack[SendOptions]) -> list[SendResult]:
        """Sends several messages to one queue, consecutively; either all or none are stored."""
        try:
            request = build_batch(self.ids, topic, bodies, **options)
        except TypeError as error:
            raise in_users_words(error, "send_batch", options, SendOptions) from None
        future: asyncio.Future[list[SendResult]] = self.pipeline.loop.create_future()
        await self._submit(request, future)
        return await future

    async def _submit(self, request: SendRequest, future: asyncio.Future[_T]) -> None:
        pipeline = self.pipeline
        if asyncio.get_running_loop() is not pipeline.loop:
            pipeline.view.bind_loop()  # raises RuntimeError, because the client belongs to another loop
        self.check_open()
        if not self.room.take(request.size):
            await self.room.take_async(request.size)
            if self.closed:
                self.room.give_back(1, request.size)
                self.check_open()
        pipeline.submit(Submission(request, future, pipeline.loop.time() + pipeline.timeout_s), from_loop=True)

    def check_open(self) -> None:
        """Raises RuntimeError once the producer is closed."""
        if self.closed:
            raise RuntimeError("the producer is closed")

    async def flush(self) -> FlushResult:
        """Waits until no send is unsettled: at most for the send timeout, unless more is sent meanwhile. Returns how
        many requests were stored, failed or are unknown since the last flush, and the first error. The future of each
        send has its own outcome."""
        self.pipeline.view.bind_loop()
        await self.pipeline.drained()
        outcomes = self.pipeline.take_outcomes()
        for pipeline in self._further.values():
            outcomes = outcomes.and_those(pipeline.take_outcomes())
        return outcomes

    async def close(self) -> None:
        """Flushes and closes the producer; takes at most as long as the send timeout."""
        if not self.closed:
            self.closed = True
            await self.pipeline.close()
            for pipeline in self._further.values():  # nothing is unsettled, so a new pipeline can use the same room
                pipeline.abandon()

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

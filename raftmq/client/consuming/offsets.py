"""Reads of queue and group offsets, which need the leader, and the commit of a group's offset."""

from __future__ import annotations

import datetime
import functools
from typing import TypedDict

import msgspec

from raftmq.client.cluster_view import ClusterView
from raftmq.client.connection import Reply
from raftmq.client.errors import Failed
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.queue_numbers import queue_in_group, queue_text
from raftmq_wire.topic_identity import IDENTITY_FIELD, Position, TopicIdentity, parse_identity

Start = str | int | datetime.datetime
"""A place to begin for a group without a committed offset: "earliest", "latest", a queue offset, or a time (aware
datetime)."""


_ASKED: dict[int, str] = {
    RequestCode.GET_MAX_OFFSET: "last offset",
    RequestCode.GET_MIN_OFFSET: "first offset",
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: "offset at a time",
    RequestCode.GET_EARLIEST_MSG_STORETIME: "time of the first message",
}


class _Limits(TypedDict):
    timeout_s: float
    refused_s: float | None


class Offsets:
    """Reads and commits offsets. Each call is linearizable: the server confirms its leadership before it answers.

    A call is repeated for `timeout_s`, or until every server has refused connections for `refused_s`.
    """

    def __init__(
        self, view: ClusterView, timeout_s: float = 10.0, refused_s: float | None = None, committer: str | None = None
    ) -> None:
        """`committer`: the client id that commits carry. The cluster drops a commit with a client id if another client
        holds the queue's lock."""
        self._view = view
        self._committer = {} if committer is None else {"raftmqClients": msgspec.json.encode([committer]).decode()}
        self._session = b""
        self._sequence = 0
        self._unsettled: set[int] = set()
        self._limits: _Limits = {"timeout_s": timeout_s, "refused_s": refused_s}
        self._call = functools.partial(view.call, **self._limits)

    async def _call_at(
        self,
        queue_id: int,
        code: int,
        ext: dict[str, str],
        *,
        what: str,
        accept: tuple[int, ...] = (0,),
        writes: bool = False,
    ) -> Reply:
        """Sends a request about a queue to the group of brokers that has it."""
        view = await self._view.groups.at(queue_id)
        ext = {**ext, "queueId": str(queue_in_group(queue_id))}
        return await view.call(code, ext, what=what, accept=accept, writes=writes, **self._limits)

    async def max_offset(self, topic: str, queue_id: int) -> int:
        """Returns the offset that the queue's next message will get. Raises NotFound if there is no such topic or
        queue."""
        return await self._number(RequestCode.GET_MAX_OFFSET, topic, queue_id, "offset")

    async def counted(self, code: int, topic: str, queue_id: int, **more: str) -> tuple[int, TopicIdentity | None]:
        """Sends the request `code`, which asks for an offset of a queue. Returns the offset and the identity of the
        topic in which it counts, both read at the same moment. The identity is None if the node runs an old release."""
        what, reply = await self._asked(code, topic, queue_id, **more)
        return _int(reply.ext, "offset", what), identity_in(reply, what)

    async def min_offset(self, topic: str, queue_id: int) -> int:
        """Returns the first offset that the queue still keeps."""
        return await self._number(RequestCode.GET_MIN_OFFSET, topic, queue_id, "offset")

    async def offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Returns the first offset stored at or after `timestamp_ms` (log time); the maximum offset if all messages are
        older."""
        return (await self._at(topic, queue_id, timestamp_ms)).offset

    async def _at(self, topic: str, queue_id: int, timestamp_ms: int) -> Position:
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        return Position(*await self.counted(code, topic, queue_id, timestamp=str(timestamp_ms)))

    async def earliest_store_ms(self, topic: str, queue_id: int) -> int:
        """Returns the time when the first kept message was stored, in ms of log time; -1 for an empty queue."""
        return await self._number(RequestCode.GET_EARLIEST_MSG_STORETIME, topic, queue_id, "timestamp")

    async def _number(self, code: int, topic: str, queue_id: int, field: str, **more: str) -> int:
        what, reply = await self._asked(code, topic, queue_id, **more)
        return _int(reply.ext, field, what)

    async def _asked(self, code: int, topic: str, queue_id: int, **more: str) -> tuple[str, Reply]:
        """Sends the request `code` about a queue. Returns the request in words, for errors, and the reply."""
        what = f"{_ASKED[code]} of {topic} queue {queue_text(queue_id)}"
        return what, await self._call_at(queue_id, code, {"topic": topic, **more}, what=what)

    async def committed(self, group: str, topic: str, queue_id: int) -> int | None:
        """Returns the group's committed offset in the queue; None if it has none."""
        found = await self.kept_position(group, topic, queue_id)
        return None if found is None else found.offset

    async def kept_position(self, group: str, topic: str, queue_id: int) -> Position | None:
        """Returns the group's committed offset in the queue, with the identity of the topic in which it counts; None if
        it has none."""
        what = f"committed offset of {group} on {topic} queue {queue_text(queue_id)}"
        reply = await self._call_at(
            queue_id,
            RequestCode.QUERY_CONSUMER_OFFSET,
            {"consumerGroup": group, "topic": topic, "setZeroIfNotFound": "false"},
            what=what,
            accept=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        )
        if reply.code != ResponseCode.SUCCESS:
            return None
        return Position(_int(reply.ext, "offset", what), identity_in(reply, what))

    async def commit(self, group: str, topic: str, queue_id: int, offset: int | Position) -> None:
        """Commits an offset; returns when a majority has stored it. It may be lower than the one before. Raises
        NotFound if it is a Position in another topic, and Unknown if no answer came.

        Every attempt carries the same session and sequence number: an attempt that arrives late, after a newer commit,
        does not move the offset back.
        """
        self._session = self._session or self._view.new_session()
        self._sequence = sequence = self._sequence + 1
        self._unsettled.add(sequence)
        offset, counted_in = offset if isinstance(offset, Position) else Position(offset)
        ext = {
            "consumerGroup": group,
            "topic": topic,
            "commitOffset": str(offset),
            "raftmqPid": self._session.hex(),
            "raftmqSeq": str(sequence),
            "raftmqLow": str(min(self._unsettled)),
            **({} if counted_in is None else {IDENTITY_FIELD: str(counted_in)}),
            **self._committer,
        }
        try:
            await self._call_at(
                queue_id,
                RequestCode.UPDATE_CONSUMER_OFFSET,
                ext,
                what=f"commit of {group} on {topic} queue {queue_text(queue_id)}",
                writes=True,
            )
        finally:
            self._unsettled.discard(sequence)

    async def begin(self, topic: str, queue_id: int, start: Start) -> Position:
        """Returns the position at which a group that starts at `start` begins to read this queue."""
        if isinstance(start, datetime.datetime):
            return await self._at(topic, queue_id, int(start.timestamp() * 1000))
        code = RequestCode.GET_MIN_OFFSET if start == "earliest" else RequestCode.GET_MAX_OFFSET
        found = Position(*await self.counted(code, topic, queue_id))
        return found._replace(offset=start) if isinstance(start, int) else found


def check_start(start: Start) -> None:
    """Raises ValueError unless `start` is "earliest", "latest", an offset of 0 or more, or a datetime with a time
    zone."""
    if isinstance(start, datetime.datetime):
        if start.tzinfo is None:
            raise ValueError(f"start={start} has no time zone; use datetime.now(timezone.utc) or .astimezone()")
    elif isinstance(start, bool) or not ((isinstance(start, int) and start >= 0) or start in ("earliest", "latest")):
        raise ValueError(f'start={start!r} is not "earliest", "latest", an offset >= 0 or a datetime')


def identity_in(reply: Reply, what: str) -> TopicIdentity | None:
    """Returns the identity of the topic that a reply is about; None if it names none. Raises Failed if it is
    malformed."""
    told = reply.ext.get(IDENTITY_FIELD)
    try:
        return None if told is None else parse_identity(told)
    except ValueError as error:
        raise Failed(f"{what}: {error}") from error


def _int(ext: dict[str, str], field: str, what: str) -> int:
    try:
        return int(ext[field])
    except (KeyError, ValueError) as error:
        raise Failed(f"{what}: the reply has no number {field!r}") from error

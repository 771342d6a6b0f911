"""One pull: builds the request PULL_MESSAGE, and decodes and checks its reply."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from raftmq.client.connection import Connection, Reply
from raftmq.client.consuming.subscription import ALL, Subscription
from raftmq.client.errors import Failed, error_of
from raftmq.client.message import MAX_INFLATED_BYTES, Message, decode_messages
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.queue_numbers import queue_in_group, queue_text
from raftmq_wire.topic_identity import IDENTITY_FIELD, TopicIdentity

_SUSPEND = 2
_SUBSCRIPTION_INSIDE = 4
TOOLS_GROUP = "TOOLS_CONSUMER"
"""RocketMQ's consumer group for tools that read without a group of their own."""
MAX_PULL_MESSAGES = 1024
MAX_PULL_BYTES = 1 << 20
"""Bytes that a pull asks for; the server gives at most as many as its own limits allow."""
GRACE_S = 5.0
"""Seconds that the client waits for the reply, beyond the time that the server may hold the pull."""


class PullStatus(Enum):
    """The status of a pull: messages were found, or the reason why there are none."""

    FOUND = "found"
    END = "end"
    """The queue has no message at this offset yet."""
    FILTERED = "filtered"
    """The server filtered out every message that it looked at; continue at `next_offset`."""
    MOVED = "moved"
    """The offset is below the first or above the last of the queue; `next_offset` is the nearest valid one."""
    RESET = "reset"
    """An operator has moved the group's offset of the queue to `next_offset`."""


_STATUS = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.END,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.FILTERED,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.MOVED,
}
_RESET = "OFFSET_RESET"
"""The remark of a reply that moves the consumer to another offset because its group was reset."""


class PullResult(NamedTuple):
    """The messages that one pull returned from one queue. `max_offset` is the offset that the queue's next message will
    get."""

    status: PullStatus
    messages: list[Message]
    next_offset: int
    min_offset: int
    max_offset: int
    ask_next: int = 0
    """Broker id of the node that the server suggests for the next pull; 0 is the leader."""
    served_by: int | None = None
    """Node id of the follower that answered; None if the leader answered."""
    staleness_ms: int | None = None
    """Milliseconds since the follower last had applied everything that its leader had committed. None if the leader
    answered, or if the follower never caught up."""
    unreadable: tuple[Message, ...] = ()
    """Messages whose bodies cannot be decompressed, left out of `messages`. Filled only for a consumer's pull."""


class PulledFrames(NamedTuple):
    """The messages of a pull in their stored form, back to back (`raftmq_wire.message_format`), neither decoded nor
    checked.

    Without a filter they hold one message for each offset from the requested one up to, not including, `next_offset`;
    the reader checks this. The other fields are those of PullResult.
    """

    status: PullStatus
    frames: bytes
    next_offset: int
    min_offset: int
    max_offset: int
    ask_next: int = 0
    served_by: int | None = None
    staleness_ms: int | None = None


class PullRequest(NamedTuple):
    """The parameters of a pull. Every node answers from its own applied state, so "nothing yet" may mean that the node
    lags."""

    topic: str
    queue_id: int
    offset: int
    group: str = TOOLS_GROUP
    max_messages: int = MAX_PULL_MESSAGES
    subscription: Subscription = ALL
    wait_s: float = 0.0
    counted_in: TopicIdentity | None = None
    """The identity of the topic in which `offset` counts; None if it is not known."""

    def ext(self) -> dict[str, str]:
        """Returns the ext fields of the request."""
        counted_in = {} if self.counted_in is None else {IDENTITY_FIELD: str(self.counted_in)}
        return {
            "consumerGroup": self.group,
            "topic": self.topic,
            "queueId": str(queue_in_group(self.queue_id)),
            "queueOffset": str(self.offset),
            "maxMsgNums": str(self.max_messages),
            "maxMsgBytes": str(MAX_PULL_BYTES),
            "sysFlag": str(_SUBSCRIPTION_INSIDE | (_SUSPEND if self.wait_s > 0 else 0)),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(int(self.wait_s * 1000)),
            "subVersion": "0",
            "subscription": self.subscription.text,
            "expressionType": self.subscription.kind,
            **counted_in,
        }


async def pull_once(link: Connection, request: PullRequest) -> PullResult:
    """Sends a consumer's pull and decodes its reply. Raises OSError from the connection, RaftMQError from the reply."""
    result = read_reply(request, await ask(link, request))
    apart = tuple(message for message in result.messages if message.undecoded)
    if not apart:
        return result
    return result._replace(messages=[each for each in result.messages if not each.undecoded], unreadable=apart)


async def ask(link: Connection, request: PullRequest) -> Reply:
    """Sends one pull; returns the reply for `read_reply` or `read_frames`. Raises OSError."""
    return await link.call(RequestCode.PULL_MESSAGE, request.ext(), timeout_s=request.wait_s + GRACE_S)


def read_frames(request: PullRequest, reply: Reply) -> PulledFrames:
    """Decodes a pull reply but leaves its messages in their stored form. Raises RaftMQError."""
    what = _what(request)
    status = _STATUS.get(reply.code)
    if status is None:
        raise error_of(reply.code, reply.remark, what)
    if status is PullStatus.MOVED and reply.remark == _RESET:
        status = PullStatus.RESET
    try:
        next_offset = int(reply.ext["nextBeginOffset"])
        min_offset, max_offset = int(reply.ext["minOffset"]), int(reply.ext["maxOffset"])
    except (KeyError, ValueError) as error:
        raise Failed(f"{what}: the reply lacks {error}", code=reply.code) from error
    frames = reply.body if status is PullStatus.FOUND else b""
    return PulledFrames(status, frames, next_offset, min_offset, max_offset, *_who(reply.ext))


def read_reply(request: PullRequest, reply: Reply, *, as_stored: bool = False) -> PullResult:
    """Decodes and checks a pull reply. With `as_stored`, no body is decompressed. Raises RaftMQError."""
    pulled = read_frames(request, reply)
    first_queue = request.queue_id - queue_in_group(request.queue_id)
    messages = decode_messages(pulled.frames, as_stored=True, first_queue=first_queue)
    _check_order(request, messages, pulled.next_offset, _what(request))
    tags = request.subscription.tags
    if tags is not None:  # the server compares hashes of tags, and different tags may have the same hash
        messages = [message for message in messages if message.tag in tags]
    next_offset = pulled.next_offset
    if not as_stored:
        messages, next_offset = _decoded(messages, next_offset)
    return PullResult(
        pulled.status,
        messages,
        next_offset,
        pulled.min_offset,
        pulled.max_offset,
        pulled.ask_next,
        pulled.served_by,
        pulled.staleness_ms,
    )


def _decoded(messages: list[Message], next_offset: int) -> tuple[list[Message], int]:
    """Returns the messages with plain bodies, and the offset at which to continue. Once the bodies have inflated to
    MAX_INFLATED_BYTES, the rest is left to the next pull: a reply of 1 MiB may inflate to more than 1 GiB."""
    if not any(message.compression for message in messages):
        return messages, next_offset
    plain: list[Message] = []
    size = 0
    for message in messages:
        if size >= MAX_INFLATED_BYTES:
            return plain, message.queue_offset
        plain.append(message.decoded())
        size += len(plain[-1].body)
    return plain, next_offset


def _what(request: PullRequest) -> str:
    return f"pull of {request.topic} queue {queue_text(request.queue_id)} offset {request.offset}"


def _who(ext: Mapping[str, str]) -> tuple[int, int | None, int | None]:
    """Returns (broker id to ask next, node id of the follower that answered, its staleness in ms) from the ext fields
    of a reply."""
    asked, served = ext.get("suggestWhichBrokerId", "0"), ext.get("raftmqServedBy", "")
    stale = int(ext.get("raftmqStalenessMs", "-1"))
    return int(asked) if asked.isdigit() else 0, int(served) if served else None, stale if stale >= 0 else None


def _check_order(request: PullRequest, messages: list[Message], next_offset: int, what: str) -> None:
    """Checks that offsets ascend from the requested one, without gaps unless a filter explains them; raises Failed if
    they do not."""
    expected = request.offset
    exact = request.subscription == ALL
    for message in messages:
        offset = message.queue_offset
        if message.queue_id != request.queue_id or offset < expected or (exact and offset != expected):
            raise Failed(
                f"{what}: expected offset {expected} of queue {queue_text(request.queue_id)}, got {offset} of queue "
                f"{queue_text(message.queue_id)}; messages would be skipped or read twice",
                hint="This is a defect or a damaged replica: `raftmq status`, then compare the replicas.",
            )
        expected = offset + 1
    if messages and (next_offset < expected or (exact and next_offset != expected)):
        raise Failed(f"{what}: the reply ends at offset {expected} but says to go on at {next_offset}")

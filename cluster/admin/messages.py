"""/v1/topics/{name}/messages/{key} and /v1/messages/{position}: single messages, by key or by position."""

from __future__ import annotations

import asyncio
import base64

import msgspec

from cluster.admin.call import Call, ReadView
from cluster.admin.errors import ApiError
from cluster.admin.topics import find_topic
from cluster.broker.message_lookup import KeyLookup, KeyQuery, QueryResult, Stored, UnreadableError, message_at
from cluster.runtime.request_limits import INT64_MAX
from cluster.wire.message_format import encode_message_id, parse_properties

MESSAGES_MAX = 32


class MessageView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stored message. Its body is `body` if it is UTF-8 text, else `body_base64`, as it was sent."""

    topic: str
    queue_id: int
    queue_offset: int
    position: int
    id: str
    """RocketMQ's offsetMsgId."""
    store_ms: int
    born_ms: int
    reconsume_times: int = 0
    properties: dict[str, str]
    body: str | None = None
    body_base64: str | None = None


class MessagesView(ReadView, frozen=True, kw_only=True):
    """`GET /v1/topics/{name}/messages/{key}`: the newest first."""

    messages: list[MessageView]
    more: bool
    """There may be older ones."""


class MessageDetail(ReadView, frozen=True, kw_only=True):
    """`GET /v1/messages/{position}`."""

    message: MessageView


async def find_messages(call: Call) -> MessagesView:
    """The newest messages of a topic with this UNIQ_KEY or word of KEYS."""
    _refuse_if_fenced(call)
    port, applied = call.port, call.port.state.applied.index
    topic, key = find_topic(port.state, call.params["name"]), call.params["key"]
    lookup = KeyLookup(port.services, topic, KeyQuery(key, unique=False, count_max=MESSAGES_MAX))
    done: asyncio.Future[QueryResult] = asyncio.get_running_loop().create_future()
    lookup.run(
        lambda found: None if done.done() else done.set_result(found),
        lambda error: None if done.done() else done.set_exception(error),
        done.cancelled,
    )
    found = await done
    if not found.messages and found.unreadable is not None:
        raise ApiError(
            "failed",
            f"a message at position {found.unreadable} cannot be read intact on this node",
            "ask another node; this one fetches it from its peers if its log is damaged",
        )
    return MessagesView(
        node=port.config.node.id,
        consistency=call.consistency,
        applied_index=applied,
        messages=[_view(stored) for stored in found.messages],
        more=found.stopped,
    )


async def get_message(call: Call) -> MessageDetail:
    """The message that begins at this position of the commit log."""
    _refuse_if_fenced(call)
    port, applied = call.port, call.port.state.applied.index
    text = call.params["position"]
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= INT64_MAX):
        raise ApiError("bad_field", f"{text} is not a position", "a position is a whole number from 0 up")
    try:
        stored = message_at(port.services, int(text), waiting=True)
        why = "it is in no queue any more"
    except UnreadableError as error:
        stored, why = None, str(error)
    if stored is None:
        raise ApiError("not_found", f"there is no message at position {text}", why)
    return MessageDetail(
        node=port.config.node.id, consistency=call.consistency, applied_index=applied, message=_view(stored)
    )


def _refuse_if_fenced(call: Call) -> None:
    if call.port.consistency.fenced:
        raise ApiError("failed", "this node serves no messages: its rows are wrong", "ask another node")


def _view(stored: Stored) -> MessageView:
    message = stored.message
    text: str | None = None
    binary: str | None = None
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        binary = base64.b64encode(message.body).decode()
    return MessageView(
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        position=message.position,
        id=encode_message_id(message.store_host, message.position),
        store_ms=message.store_ms,
        born_ms=message.born_ms,
        reconsume_times=message.reconsume_times,
        properties=parse_properties(message.properties),
        body=text,
        body_base64=binary,
    )

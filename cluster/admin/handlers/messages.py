"""Returns stored messages: those with a key, the one at a position of the log, or a page of a queue from an offset or a
time on."""

from __future__ import annotations

import base64
import codecs
import sys
from functools import partial
from typing import Final, NamedTuple

import msgspec

from cluster.admin import route, route_rights
from cluster.admin.errors import ApiError
from cluster.admin.handler_request import Call, ReadView
from cluster.admin.handlers.topics import find_topic
from cluster.admin.pagination import Page
from cluster.admin.refusals import error_of, not_refused
from cluster.admin.request_parsing import number_of
from cluster.admin.route import PAGE_BYTES_MAX, Route, RouteCost
from cluster.admin.streamed_json import Pieces
from cluster.broker.evicted.evicted_key_search import EvictedPage
from cluster.broker.evicted.evicted_pulls import first_offset
from cluster.broker.evicted.evicted_time_search import offset_by_time
from cluster.broker.name_rules import check_counted, check_queue
from cluster.broker.reads.message_lookup import (
    BYTES_MAX,
    KeyQuery,
    QueryResult,
    StoredMessage,
    UnreadableError,
    message_at,
)
from cluster.broker.refusal import Reason, Refused
from cluster.requests.verb import Serves
from cluster.runtime.awaited import told
from cluster.runtime.request_limits import INT64_MAX
from cluster.tier.store.errors import StoreError
from raftlog.work import charge_bytes, charge_text
from raftmq_wire.codes import RequestCode
from raftmq_wire.message_format import Message, decode_message, encode_message_id
from raftmq_wire.properties import parse_properties
from raftmq_wire.topic_identity import IDENTITY_FIELD
from statemachine.topics.topics import TopicConfig

MESSAGES_MAX: Final = 32
FOUND_COST: Final = RouteCost(MESSAGES_MAX, lambda limits: PAGE_BYTES_MAX + BYTES_MAX + limits.message_bytes_max)
"""The cost of a search. All messages that it finds are in memory at once."""
PAGE_BODY_BYTES: Final = 4096
"""The most bytes of each body on a page, unless the request has ?body_bytes=."""
BODY_BYTES, COUNT, COUNTED_IN, OFFSET, TIME_MS = "body_bytes", "count", "counted_in", "offset", "time_ms"
_COUNTED_CODES: Final = {Reason.INVALID: "bad_query", Reason.NO_TOPIC: "refused"}
_ASK_AGAIN: Final = "ask again; raftmq tier status says what is wrong with the store"
PAGE_QUERY: Final = (OFFSET, TIME_MS, COUNT, BODY_BYTES, COUNTED_IN)


class MessagesView(ReadView, frozen=True, kw_only=True):
    """The answer to `GET /v1/topics/{name}/messages/{key}`: messages, the newest first."""

    messages: list[MessageView]
    more: bool
    """True if there may be older messages with this key."""


class QueuePage(ReadView, frozen=True, kw_only=True):
    """The answer to `GET /v1/topics/{name}/queues/{queue}/messages`: messages in the order of their offsets."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    """The end of the queue, exclusive. Messages from `min_offset` on, inclusive, can be read from this node or from the
    tier."""
    messages: list[MessageView]
    next_offset: int
    """The first offset of the next page; `max_offset` if this page is the last one."""
    counted_in: str
    """The identity of the topic to which the offsets belong. If a request for the next page repeats it, and the topic
    was deleted and created again, the request is refused."""
    unreadable: list[int]
    """Offsets on this page whose messages this node cannot read intact."""


class MessageDetail(ReadView, frozen=True, kw_only=True):
    """The answer to `GET /v1/messages/{position}`."""

    message: MessageView


async def find_messages(call: Call) -> Pieces:
    """Finds the newest messages of a topic whose UNIQ_KEY, or a word of whose KEYS, is the given key."""
    _refuse_if_fenced(call)
    body_bytes = number_of(call.query, BODY_BYTES, INT64_MAX)
    port, applied = call.port, call.port.state.applied.index
    topic, key = await find_topic(call, call.params["name"]), call.params["key"]
    query = KeyQuery(key, unique=False, count_max=MESSAGES_MAX)
    here = await call.done(port.served.queries.search(topic, query))
    found: QueryResult = await not_refused(partial(port.served.queries.complete, topic, query, here), again=_ASK_AGAIN)
    if not found.messages and found.unreadable is not None:
        raise ApiError(
            "failed",
            f"a message at position {found.unreadable} cannot be read intact on this node",
            "ask another node; this one fetches it from its peers if its log is damaged",
        )
    page = Page(call, MESSAGES_MAX)
    more = found.may_miss
    for stored in found.messages:
        if not page.add_parts(await message_parts(call, stored.message, body_bytes, page.left)):
            more = True
            break
    view = MessagesView(
        node=port.config.node.id, consistency=call.consistency, applied_index=applied, messages=[], more=more
    )
    return page.answer(view, "messages")


async def get_message(call: Call) -> Pieces:
    """Returns the message that begins at a position of the commit log."""
    _refuse_if_fenced(call)
    port, applied = call.port, call.port.state.applied.index
    body_bytes, text = number_of(call.query, BODY_BYTES, INT64_MAX), call.params["position"]
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= INT64_MAX):
        raise ApiError("bad_field", f"{text} is not a position", "a position is a whole number from 0 up")
    what = "GET /v1/messages/{position}"
    stored: StoredMessage | Refused = await told(partial(port.served.queries.at, call.caller.party, int(text), what))
    if isinstance(stored, Refused):
        if stored.reason is Reason.NOT_FOUND:
            raise ApiError("not_found", f"there is no message at position {text}", stored.remark)
        raise error_of(stored, again=_ASK_AGAIN)
    view = ReadView(node=port.config.node.id, consistency=call.consistency, applied_index=applied)
    parts = await message_parts(call, stored.message, body_bytes)
    return Pieces([msgspec.json.encode(view)[:-1], b',"message":', *parts, b"}"])


async def list_messages(call: Call) -> Pieces:
    """Lists messages of a queue from an offset or a store time on; the newest ones without either."""
    _refuse_if_fenced(call)
    port, applied = call.port, call.port.state.applied.index
    topic, queue = await find_topic(call, call.params["name"]), _queue_id(call)
    check_queue(port.state, topic, queue)
    _check_counted(call, topic)
    counted_in = port.services.topic_identity(topic.name)[IDENTITY_FIELD]
    body_bytes = number_of(call.query, BODY_BYTES, PAGE_BODY_BYTES)
    count = number_of(call.query, COUNT, MESSAGES_MAX, MESSAGES_MAX)
    offset = await _first_offset(call, topic.id, queue, count)
    older = await _older(call, topic, queue, offset, count)
    page, offset, unreadable = Page(call, count), older.next_offset, older.unreadable
    for data in older.messages:
        message = decode_message(data)[0]
        if not await _add(call, page, message, body_bytes):
            offset = message.queue_offset
            unreadable = [at for at in unreadable if at < offset]
            break
    else:
        offset = await _add_stored(call, page, (topic, queue, offset, count), body_bytes, unreadable)
    view = QueuePage(
        node=port.config.node.id,
        consistency=call.consistency,
        applied_index=applied,
        topic=topic.name,
        queue_id=queue,
        min_offset=first_offset(port.state, topic.id, queue),
        max_offset=port.state.max_offset(topic.id, queue),
        messages=[],
        next_offset=offset,
        counted_in=counted_in,
        unreadable=unreadable,
    )
    return page.answer(view, "messages")


def _check_counted(call: Call, topic: TopicConfig) -> None:
    """Raises ApiError if ?counted_in= names another topic than the present one of this name: the topic was deleted and
    created again, so the offset does not belong to it."""
    try:
        check_counted(call.port.services, topic, call.query.get(COUNTED_IN), number_of(call.query, OFFSET))
    except Refused as refused:
        leave_out = f"leave out {COUNTED_IN} to read the topic that is there now"
        raise error_of(refused, leave_out, leave_out, _COUNTED_CODES) from None


async def _add(call: Call, page: Page, message: Message, body_bytes: int) -> bool:
    """Adds a message to the page. Returns False if the page has no room for it, so that it is left for the next page.
    The first message of a page always has room, because its body is cut."""
    return page.add_parts(await message_parts(call, message, body_bytes, PAGE_BYTES_MAX if page.items else page.left))


async def _add_stored(
    call: Call, page: Page, where: tuple[TopicConfig, int, int, int], body_bytes: int, unreadable: list[int]
) -> int:
    """Adds messages of this node's log to the page until it is full, and returns the offset after the last one. Offsets
    of messages that cannot be read are added to `unreadable`. `where`: (topic, queue, first offset, the most
    messages)."""
    port = call.port
    topic, queue, offset, count = where
    read_bytes = 0
    for item in port.state.fetch(topic.id, queue, offset, count - page.items - len(unreadable)):
        if page.full or read_bytes > BYTES_MAX or item.queue_offset != offset:  # a gap: messages were just evicted
            break
        await page.turn()
        charge_bytes(item.size)
        try:
            stored = message_at(port.services, item.position, topic)
        except UnreadableError:
            stored = None
        if stored is None:
            unreadable.append(item.queue_offset)
        elif not await _add(call, page, stored.message, body_bytes):
            break
        offset, read_bytes = item.queue_offset + 1, read_bytes + item.size
    return offset


async def _older(call: Call, topic: TopicConfig, queue: int, offset: int, count: int) -> EvictedPage:
    """Returns the messages from `offset` on that lie below the beginning of this node's log, read from the tier. Its
    list is empty if `offset` is in the log, or if `count` is 0. Raises ApiError if this node has no tier, or cannot
    read it now."""
    port = call.port
    low = port.state.min_offset(topic.id, queue)
    if offset >= low or not count:
        return EvictedPage([], offset, [])
    if port.storage.evicted_pages is None:
        raise ApiError(
            "failed", f"offset {offset} is in the tier, and this node has none", "set tier.url, or ask another node"
        )
    try:
        return await port.storage.evicted_pages.page(topic.id, queue, offset, low, count)
    except StoreError as error:
        raise ApiError(
            "failed", f"offset {offset} is in the tier, which does not give it: {error}", _ASK_AGAIN
        ) from None


async def _first_offset(call: Call, topic_id: int, queue: int, count: int) -> int:
    """Returns the offset at which the page begins. If the request has an offset and a time, the later one counts;
    without either, the page begins `count` messages before the end. Raises ApiError if a parameter is no number, or if
    the offset of the time cannot be found."""
    port, query = call.port, call.query
    low, high = first_offset(port.state, topic_id, queue), port.state.max_offset(topic_id, queue)
    first = number_of(query, OFFSET) if OFFSET in query or TIME_MS in query else high - count
    if TIME_MS in query:
        time_ms = number_of(query, TIME_MS)
        by_time: int = await not_refused(
            partial(offset_by_time, port.state, port.storage.evicted_bounds, (topic_id, queue), time_ms, upper=False),
            again=_ASK_AGAIN,
        )
        first = max(first, by_time)
    return min(high, max(low, first))


def _queue_id(call: Call) -> int:
    text = call.params["queue"]
    if not (text.isascii() and text.isdecimal() and len(text) <= 5):
        raise ApiError("bad_field", f"{text[:64]} is not the number of a queue", "GET /v1/topics/{name} lists them")
    return int(text)


def _refuse_if_fenced(call: Call) -> None:
    if call.port.storage.consistency.fenced:
        raise ApiError("failed", "this node serves no messages: its rows are wrong", "ask another node")


# Encodes a stored message as JSON. A body may be as long as the configured limit, and up to six times that as JSON. It
# is therefore encoded in slices.

SLICE_BYTES: Final = 48 << 10
"""Number of bytes of a body that one step encodes. It is a multiple of three, so that the base64 of the slices can be
joined."""
_QUOTED: Final = 16
"""Number of bytes for the name of the body's field, its quotes and the comma, rounded up."""


class MessageView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stored message. If its body is UTF-8 text, it is in `body`, else in `body_base64`. If `body_cut` is true, only
    the beginning of the body is there."""

    topic: str
    queue_id: int
    queue_offset: int
    position: int
    id: str
    """The message id, RocketMQ's offsetMsgId."""
    store_ms: int
    born_ms: int
    reconsume_times: int = 0
    properties: dict[str, str]
    body: str | None = None
    body_base64: str | None = None
    body_bytes: int
    """The size of the whole body in bytes."""
    body_cut: bool = False


class _Body(NamedTuple):
    """The JSON of a body, or of its beginning."""

    field: bytes
    parts: list[bytes]
    cut: bool


async def message_parts(call: Call, message: Message, body_bytes: int, room: int = sys.maxsize) -> list[bytes]:
    """Returns the JSON of a message in parts. At most `body_bytes` bytes of its body are included, and fewer if the
    JSON would take more than `room` bytes. The other fields are never cut, so the JSON may still exceed `room`."""
    charge_text(len(message.properties))
    properties = parse_properties(message.properties)
    left = room - len(msgspec.json.encode(_view(message, properties, cut=True))) - _QUOTED
    body = await _as_text(call, message.body, body_bytes, left)
    if body is None:
        body = await _as_base64(call, message.body, body_bytes, left)
    head = msgspec.json.encode(_view(message, properties, body.cut))
    return [head[:-1], b',"%s":"' % body.field, *body.parts, b'"}']


async def _as_text(call: Call, body: bytes, body_bytes: int, room: int) -> _Body | None:
    """Returns the body as JSON text; None if any part of it, even one that is cut off, is not UTF-8."""
    decode = codecs.getincrementaldecoder("utf-8")().decode
    shown = min(len(body), body_bytes)
    parts: list[bytes] = []
    try:
        for start in range(0, len(body), SLICE_BYTES):
            await call.breathe()
            end = min(start + SLICE_BYTES, len(body))
            wanted = max(start, min(end, shown))
            charge_bytes(end - start)
            charge_text(wanted - start)
            part = msgspec.json.encode(decode(body[start:wanted]))[1:-1]
            if len(part) <= room:
                parts.append(part)
                room -= len(part)
            else:
                shown = start
            decode(body[wanted:end])  # The part that is cut off must be UTF-8, too. The cut may lie within a character.
        decode(b"", final=True)
    except UnicodeDecodeError:
        return None
    return _Body(b"body", parts, shown < len(body))


async def _as_base64(call: Call, body: bytes, body_bytes: int, room: int) -> _Body:
    shown = min(len(body), body_bytes, max(0, room) // 4 * 3)
    parts = []
    for start in range(0, shown, SLICE_BYTES):
        await call.breathe()
        charge_bytes(2 * SLICE_BYTES)
        parts.append(base64.b64encode(body[start : min(start + SLICE_BYTES, shown)]))
    return _Body(b"body_base64", parts, shown < len(body))


def _view(message: Message, properties: dict[str, str], cut: bool) -> MessageView:
    """Returns the view of a message without its body."""
    return MessageView(
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        position=message.position,
        id=encode_message_id(message.store_host, message.position),
        store_ms=message.store_ms,
        born_ms=message.born_ms,
        reconsume_times=message.reconsume_times,
        properties=properties,
        body_bytes=len(message.body),
        body_cut=cut,
    )


ROUTES: Final[tuple[Route, ...]] = (
    Route.of_verb(
        "GET",
        "/v1/topics/{name}/messages/{key}",
        find_messages,
        MessagesView,
        FOUND_COST,
        route_rights.of_verb(RequestCode.QUERY_MESSAGE, topic="name"),
        serves=Serves.READ,
        because=route.CALLER_CHOOSES,
        asks=(BODY_BYTES,),
    ),
    Route(
        "GET",
        "/v1/topics/{name}/queues/{queue}/messages",
        list_messages,
        QueuePage,
        route.messages(MESSAGES_MAX),
        route_rights.PAGES,
        Serves.READ,
        asks=PAGE_QUERY,
    ),
    Route.of_verb(
        "GET",
        "/v1/messages/{position}",
        get_message,
        MessageDetail,
        route.WHOLE_MESSAGE,
        route_rights.of_verb(RequestCode.VIEW_MESSAGE_BY_ID),
        serves=Serves.READ,
        because=route.CALLER_CHOOSES,
        asks=(BODY_BYTES,),
    ),
)

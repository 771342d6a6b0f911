"""/v1/events: the recorded events of this node, as a page or as a stream of server-sent events."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from typing import Final, Literal

import msgspec

from cluster.admin import route, route_rights
from cluster.admin.errors import ApiError
from cluster.admin.handler_request import Call, Stream
from cluster.admin.route import Route
from cluster.config.source import did_you_mean
from cluster.requests.verb import Serves
from cluster.runtime.events import KINDS, Event, EventLog

LIMIT_MAX: Final = 1_000
STREAMS_MAX: Final = 16
ALIVE_EVERY_S: Final = 5.0
"""Seconds without an event after which a stream sends a comment. If the client has disconnected, that write fails."""
LAST_ID: Final = "Last-Event-ID"
_TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")


class EventsView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/events`: the events after the id `since`, or from the time `since` on, oldest first."""

    node: int
    consistency: Literal["local"] = "local"
    events: list[Event]
    first_id: int
    """Id of the oldest event that is kept; 0 if none is. Events with lower ids were removed."""
    last_id: int
    """The value of `since` for the next request."""
    more: bool
    """True if there are later events that are not on this page."""


async def list_events(call: Call) -> EventsView:
    """Lists events of this node after an id, or from a time on, also those before its last start."""
    log, limit = call.port.observed.events, _limit(call.query)
    kept = log.kept()
    since = call.query.get("since")
    found = _of_kind(_after(kept, since), _kind(call.query))
    shown = found[:limit] if since is not None else found[-limit:]
    return EventsView(
        node=call.port.config.node.id,
        events=shown,
        first_id=kept[0].id if kept else 0,
        last_id=shown[-1].id if shown else log.last_id,
        more=since is not None and len(found) > limit,
    )


async def list_member_events(call: Call) -> EventsView:
    """Lists events of a member after an id, or from a time on, also those before its last start."""
    return await list_events(call)


async def stream_events(call: Call) -> Stream:
    """Streams the events after the id `since`, or from the time `since` on, and all later ones, as server-sent events.

    A header `Last-Event-ID` takes precedence over `since`.
    """
    kind, since = _kind(call.query), call.headers.get(LAST_ID) or call.query.get("since")
    _after([], since)
    if call.port.observed.events.watchers >= STREAMS_MAX:
        raise ApiError("busy", f"{STREAMS_MAX} streams of events are open", "close one, or ask for /v1/events")
    return Stream("text/event-stream", _stream(call.port.observed.events, since, kind))


async def _stream(log: EventLog, since: str | None, kind: str) -> AsyncIterator[bytes]:
    with log.watching() as news:
        told = log.last_id
        yield b": events\n\n" + _encode(_of_kind(_after(log.kept(), since), kind) if since is not None else [])
        while True:
            news.clear()
            fresh = [event for event in log.kept() if event.id > told]
            told = log.last_id
            if fresh:
                yield _encode(_of_kind(fresh, kind))
                continue
            try:
                async with asyncio.timeout(ALIVE_EVERY_S):
                    await news.wait()
            except TimeoutError:
                yield b": alive\n\n"


def _encode(events: list[Event]) -> bytes:
    return b"".join(
        b"id: %d\nevent: %s\ndata: %s\n\n" % (event.id, event.kind.encode(), msgspec.json.encode(event))
        for event in events
    )


def _after(events: list[Event], since: str | None) -> list[Event]:
    """Returns the events after `since`, which is an event's id or a time; those at exactly that time are included.
    Returns all events if `since` is None. Raises ApiError if it is neither an id nor a time."""
    if since is None:
        return events
    if since.isascii() and since.isdecimal() and len(since) < 19:
        return [event for event in events if event.id > int(since)]
    if _TIME.match(since):
        return [event for event in events if event.at >= since.removesuffix("Z")]
    hint = "give the id of the last event that you have, or a time such as 2026-11-21T03:04:05Z"
    raise ApiError("bad_query", f"since cannot be {since[:40]}", hint)


def _of_kind(events: list[Event], kind: str) -> list[Event]:
    return [event for event in events if kind in ("", event.kind)]


def _kind(query: Mapping[str, str]) -> str:
    kind = query.get("kind", "")
    if kind and kind not in KINDS:
        raise ApiError("bad_query", f"kind cannot be {kind[:40]}", did_you_mean(kind, KINDS))
    return kind


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("limit", "100")
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and 1 <= int(text) <= LIMIT_MAX):
        raise ApiError("bad_query", f"limit cannot be {text[:40]}", f"give a number from 1 to {LIMIT_MAX}")
    return int(text)


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET",
        "/v1/events",
        list_events,
        EventsView,
        route.page(LIMIT_MAX),
        route_rights.CLUSTER_GET,
        asks=("since", "kind", "limit"),
    ),
    Route(
        "GET",
        "/v1/events/stream",
        stream_events,
        "text/event-stream",
        route.page(LIMIT_MAX),
        route_rights.CLUSTER_GET,
        asks=("since", "kind"),
    ),
    Route(
        "GET",
        "/v1/members/{id}/events",
        list_member_events,
        EventsView,
        route.page(LIMIT_MAX),
        route_rights.CLUSTER_GET,
        Serves.MEMBER,
        asks=("since", "kind", "limit"),
    ),
)

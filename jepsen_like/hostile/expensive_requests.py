"""Attacks with legal requests that are expensive because of their size, their number, or the amount of data that they
touch. Each would make a turn of a node's event loop long if the node did its work at once
(`cluster.runtime.turns.work`).
"""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from jepsen_like.client_kit.fields import beat_body, pull_fields, send_fields, topic_fields
from jepsen_like.client_kit.frames import Answer, request
from jepsen_like.client_kit.wire import Target, Wire, ask_http
from jepsen_like.hostile.attack import GROUP, TOPIC, Arena, Attack, RoundReport
from raftmq_wire.codes import RequestCode, ResponseCode

_PROPERTY_LETTERS = 29_900
_FILTER_TERMS = 135
_PULLS = 100
_CROWD, _CROWD_WIRES = 100_000, 10
_FILTER_CROWD, _CROWD_TERMS = 10_000, 500
_NEW_FILTERS, _NEW_TERMS, _NEW_WIRES = 10, 510, 4
_ROWS, _BATCH, _BODY = 200_000, 2_000, 100
_PAGES, _PAGE_BODY = 4, 900_000
_TOPICS, _GROUPS_OF = 5_000, 8
_JOINERS, _JOINER_WIRES = 2_000, 100
_SUSPEND_MS = 3_000
_CROWD_TOPIC, _FILTER_TOPIC, _PAGE_TOPIC = "hostile-crowd", "hostile-filter", "hostile-pages"
_ANSWER_S = 30.0


def patient(port: int) -> Coroutine[Any, Any, Wire]:
    """Opens a connection on which a request may take long before it counts as unanswered. Raises OSError."""
    return Wire.dial(port, _ANSWER_S)


async def end_of(wire: Wire, topic: str) -> int:
    """Returns the next offset of the topic's queue 0; 0 if the node does not report one. Creates the topic if it does
    not exist.
    """
    answer = await wire.ask(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"})
    if answer.code != 0:
        await wire.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topic))
        answer = await wire.ask(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"})
    return int(answer.ext.get("offset", "0"))


@asynccontextmanager
async def connections(port: int, count: int) -> AsyncIterator[list[Wire]]:
    """Yields `count` open connections, and closes them at the end of the context. Raises OSError."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(await patient(port)) for _ in range(count)]


async def answers_of(report: RoundReport, asked: Sequence[tuple[Wire, int]], what: str) -> list[Answer]:
    """Waits for all answers, notes each in the report, and returns them, connection by connection."""
    opaques: dict[Wire, list[int]] = defaultdict(list)
    for wire, opaque in asked:
        opaques[wire].append(opaque)
    heard = await asyncio.gather(*(wire.answers(some) for wire, some in opaques.items()))
    return [report.note(each, what) for some in heard for each in some]


async def long_filter(arena: Arena, node: Target, report: RoundReport) -> None:
    """Sends 100 pulls in one write, each with a filter of 135 CONTAINS over a property of 29,900 letters."""
    async with await patient(node.client_port) as wire:
        offset = await end_of(wire, _FILTER_TOPIC)
        letters = "ab" * (arena.sized(_PROPERTY_LETTERS) // 2)
        report.note(
            await wire.ask(RequestCode.SEND_MESSAGE_V2, send_fields(_FILTER_TOPIC, f"p\1{letters}\2"), b"x"), "a send"
        )
        wanted = " OR ".join(f"p CONTAINS '{'ab' * 20}c{number}'" for number in range(_FILTER_TERMS))
        pulls = [
            request(RequestCode.PULL_MESSAGE, pull_fields(GROUP, _FILTER_TOPIC, 0, offset, wanted=wanted))
            for _ in range(arena.sized(_PULLS))
        ]
        wire.write(b"".join(frame for _, frame in pulls))
        await answers_of(report, [(wire, opaque) for opaque, _ in pulls], "a pull with a long filter")


async def _park(wires: Sequence[Wire], count: int, topic: str, offset: int, wanted: str) -> list[tuple[Wire, int]]:
    """Sends `count` pulls that wait for the message at `offset`, spread over the connections."""
    ext = pull_fields(GROUP, topic, 0, offset, wanted=wanted, suspend_ms=_SUSPEND_MS)
    asked = []
    for number in range(count):
        wire = wires[number % len(wires)]
        asked.append((wire, wire.put(RequestCode.PULL_MESSAGE, ext)))
        if number % 1000 == 999:
            await wire.send(b"")
            await asyncio.sleep(0)
    return asked


async def crowd(arena: Arena, node: Target, report: RoundReport) -> None:
    """Parks 100,000 pulls, which all wait for one message."""
    async with connections(node.client_port, _CROWD_WIRES) as wires:
        offset = await end_of(wires[0], _CROWD_TOPIC)
        asked = await _park(wires, arena.sized(_CROWD), _CROWD_TOPIC, offset, "")
        report.note(await wires[0].ask(RequestCode.SEND_MESSAGE_V2, send_fields(_CROWD_TOPIC), b"x"), "a send")
        await answers_of(report, asked, "a pull of many that waited")


async def filter_crowd(arena: Arena, node: Target, report: RoundReport) -> None:
    """Parks 10,000 pulls with the same filter of 500 terms, which all wait for one message."""
    wanted = " OR ".join(f"p = 'v{number}'" for number in range(_CROWD_TERMS))
    async with connections(node.client_port, _CROWD_WIRES) as wires:
        offset = await end_of(wires[0], _FILTER_TOPIC)
        asked = await _park(wires, arena.sized(_FILTER_CROWD), _FILTER_TOPIC, offset, wanted)
        report.note(
            await wires[0].ask(RequestCode.SEND_MESSAGE_V2, send_fields(_FILTER_TOPIC, "p\1w\2"), b"x"), "a send"
        )
        await answers_of(report, asked, "a pull with a filter")


async def new_filters(arena: Arena, node: Target, report: RoundReport) -> None:
    """Sends new filters of 510 terms all the time, 10 at once on each of 4 connections."""

    async def some(wire: Wire) -> None:
        until = asyncio.get_running_loop().time() + arena.hold_s * arena.size
        while True:
            asked = []
            for _ in range(_NEW_FILTERS):
                serial = next(arena.serial)
                wanted = " OR ".join(f"p = 'n{serial}-{number}'" for number in range(_NEW_TERMS))
                ext = pull_fields(GROUP, _FILTER_TOPIC, wanted=wanted)
                asked.append((wire, wire.put(RequestCode.PULL_MESSAGE, ext)))
            heard = await answers_of(report, asked, "a pull with a new filter")
            if asyncio.get_running_loop().time() >= until or not all(answer.is_answer for answer in heard):
                return

    async with connections(node.client_port, _NEW_WIRES) as wires:
        await end_of(wires[0], _FILTER_TOPIC)
        await asyncio.gather(*(some(wire) for wire in wires))


def batch_body(count: int) -> bytes:
    """Returns the body of a batch request with `count` messages, each with a body of `_BODY` bytes. A message has the
    form of a stored one without the fields that the broker fills in.
    """
    size = 22 + _BODY
    return (struct.pack(">iiiii", size, 0, 0, 0, _BODY) + bytes(_BODY) + struct.pack(">h", 0)) * count


async def large_topic(arena: Arena, node: Target, report: RoundReport) -> None:
    """Fills a topic with 200,000 messages, deletes it, and creates it again at once. Checks that the new topic is
    empty.
    """
    name = f"hostile-large-{arena.turn('large', 4)}"
    leader = arena.leader
    async with await patient(leader.client_port) as wire:
        report.note(await wire.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(name, 4)), "making a topic")
        body = batch_body(_BATCH)
        for number in range(arena.sized(_ROWS) // _BATCH or 1):
            ext = send_fields(name) | {"e": str(number % 4), "m": "true"}
            if report.note(await wire.ask(RequestCode.SEND_BATCH_MESSAGE, ext, body), "a batch").code:
                break
        deleted = report.note(await wire.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name}), "")
        made = await wire.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(name, 4))
        report.note(made, "making a topic again")
        if deleted.code == made.code == ResponseCode.SUCCESS:
            end = await wire.ask(RequestCode.GET_MAX_OFFSET, {"topic": name, "queueId": "0"})
            report.demand(end.ext.get("offset", "0") == "0", f"{name}, made again, begins with {end.ext.get('offset')}")
        report.note(await wire.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name}), "")


async def control_pages(arena: Arena, node: Target, report: RoundReport) -> None:
    """Asks for pages of messages over HTTP, whose bodies become six times as long in JSON, on 4 connections."""
    async with await patient(node.client_port) as wire:
        if await end_of(wire, _PAGE_TOPIC) < 32:
            for _ in range(32):
                body = b"\1" * arena.sized(_PAGE_BODY)
                report.note(await wire.ask(RequestCode.SEND_MESSAGE_V2, send_fields(_PAGE_TOPIC), body), "a send")
    path = f"/v1/topics/{_PAGE_TOPIC}/queues/0/messages?count=32&body_bytes=9999999"
    pages = (ask_http(node.admin_port, "GET", path, timeout_s=_ANSWER_S) for _ in range(_PAGES))
    for answer in await asyncio.gather(*pages):
        report.note(answer, "a page of messages")


async def topic_lists(arena: Arena, node: Target, report: RoundReport) -> None:
    """Creates 5,000 topics in the first round. Lists the topics 20 times on one connection, and asks for long answers
    over HTTP.
    """
    async with await patient(arena.leader.client_port) as leader, await patient(node.client_port) as wire:
        if arena.turn("topics", 1 << 60) == 1:
            asked = []
            for number in range(arena.sized(_TOPICS)):
                ext = topic_fields(f"hostile-many-{number}")
                asked.append((leader, leader.put(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)))
            await answers_of(report, asked, "making one of many topics")
        asked = [(wire, wire.put(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)) for _ in range(arena.sized(20))]
        await answers_of(report, asked, "a list of topics")
    for path in ("/v1/topics", "/v1/groups", "/v1/findings", "/metrics"):
        report.note(await ask_http(node.admin_port, "GET", path, timeout_s=_ANSWER_S), f"GET {path}")


async def joins(arena: Arena, node: Target, report: RoundReport) -> None:
    """Lets 2,000 consumers of one group join through 100 connections, ask for the members, and leave."""

    async with connections(node.client_port, min(_JOINER_WIRES, arena.sized(_JOINERS))) as wires:
        asked = []
        for number in range(arena.sized(_JOINERS)):
            wire = wires[number % len(wires)]
            body = beat_body(f"joiner-{node.id}-{number}", [GROUP], [TOPIC])
            asked.append((wire, wire.put(RequestCode.HEART_BEAT, {}, body)))
            asked.append((wire, wire.put(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP})))
        await answers_of(report, asked, "a heartbeat, or who is in its group")


ATTACKS = (
    Attack("long-filter", "100 pulls with 135 CONTAINS over 29,900 letters", long_filter, is_heavy=True),
    Attack("crowd", "100,000 pulls wait for one message", crowd, is_heavy=True),
    Attack("filter-crowd", "10,000 pulls with a filter of 500 terms wait for one message", filter_crowd, is_heavy=True),
    Attack("new-filters", "ever new filters of 510 terms", new_filters, is_heavy=True),
    Attack("large-topic", "a topic of 200,000 messages is deleted and made again", large_topic, is_heavy=True),
    Attack("control-pages", "pages of messages whose JSON is six times as long", control_pages, is_heavy=True),
    Attack("topic-lists", "5,000 topics, and lists of them", topic_lists, is_heavy=True),
    Attack("joins", "2,000 consumers of one group join and go", joins, is_heavy=True),
)

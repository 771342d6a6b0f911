"""Random variants of the attacks in `expensive_requests`: legal requests with drawn sizes, operators, offsets and
pages.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from cluster.requests.table import codes_where
from cluster.requests.verb import Cost
from jepsen_like.client_kit.fields import beat_body, group_body, place_of, pull_fields, send_fields, topic_fields
from jepsen_like.client_kit.frames import request
from jepsen_like.client_kit.wire import Target, Wire, ask_http
from jepsen_like.hostile.attack import GROUP, Arena, Attack, RoundReport
from jepsen_like.hostile.expensive_requests import answers_of, batch_body, connections, end_of, patient
from raftmq_wire.codes import RequestCode

_REQUESTS = 1_000
"""The number of requests in a round of `filters`, `lists` and `joins`, if the arena has its full size."""
_TOPIC = "hostile-drawn"
_TERMS_MAX, _LETTERS_MAX, _BATCH_MAX, _KEYS = 500, 29_000, 4_000, 8
_OPERATORS = ("CONTAINS", "NOT CONTAINS", "STARTSWITH", "ENDSWITH", "=", "<>", "IN", "NOT IN", "BETWEEN", ">", "IS")
_PAGES = (
    f"/v1/topics/{_TOPIC}/queues/0/messages?count={{count}}&body_bytes={{size}}",
    f"/v1/topics/{_TOPIC}/messages/k{{small}}?body_bytes={{size}}",
    "/v1/topics?limit={count}",
    "/v1/groups?limit={count}",
    "/v1/clients?limit={count}",
    "/v1/events?limit={count}",
    f"/v1/groups/{GROUP}",
    "/v1/transactions?limit={count}",
    "/v1/writes",
    "/v1/retention",
    "/v1/findings",
    "/metrics",
)
_LISTS = (
    *sorted(codes_where(lambda verb: verb.cost is Cost.READS_MUCH and verb.names is not None)),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_BROKER_RUNTIME_INFO,
)
"""Request codes: those that read much and may be sent by users who are not Supers, and three cheaper ones."""


def _few_or_many(rng: random.Random, most: int) -> int:
    """Draws a number from 1 to `most`; each order of magnitude is as likely as another."""
    return max(1, int(most ** rng.random()))


def _text(rng: random.Random) -> str:
    letter = rng.choice("ab'é\\\u4e2d")
    return "'" + (letter * _few_or_many(rng, 60)).replace("'", "''") + "'"


def _term(rng: random.Random) -> str:
    name, operator = rng.choice("pqr"), rng.choice(_OPERATORS)
    if operator == "IS":
        says = f"{name} IS {rng.choice(('NULL', 'NOT NULL'))}"
    elif operator.endswith("IN"):
        says = f"{name} {operator} ({', '.join(_text(rng) for _ in range(_few_or_many(rng, 20)))})"
    elif operator == "BETWEEN":
        says = f"{name} BETWEEN {rng.randrange(99)} AND {rng.randrange(10**18)}"
    elif operator == ">":
        says = f"{name} > {rng.uniform(-1e9, 1e9):.3f}"
    else:
        says = f"{name} {operator} {_text(rng)}"
    depth = _few_or_many(rng, 8) - 1
    return "NOT " * (rng.random() < 0.1) + "(" * depth + says + ")" * depth


def _filter(rng: random.Random, most: int) -> str:
    terms = [_term(rng) for _ in range(_few_or_many(rng, most))]
    return "".join(f" {rng.choice(('AND', 'OR'))} {term}" for term in terms).removeprefix(" AND ").removeprefix(" OR ")


async def _some_messages(arena: Arena, wire: Wire, report: RoundReport) -> int:
    """Sends messages with drawn properties, bodies and keys; returns the next offset of queue 0."""
    rng = arena.rng
    await end_of(wire, _TOPIC)
    for _ in range(4):
        value = rng.choice("ab1é") * _few_or_many(rng, arena.sized(_LETTERS_MAX) // 2)
        ext = send_fields(_TOPIC, f"{rng.choice('pqr')}\1{value}\2KEYS\1k{rng.randrange(_KEYS)}\2")
        body = rng.choice((b"\1", b"x", "é".encode(), b"\xff")) * _few_or_many(rng, arena.sized(900_000) // 2)
        report.note(await wire.ask(RequestCode.SEND_MESSAGE_V2, ext, body), "a send")
    ext = send_fields(_TOPIC) | {"m": "true"}
    many = batch_body(_few_or_many(rng, min(arena.sized(_BATCH_MAX), _BATCH_MAX)))
    report.note(await wire.ask(RequestCode.SEND_BATCH_MESSAGE, ext, many), "a batch")
    return await end_of(wire, _TOPIC)


async def filters(arena: Arena, node: Target, report: RoundReport) -> None:
    """Sends pulls with drawn filters from drawn offsets, many in one write; some of them wait for messages."""
    rng = arena.rng
    async with connections(node.client_port, _few_or_many(rng, 32)) as some:
        offset = await _some_messages(arena, some[0], report)
        known = [_filter(rng, arena.sized(_TERMS_MAX)) for _ in range(8)]
        asked: list[tuple[Wire, int]] = []
        while len(asked) < arena.sized(_REQUESTS):
            wire = rng.choice(some)
            frames = []
            for _ in range(_few_or_many(rng, 200)):
                wanted = rng.choice(known) if rng.random() < 0.8 else _filter(rng, arena.sized(_TERMS_MAX))
                at = max(0, offset - _few_or_many(rng, offset + 1))
                waits = rng.choice((0, 0, 100, 1_000))
                ext = pull_fields(GROUP, _TOPIC, 0, at, wanted=wanted, suspend_ms=waits)
                opaque, frame = request(RequestCode.PULL_MESSAGE, ext)
                frames.append(frame)
                asked.append((wire, opaque))
            await wire.send(b"".join(frames))
        report.note(await some[0].ask(RequestCode.SEND_MESSAGE_V2, send_fields(_TOPIC, "p\1a\2"), b"x"), "a send")
        await answers_of(report, asked, "a pull with a drawn filter")


async def pages(arena: Arena, node: Target, report: RoundReport) -> None:
    """Asks for pages of everything that has pages, of drawn sizes, several at once."""
    rng = arena.rng
    async with await patient(node.client_port) as wire:
        await _some_messages(arena, wire, report)

    async def some() -> None:
        for _ in range(arena.sized(_REQUESTS // 16)):
            path = rng.choice(_PAGES).format(
                count=_few_or_many(rng, 10_000), size=_few_or_many(rng, 10_000_000), small=rng.randrange(_KEYS)
            )
            report.note(await ask_http(node.admin_port, "GET", path, timeout_s=30), f"GET {path}")

    await asyncio.gather(*(some() for _ in range(_few_or_many(rng, 16))))


async def lists(arena: Arena, node: Target, report: RoundReport) -> None:
    """Sends list and search requests over remoting, with drawn keys and times, many in one write."""
    rng = arena.rng
    async with connections(node.client_port, _few_or_many(rng, 16)) as some:
        end = await _some_messages(arena, some[0], report)
        asked: list[tuple[Wire, int]] = []
        while len(asked) < arena.sized(_REQUESTS):
            wire = rng.choice(some)
            for _ in range(_few_or_many(rng, 100)):
                ext: dict[str, Any] = {
                    "topic": _TOPIC,
                    "queueId": "0",
                    "consumerGroup": GROUP,
                    "group": GROUP,
                    "producerGroup": GROUP,
                    "cluster": "DefaultCluster",
                    "namespace": "ORDER_TOPIC_CONFIG",
                    "statsName": "TOPIC_PUT_NUMS",
                    "statsKey": _TOPIC,
                    "timestamp": str(rng.randrange(1 << 42)),
                    "key": f"k{rng.randrange(_KEYS)}",
                    "maxNum": str(_few_or_many(rng, 64)),
                    "beginTimestamp": "0",
                    "endTimestamp": str(rng.randrange(1 << 42)),
                    "offset": str(rng.randrange(end + 1)),
                }
                asked.append((wire, wire.put(rng.choice(_LISTS), ext)))
            await wire.send(b"")
        await answers_of(report, asked, "a list or a search")


async def deletions(arena: Arena, node: Target, report: RoundReport) -> None:
    """Creates, resets, clones and deletes topics and groups with drawn numbers of messages, queues and offsets."""
    rng = arena.rng
    async with await patient(arena.leader.client_port) as wire:
        for _ in range(arena.sized(_REQUESTS // 40)):
            name, queues = f"hostile-drawn-{rng.randrange(8)}", _few_or_many(rng, 256)
            group = f"{name}-group"
            steps: list[tuple[int, dict[str, str], bytes]] = [
                (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(name, queues), b""),
                (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group_body(group)),
            ]
            for _ in range(_few_or_many(rng, 16)):
                queue = str(rng.randrange(queues))
                ext = send_fields(name) | {"e": queue, "m": "true"}
                steps.append((RequestCode.SEND_BATCH_MESSAGE, ext, batch_body(_few_or_many(rng, _BATCH_MAX))))
                ext = place_of(group, name, int(queue)) | {"commitOffset": "1"}
                steps.append((RequestCode.UPDATE_CONSUMER_OFFSET, ext, b""))
            ext = {"topic": name, "group": group, "timestamp": "0", "isForce": "true"}
            steps.append((RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext, b""))
            ext = {"srcGroup": group, "destGroup": f"{group}-2", "topic": name}
            steps.append((RequestCode.CLONE_GROUP_OFFSET, ext, b""))
            ext = {"groupName": group, "cleanOffset": rng.choice(("true", "false"))}
            steps.append((RequestCode.DELETE_SUBSCRIPTIONGROUP, ext, b""))
            if rng.random() < 0.7:
                steps.append((RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name}, b""))
            for code, ext, body in steps:
                report.note(await wire.ask(code, ext, body), f"request {code}")


async def joins(arena: Arena, node: Target, report: RoundReport) -> None:
    """Sends heartbeats of drawn groups and subscriptions, unregistrations and queries, on drawn connections."""
    rng = arena.rng
    async with connections(node.client_port, _few_or_many(rng, 100)) as some:
        asked = []
        for _ in range(arena.sized(_REQUESTS)):
            wire, client = rng.choice(some), f"drawn-{node.id}-{rng.randrange(500)}"
            groups = [f"hostile-drawn-{rng.randrange(40)}" for _ in range(_few_or_many(rng, 40))]
            step = rng.randrange(10)
            if step < 6:
                body = beat_body(client, groups, [f"hostile-{n}" for n in range(_few_or_many(rng, 20))])
                opaque = wire.put(RequestCode.HEART_BEAT, {}, body)
            elif step < 8:
                opaque = wire.put(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": groups[0]})
            else:
                ext = {"clientID": client, "consumerGroup": groups[0], "producerGroup": ""}
                opaque = wire.put(RequestCode.UNREGISTER_CLIENT, ext)
            asked.append((wire, opaque))
        await answers_of(report, asked, "a heartbeat, a goodbye, or who is in a group")


ATTACKS = (
    Attack("drawn-filters", "pulls with drawn filters over drawn messages", filters, is_heavy=True),
    Attack("drawn-pages", "pages of everything, of drawn sizes", pages, is_heavy=True),
    Attack("drawn-lists", "lists and searches with drawn arguments", lists, is_heavy=True),
    Attack("drawn-deletions", "topics and groups of drawn sizes reset, cloned and deleted", deletions, is_heavy=True),
    Attack("drawn-joins", "heartbeats of drawn groups and subscriptions", joins, is_heavy=True),
)

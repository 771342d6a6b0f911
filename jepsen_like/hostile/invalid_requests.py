"""Requests that are wrong in themselves: numbers, sizes, missing fields; and requests that only their order makes
wrong."""

from __future__ import annotations

import asyncio
import json

from jepsen_like.client_kit.fields import beat_body, group_body, place_of, send_fields
from jepsen_like.client_kit.frames import request
from jepsen_like.client_kit.wire import Target, Wire, ask_http
from jepsen_like.hostile.attack import GROUP, ORDER_GROUPS, QUEUES, TOPIC, Arena, Attack, RoundReport
from raftmq_wire.codes import RequestCode, ResponseCode

_FLUSHED_S = 0.4
"""Seconds after which oneway commits are in the log (offsets.flush_ms is 100)."""
_GROUPS = 450_000
_LARGE_S = 20.0
"""Seconds without a byte from the node after which a large body counts as not answered."""
_FLOATS = 3_000_000


async def integers(arena: Arena, node: Target, report: RoundReport) -> None:
    """Sends numbers beyond 64 bits where a number is stored: group attributes, subscription versions, offsets over
    HTTP."""
    async with await Wire.dial(node.client_port) as wire:
        for number in (1 << 63, -(1 << 63) - 1, 10**23, 1 << 200):
            body = b'{"groupName":"%s","retryMaxTimes":%d}' % (GROUP.encode(), number)
            answer = await wire.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
            report.note(answer, f"code 200 with retryMaxTimes {number}")
            report.demand(answer.code != ResponseCode.SUCCESS, f"code 200 with retryMaxTimes {number} was accepted")
            answer = await wire.ask(
                RequestCode.HEART_BEAT, {}, beat_body(f"{arena.rng.random()}", [GROUP], [TOPIC], number)
            )
            report.note(answer, f"a heartbeat with subVersion {number}")
    for number in (1 << 63, 10**23):
        offsets = [{"group": GROUP, "topic": TOPIC, "queue_id": 0, "offset": number}]
        answer = await ask_http(node.admin_port, "POST", "/v1/metadata", json.dumps({"offsets": offsets}).encode())
        report.note(answer, f"POST /v1/metadata with an offset of {number}")
        report.demand(answer.code >= 400, f"POST /v1/metadata with an offset of {number}: status {answer.code}")


async def large_json(arena: Arena, node: Target, report: RoundReport) -> None:
    """Sends 15 MB of JSON: three million times the number 1e15, which is longer when the node encodes it again."""
    numbers = b"1e15," * (arena.sized(_FLOATS) - 1)
    body = b'{"groupName":"%s","groupRetryPolicy":{"a":[%s1e15]}}' % (GROUP.encode(), numbers)
    async with await Wire.dial(node.client_port, _LARGE_S) as wire:
        answer = await wire.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
        report.note(answer, f"{len(body):,} bytes of JSON")


async def large_heartbeat(arena: Arena, node: Target, report: RoundReport) -> None:
    """Sends one heartbeat for 450,000 groups (10.8 MB)."""
    rows = b",".join(b'{"groupName":"g%06d"}' % number for number in range(arena.sized(_GROUPS)))
    body = b'{"clientID":"hostile-large","consumerDataSet":[%s]}' % rows
    async with await Wire.dial(node.client_port, _LARGE_S) as wire:
        answer = await wire.ask(RequestCode.HEART_BEAT, {}, body)
        report.note(answer, f"a heartbeat of {len(body):,} bytes")


async def offset_order(arena: Arena, node: Target, report: RoundReport) -> None:
    """Sends a oneway commit, then a two-way one for the same queue; checks that the last acknowledged offset stays."""
    group = ORDER_GROUPS[arena.turn("order", len(ORDER_GROUPS))]
    later, earlier = arena.rng.randrange(1000, 1 << 40), arena.rng.randrange(1000)
    async with await Wire.dial(node.client_port) as wire:
        asked = []
        for queue in range(QUEUES):
            place = place_of(group, TOPIC, queue)
            _, oneway = request(RequestCode.UPDATE_CONSUMER_OFFSET, place | {"commitOffset": str(later)}, oneway=True)
            opaque, twoway = request(RequestCode.UPDATE_CONSUMER_OFFSET, place | {"commitOffset": str(earlier + queue)})
            wire.write(oneway + twoway)
            asked.append(opaque)
        acked = [report.note(await wire.answer(opaque), "an offset commit").code == 0 for opaque in asked]
        await asyncio.sleep(_FLUSHED_S)
        for queue in range(QUEUES):
            answer = await wire.ask(RequestCode.QUERY_CONSUMER_OFFSET, place_of(group, TOPIC, queue))
            is_kept = not acked[queue] or answer.code != 0 or answer.ext.get("offset") == str(earlier + queue)
            report.demand(
                is_kept,
                f"node {node.id}: {earlier + queue} was acknowledged as the offset of {group} in "
                f"queue {queue} after {later} was sent oneway; it is {answer.ext.get('offset')}",
            )


async def clean_offset(arena: Arena, node: Target, report: RoundReport) -> None:
    """Sends a oneway commit, then deletes the group with its offsets; checks that the offset does not come back."""
    group = f"hostile-clean-{arena.turn('clean', 8)}"
    config = group_body(group)
    async with await Wire.dial(node.client_port) as wire:
        if report.note(await wire.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, config), "code 200").code:
            return
        commit = place_of(group, TOPIC, 0) | {"commitOffset": "77"}
        _, oneway = request(RequestCode.UPDATE_CONSUMER_OFFSET, commit, oneway=True)
        opaque, delete = request(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": group, "cleanOffset": "true"})
        wire.write(oneway + delete)
        if report.note(await wire.answer(opaque), "code 207").code:
            return
        await asyncio.sleep(_FLUSHED_S)
        await wire.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, config)
        answer = await wire.ask(
            RequestCode.QUERY_CONSUMER_OFFSET, place_of(group, TOPIC, 0) | {"setZeroIfNotFound": "false"}
        )
        report.demand(
            answer.code != 0 or answer.ext.get("offset") != "77",
            f"node {node.id}: the offset of {group}, deleted with its offsets, is back",
        )


async def twins(arena: Arena, node: Target, report: RoundReport) -> None:
    """Sends pairs of messages with one identity on one connection; checks that both are answered and stored as one
    message."""
    producer = f"{arena.rng.getrandbits(128):032x}"
    async with await Wire.dial(node.client_port, arena.silence_s) as wire:
        ext = send_fields(TOPIC) | {"raftmqPid": producer}
        for sequence in range(1, 9):
            identity = ext | {"raftmqSeq": str(sequence), "raftmqLow": str(sequence)}
            one, first = request(RequestCode.SEND_MESSAGE_V2, identity, b"twin")
            two, second = request(RequestCode.SEND_MESSAGE_V2, identity, b"twin")
            wire.write(first + second)
            answers = [report.note(await wire.answer(opaque), "one of two equal sends") for opaque in (one, two)]
            places = {answer.ext.get("queueOffset") for answer in answers if answer.code == 0}
            report.demand(len(places) < 2, f"node {node.id}: one identity was stored twice: offsets {places}")
            if not all(answer.is_answer for answer in answers):
                return


async def without_fields(arena: Arena, node: Target, report: RoundReport) -> None:
    """Sends requests without header fields; checks that they are refused with a text, and that the connection stays
    usable."""
    async with await Wire.dial(node.client_port) as wire:
        for code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            for ext in ({}, {"e": "1" * 40}, {"b": TOPIC, "e": "x", "queueId": "x"}):
                answer = report.note(await wire.ask(code, dict(ext), b"x"), f"code {code} without fields")
                report.demand(answer.code > 0, f"node {node.id}: code {code} with fields {ext} got {answer.remark}")
                if not answer.is_answer:
                    return


async def names(arena: Arena, node: Target, report: RoundReport) -> None:
    """Sends heartbeats of ever new groups. Each group, if accepted, would be created with a %RETRY% topic, and nobody
    would remove them."""
    async with await Wire.dial(node.client_port) as wire:
        for _ in range(arena.sized(20)):
            number = next(arena.serial)
            groups = [f"hostile-{arena.rng.getrandbits(48):012x}-{number}-{each}" for each in range(20)]
            answer = await wire.ask(RequestCode.HEART_BEAT, {}, beat_body(f"h{number}", groups, [TOPIC]))
            if not report.note(answer, "a heartbeat").is_answer:
                return
            await wire.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": f"h{number}", "consumerGroup": groups[0]})


ATTACKS = (
    Attack("integers", "numbers beyond 64 bits in group attributes, heartbeats and metadata", integers),
    Attack("large-json", "15 MB of JSON with three million numbers", large_json),
    Attack("large-heartbeat", "a heartbeat of 450,000 groups", large_heartbeat),
    Attack("offset-order", "a oneway offset commit before a two-way one, then a look", offset_order),
    Attack("clean-offset", "a oneway offset commit before its group is deleted, then a look", clean_offset),
    Attack("twins", "two sends with one identity on one connection", twins),
    Attack("without-fields", "sends without header fields", without_fields),
    Attack("names", "heartbeats of ever new groups", names),
)

"""Attacks on a pretended node: each must be able to find what it looks for, and to find nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from jepsen_like.client_kit.frames import SILENT
from jepsen_like.client_kit.frames import Answer as Heard
from jepsen_like.client_kit.wire import Target, Wire
from jepsen_like.hostile import invalid_requests, resource_hogs
from jepsen_like.hostile.attack import Arena, RoundReport
from jepsen_like.hostile.attacker import Table
from jepsen_like.hostile.attacks import ATTACKS
from raftmq_wire.codec import FLAG_ONEWAY, decode_header, encode_frame, ext_of
from raftmq_wire.codes import RequestCode
from tests.support.plain_server import serving

Answer = Callable[[int, dict[str, str], bool], tuple[int, dict[str, str]] | None]
"""(code, ext fields, oneway) -> (code, ext fields), or None for no answer."""


@asynccontextmanager
async def pretended(answer: Answer) -> AsyncIterator[Target]:
    """A node that answers as told, its remoting port only."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                data = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                header = decode_header(data[0], data[4 : 4 + int.from_bytes(data[1:4], "big")])
                said = answer(header.code, ext_of(header), bool(header.flag & FLAG_ONEWAY))
                if said is not None and not header.flag & FLAG_ONEWAY:
                    writer.write(encode_frame(said[0], header.opaque, 1, ext=said[1]))
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    async with serving(serve) as (_, port):
        yield Target(1, port, port, port)


def arena(node: Target, **times_s: float) -> Arena:
    return Arena([node], 1, "uuid", seed=1, size=0.01, **times_s)


class Offsets:
    """Commits of offsets: in their order, or each oneway after the two-way ones."""

    def __init__(self, *, reorders: bool) -> None:
        self.reorders = reorders
        self.kept: dict[str, str] = {}
        self.late: dict[str, str] = {}

    def __call__(self, code: int, ext: dict[str, str], oneway: bool) -> tuple[int, dict[str, str]]:
        queue = ext.get("consumerGroup", "") + ext.get("queueId", "")
        if code == RequestCode.UPDATE_CONSUMER_OFFSET:
            (self.late if oneway and self.reorders else self.kept)[queue] = ext["commitOffset"]
        if code == RequestCode.DELETE_SUBSCRIPTIONGROUP:
            self.kept.clear()
        if code == RequestCode.QUERY_CONSUMER_OFFSET:
            offset = (self.kept | self.late).get(queue)
            return (22, {}) if offset is None else (0, {"offset": offset})
        return 0, {}


@pytest.mark.parametrize("attack", [invalid_requests.offset_order, invalid_requests.clean_offset])
@pytest.mark.parametrize("reorders", [False, True])
async def test_a_commit_that_comes_back_is_found(attack: object, reorders: bool) -> None:
    async with pretended(Offsets(reorders=reorders)) as node:
        report = RoundReport()
        await attack(arena(node), node, report)  # type: ignore[operator]
    assert bool(report.wrong) == reorders


async def test_the_second_of_two_equal_sends_that_gets_no_answer_is_found() -> None:
    seen: set[str] = set()

    def once(code: int, ext: dict[str, str], oneway: bool) -> tuple[int, dict[str, str]] | None:
        if (key := ext["raftmqSeq"]) in seen:
            return None
        seen.add(key)
        return 0, {"queueOffset": "5"}

    async with pretended(once) as node:
        report = RoundReport()
        await invalid_requests.twins(arena(node, silence_s=0.2), node, report)
    assert report.wrong == ["one of two equal sends was never answered"]


async def test_a_request_is_unanswered_when_its_connection_is_silent_however_long_the_others_take() -> None:
    """The node answers one request after the other, and the last one never."""

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opaques = []
        for _ in range(6):
            data = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            opaques.append(decode_header(data[0], data[4 : 4 + int.from_bytes(data[1:4], "big")]).opaque)
        for opaque in opaques[:-1]:
            await asyncio.sleep(0.2)
            writer.write(encode_frame(0, opaque, 1))
        await reader.read()
        writer.close()

    async with serving(slow) as (_, port), await Wire.dial(port, 0.6) as one:
        opaques = [one.put(RequestCode.HEART_BEAT) for _ in range(6)]
        answers = await one.answers(opaques)
    assert answers[:-1] == [Heard(0, {}, "", b"")] * 5
    assert answers[-1] is SILENT


async def test_sends_without_fields_want_words() -> None:
    async with pretended(lambda code, ext, oneway: (29, {})) as node:
        report = RoundReport()
        await invalid_requests.without_fields(arena(node), node, report)
        assert (report.wrong, report.answered) == ([], 9)
    report = RoundReport()
    async with pretended(lambda code, ext, oneway: (0, {})) as node:
        await invalid_requests.without_fields(arena(node), node, report)
    assert len(report.wrong) == 9, "a send without a topic cannot be stored"


async def test_halves_of_frames_are_whole_attacks_beside_a_client_that_is_served() -> None:
    held: list[int] = []
    async with pretended(lambda code, ext, oneway: (held.append(code), (0, {}))[1]) as node:
        report = RoundReport()
        await resource_hogs.halves(arena(node, hold_s=0.05), node, report)
    assert held == [RequestCode.HEART_BEAT] * 2, "no half was a request"
    assert report.wrong == []


@pytest.mark.parametrize(("beside", "is_judged"), [((), True), (("names",), True), (("half-frames",), False)])
async def test_an_impossible_length_is_not_judged_while_half_frames_take_the_room(
    beside: tuple[str, ...], is_judged: bool
) -> None:
    """The pretended node reads no length that follows a frame, as one that has no room."""

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(200_000)
        await asyncio.sleep(1)
        writer.close()

    async with serving(deaf) as (_, port):
        node = Target(1, port, port, port)
        field, report = arena(node, hold_s=0.05), RoundReport()
        field.beside = frozenset(beside)
        await resource_hogs.too_large(field, node, report)
    assert bool(report.wrong) == is_judged
    assert not is_judged or report.wrong[0].endswith("did not end its connection")


async def test_an_impossible_length_comes_with_a_header_that_nobody_waits_for() -> None:
    """A node that takes a length waits for the header behind it, so that it can answer. The heartbeat of another client
    is answered meanwhile."""

    async def patient(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        if len(data) < 200_000:
            writer.write(
                encode_frame(0, decode_header(data[0], data[4 : 4 + int.from_bytes(data[1:4], "big")]).opaque, 1)
            )
            return
        await reader.readexactly(8)
        writer.close()

    async with serving(patient) as (_, port):
        report = RoundReport()
        await resource_hogs.too_large(arena(node := Target(1, port, port, port), hold_s=2.0), node, report)
    assert (report.wrong, report.closed, report.answered) == ([], 3, 1)


async def test_hands_follow_each_other_and_a_round_under_way_may_end(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, held = asyncio.Event(), asyncio.Event()
    rounds: list[dict[str, Any]] = []

    async def play(field: Arena, node: Target, report: RoundReport) -> None:
        begun.set()
        await held.wait()
        report.sent += 1

    for name in ("twins", "names"):
        monkeypatch.setitem(ATTACKS, name, ATTACKS[name]._replace(play=play))
    field = arena(Target(1, 0, 0, 0))
    table = Table(field, 60.0, rounds.append)
    await table.deal(["twins"])
    await begun.wait()
    assert field.beside == {"twins"}
    await table.deal([])
    assert [row.get("sent") for row in rounds] == [None], "it goes on"
    held.set()
    await asyncio.gather(*table.tasks)
    assert [row.get("sent") for row in rounds] == [None, 1]
    held.clear()
    begun.clear()
    await table.deal(["twins"])
    await begun.wait()
    await table.deal(["names"])
    assert [(row["attack"], row["round"], row.get("sent")) for row in rounds[2:4]] == [
        ("twins", 1, None),
        ("twins", 1, 0),
    ], "the next hand ends it, and rounds are counted on"
    await table.clear()


async def test_a_wire_tells_answer_silence_and_the_end_apart() -> None:
    async with pretended(lambda code, ext, oneway: None if code == 1 else (code, {"a": "b"})) as node:
        line = await Wire.dial(node.client_port, 0.2)
        assert (await line.ask(7)).ext == {"a": "b"}
        assert (await line.ask(1)).code == -2
        line.abort()
        assert (await line.ask(7)).code == -1


def test_the_attack_turns_to_the_leader_every_other_time() -> None:
    nodes = [Target(number, number, 0, 0) for number in (1, 2, 3)]
    field = Arena(nodes, 2, "uuid", 1, 1.0)
    assert [field.target(number).id for number in range(6)] == [2, 1, 2, 3, 2, 1]


def test_every_attack_says_what_it_does() -> None:
    assert len(ATTACKS) == 28
    assert all(attack.does and attack.play.__doc__ for attack in ATTACKS.values())

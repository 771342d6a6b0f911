"""A member moves to where a majority of the voters finds it; each voter that does not says why."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from cluster.members.address_change import (
    UNREACHED,
    WHY_MAX,
    CheckUnderWay,
    MemberPlace,
    Moves,
    decode,
    judge,
    place_of,
)
from cluster.members.addresses import MemberAddresses
from raftlog.membership import Membership
from raftlog.types import NodeId, Voter
from tests.support.rows import each_row

PLACE = MemberPlace(NodeId(3), "uuid-3", "10.0.0.3", 10913, "10.0.0.3:9643")


def nodes(*ids: int) -> list[NodeId]:
    return [NodeId(node) for node in ids]


@each_row(
    ("moves", "voters", "answers", "by", "holds"),
    [
        (3, (1, 2, 3), {1: "", 2: ""}, [1, 2, 3], True),
        (3, (1, 2, 3), {1: "", 2: "refused"}, [1, 3], True),  # a majority that can do without node 2
        (3, (1, 2, 3), {1: "refused", 2: "refused"}, [], False),
        (3, (1, 2, 3, 4, 5), {1: "", 2: "refused", 4: "refused", 5: "refused"}, [1, 3], False),
        (3, (1, 2, 3, 4, 5), {1: "", 2: "", 4: "refused", 5: "refused"}, [1, 2, 3], True),
        (3, (1, 3), {1: ""}, [1, 3], True),
        (3, (1, 3), {1: "refused"}, [], False),
        (3, (3,), {3: ""}, [3], True),
        (3, (3,), {3: "refused"}, [], False),
        (9, (1, 2), {1: "", 2: "refused"}, [1], False),  # a learner does not count
        (9, (1, 2, 3), {1: "", 2: "refused", 3: ""}, [1, 3], True),
    ],
)
def test_a_majority_of_the_voters_finds_it(
    moves: int, voters: tuple[int, ...], answers: dict[int, str], by: list[int], holds: bool
) -> None:
    proof = judge(NodeId(moves), nodes(*voters), {NodeId(node): why for node, why in answers.items()})
    assert (proof.by, proof.holds) == (by, holds)
    assert proof.lines() == [f"node {node}: refused" for node, why in sorted(answers.items()) if why]


@each_row(
    ("before", "after", "place"),
    [
        (("a", 1, "a:2"), ("a", 1, "a:2"), None),
        (("a", 1, "a:2"), ("b", 1, "a:2"), ("b", 1, "")),
        (("a", 1, "a:2"), ("a", 3, "a:2"), ("a", 3, "")),
        (("a", 1, "a:2"), ("a", 1, "b:2"), ("", 0, "b:2")),
        (("a", 1, "a:2"), ("b", 1, "b:2"), ("b", 1, "b:2")),
        (("a", 1, "a:2"), ("a", 1, ""), None),
        (None, ("a", 1, ""), ("a", 1, "")),
    ],
)
def test_what_has_changed_is_looked_for(
    before: tuple[str, int, str] | None, after: tuple[str, int, str], place: tuple[str, int, str] | None
) -> None:
    old, new = (each and MemberAddresses(*each, {}) for each in (before, after))
    assert new is not None
    found = place_of(NodeId(3), "uuid-3", old, new)
    assert (found and tuple(found)[2:]) == place


class Prober:
    def __init__(self) -> None:
        self.at_peer = self.at_http = ""
        self.dialled: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def peer(self, place: MemberPlace) -> str:
        await self.gate.wait()
        self.dialled.append("peer")
        return self.at_peer

    async def http(self, place: MemberPlace) -> str:
        self.dialled.append("http")
        return self.at_http


class World:
    """Node 1, which leads voters 1, 2 and 3, and what the others answer."""

    def __init__(self) -> None:
        members = Membership(UUID(int=1), tuple(Voter(node, UUID(int=node)) for node in nodes(1, 2, 3)))
        self.prober, self.answers, self.asked = Prober(), dict[int, list[Any] | str](), list[tuple[int, list[Any]]]()
        group = SimpleNamespace(in_force=members, own_id=NodeId(1))
        self.moves = Moves(group, self.ask, lambda node: node in self.answers, self.prober)

    async def ask(self, peer: NodeId, arguments: list[Any]) -> list[Any] | str:
        self.asked.append((peer, arguments))
        return self.answers[peer]


async def test_the_leader_looks_itself_and_asks_the_others_but_not_the_node() -> None:
    world = World()
    world.answers = {2: ["", ""], 3: ["", ""]}
    proof = await world.moves.check(PLACE)
    assert (proof.by, proof.needed, proof.lines()) == ([1, 2, 3], 2, [])
    assert world.asked == [(2, [3, "uuid-3", "10.0.0.3", 10913, "10.0.0.3:9643"])]
    assert sorted(world.prober.dialled) == ["http", "peer"]


async def test_what_stays_is_not_dialled() -> None:
    world = World()
    await world.moves.check(PLACE._replace(admin=""))
    assert world.prober.dialled == ["peer"]
    await world.moves.check(PLACE._replace(host=""))
    assert world.prober.dialled == ["peer", "http"]


@each_row(
    ("answer", "line"),
    [
        (["Connection refused", ""], "node 2: 10.0.0.3:10913: Connection refused"),
        (["", "no node"], "node 2: http://10.0.0.3:9643: no node"),
        (["no", "no"], "node 2: 10.0.0.3:10913: no; http://10.0.0.3:9643: no"),
        ("no answer within 3500 ms", "node 2: no answer within 3500 ms"),
        (None, f"node 2: {UNREACHED}"),
        ([], "node 2: its answer makes no sense"),
        ([1, 2], "node 2: its answer makes no sense"),
        (["x" * 9000, ""], f"node 2: 10.0.0.3:10913: {'x' * WHY_MAX}"),
        (["\x1b[2J", ""], "node 2: 10.0.0.3:10913: its answer is not printable"),
    ],
)
async def test_each_voter_says_who_was_dialled_and_why_it_failed(answer: Any, line: str) -> None:
    world = World()
    world.answers = {} if answer is None else {2: answer}
    world.prober.at_peer = "Connection refused"
    proof = await world.moves.check(PLACE)
    assert proof.lines() == ["node 1: 10.0.0.3:10913: Connection refused", line]
    assert not proof.holds


async def test_one_check_at_a_time_and_one_answer_at_a_time() -> None:
    world = World()
    world.prober.gate.clear()
    checking = asyncio.create_task(world.moves.check(PLACE))
    answering = asyncio.create_task(world.moves.answer(NodeId(2), list(PLACE)))
    await asyncio.sleep(0)
    with pytest.raises(CheckUnderWay):
        await world.moves.check(PLACE)
    with pytest.raises(BlockingIOError):
        await world.moves.answer(NodeId(2), list(PLACE))
    world.prober.gate.set()
    assert await answering == ["", ""]
    await checking
    assert await world.moves.answer(NodeId(2), list(PLACE)) == ["", ""]
    await world.moves.check(PLACE)


@each_row(
    "arguments",
    [
        [],
        [3, "uuid-3", "h", 1],
        [0, "uuid-3", "h", 1, ""],
        [3, "u" * 37, "h", 1, ""],
        [3, "uuid-3", "h" * 256, 1, ""],
        [3, "uuid-3", "h", 0, ""],
        [3, "uuid-3", "h", 65536, ""],
        [3, "uuid-3", "h", 1, "nonsense"],
        [3, "uuid-3", "h", 1, "h:99999"],
        [3, b"uuid-3", "h", 1, ""],
    ],
)
async def test_a_question_that_makes_no_sense_makes_nobody_dial(arguments: list[Any]) -> None:
    world = World()
    with pytest.raises(ValueError, match=r"sense|host:port"):
        await world.moves.answer(NodeId(2), arguments)
    assert not world.prober.dialled
    assert decode(list(PLACE)) == PLACE


async def test_a_guest_makes_nobody_dial() -> None:
    world = World()
    with pytest.raises(ValueError, match="only a member"):
        await world.moves.answer(NodeId(9), list(PLACE))
    assert not world.prober.dialled

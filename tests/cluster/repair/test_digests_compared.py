"""A node that differs is fenced when a majority says so, and only then; a new leader's writes wait for the others, a
moment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.config.config import Config
from cluster.config.node_sections import NodeSection
from cluster.config.storage_sections import ConsistencySection
from cluster.repair.consistency import FENCED, MISMATCH, Consistency, Digest, decode, differing, encode, sums_source
from cluster.repair.fetch import Fetched, FetchError, FetchRefused
from cluster.runtime.alarms import Alarms
from cluster.runtime.listeners import Signal
from raftlog.errors import NotLeaderError
from raftlog.frame import make_entry
from raftlog.types import EMPTY_TAIL, Entry, EntryType, NodeId, Role
from statemachine.rows.running_digest import VERSION, Sums
from tests.support.contexts import context_of, run_of
from tests.support.pace import at_most

GOOD, BAD, WORSE = {"cq": 1, "topics": 5}, {"cq": 2, "topics": 5}, {"cq": 3, "topics": 5}


class Remembered:
    """The part of RunningSums that is asked."""

    def __init__(self, **history: Sums) -> None:
        self.history = {int(name[1:]): sums for name, sums in history.items()}

    @property
    def newest(self) -> int:
        return max(self.history, default=-1)

    def at(self, index: int) -> Sums | None:
        return self.history.get(index)


class Node:
    """A state, and the part of a RawNode and of Repairs that Consistency uses."""

    def __init__(self, **history: Sums) -> None:
        self.sums = Remembered(**history)
        self.source = sums_source(self)  # type: ignore[arg-type]


class Group:
    """Node 1 under test, others as the test says; None is down."""

    def __init__(self, mine: Node, *others: Node | None, role: Role = Role.LEADER) -> None:
        self.mine = mine
        self.bad_row: Signal[[str]] = Signal()
        """No row is bad."""
        self.others = {NodeId(number): other for number, other in enumerate(others, 2)}
        self.role, self.term, self.applied_index = role, 3, 10
        self.alarms = Alarms(lambda: 0)
        self.proposed: list[tuple[int, bytes]] = []
        self.suspect = False
        self.marked: list[tuple[str, int]] = []
        self.stepped_down = 0
        self.asked: list[tuple[int, list[Any]]] = []
        # as RawNode
        self.raft = type("Raft", (), {"members": type("Members", (), {"voters": (1, *self.others)})()})()
        # as Repairs
        self.client = self.server = self
        self.busy_pause_s = 0.0
        self.sources: dict[str, Any] = {}
        me: Any = self
        state: Any = mine
        config = Config(node=NodeSection(id=1, data_dir="/data"), consistency=ConsistencySection(digest_every_ms=1000))
        context = context_of(me, self.alarms, config=config)
        self.consistency = Consistency(context, state, me, mark_suspect=self.mark_suspect)

    def propose(self, entry_type: int, payload: bytes, timestamp_ms: int) -> Entry:
        if self.role is not Role.LEADER:
            raise NotLeaderError("no")
        self.proposed.append((entry_type, payload))
        return self.entry(payload)

    def entry(self, payload: bytes) -> Entry:
        return make_entry(
            EMPTY_TAIL,
            term=self.term,
            entry_type=EntryType.DIGEST,
            payload=payload,
            timestamp_ms=0,
            group_id=0,
            segment_size=1 << 20,
        )

    def log_time_ms(self) -> int:
        return 0

    def peers(self) -> list[NodeId]:
        return list(self.others)

    def mark_suspect(self, why: str, sound_index: int) -> None:
        self.marked.append((why, sound_index))

    def distrust_state(self) -> None:
        self.suspect = True
        self.stepped_down += 1

    async def fetch(self, peer: NodeId, what: str, arguments: list[Any], timeout_ms: int) -> Fetched:
        self.asked.append((peer, arguments))
        await asyncio.sleep(0)
        other = self.others[peer]
        if other is None:
            raise FetchError(peer, what, None, "no answer")
        try:
            return other.source(arguments)
        except FetchRefused as error:
            raise FetchError(peer, what, error.status, str(error)) from error

    async def settle(self) -> None:
        async with asyncio.timeout(at_most(20)):
            while self.consistency._tasks:
                await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)

    @property
    def raised(self) -> list[str]:
        return [alarm.key for alarm in self.alarms.all()]


def node(sums: Sums | None) -> Node | None:
    return None if sums is None else Node(i5=sums)


@pytest.mark.parametrize(
    ("mine", "others", "fenced", "alarms"),
    [
        (GOOD, (GOOD, GOOD), False, []),
        (BAD, (GOOD, GOOD), True, [FENCED]),
        (GOOD, (BAD, GOOD), False, [MISMATCH]),
        (GOOD, (BAD, None), False, [MISMATCH]),
        (GOOD, (BAD, WORSE), False, [MISMATCH]),
        (GOOD, (BAD, BAD), True, [FENCED]),
        (GOOD, (None, None), False, []),
        (GOOD, (BAD, BAD, None, None), False, [MISMATCH]),
        (GOOD, (BAD, BAD, BAD, None), True, [FENCED]),
        (GOOD, (BAD,), False, [MISMATCH]),
        (GOOD, (), False, []),
    ],
)
async def test_who_is_fenced(mine: Sums, others: tuple[Sums | None, ...], fenced: bool, alarms: list[str]) -> None:
    group = Group(Node(i5=mine), *map(node, others))
    await group.consistency.decide(5)
    await group.settle()
    assert (group.consistency.fenced, group.suspect, group.raised) == (fenced, fenced, alarms)
    assert len(group.marked) == group.stepped_down == fenced
    if alarms:
        (alarm,) = group.alarms.all()
        assert alarm.stops_service == fenced
        assert "index 5 (cq)" in alarm.text or "(cq) differ at index 5" in alarm.text


async def test_a_doubt_is_settled_when_the_third_node_is_back() -> None:
    group = Group(Node(i5=BAD), Node(i5=GOOD), None)
    await group.consistency.decide(5)
    assert group.raised == [MISMATCH]
    group.others[NodeId(3)] = Node(i5=GOOD)
    group.consistency.tick(1_000_000)
    await group.settle()
    assert group.consistency.fenced
    assert group.raised == [FENCED]


async def test_an_alarm_ends_when_all_agree() -> None:
    group = Group(Node(i5=GOOD), Node(i5=BAD), None)
    await group.consistency.decide(5)
    assert group.raised == [MISMATCH]
    group.others = {NodeId(2): Node(i5=GOOD), NodeId(3): Node(i5=GOOD)}
    await group.consistency.decide(5)
    assert group.raised == []


async def test_a_digest_entry_that_differs_makes_the_node_ask() -> None:
    group = Group(Node(i5=BAD), Node(i5=GOOD), Node(i5=GOOD), role=Role.FOLLOWER)
    group.consistency.on_applied(run_of(group.entry(encode(Digest(5, BAD))), group.entry(b"")))
    group.consistency.on_applied(run_of(group.entry(encode(Digest(6, GOOD))), group.entry(encode(Digest(5, {})))))
    await group.settle()
    assert group.asked == []
    group.consistency.on_applied(run_of(group.entry(encode(Digest(5, GOOD)))))
    await group.settle()
    assert group.consistency.fenced


@pytest.mark.parametrize(
    ("mine", "others", "opens", "asked"),
    [
        (GOOD, (GOOD, None), True, 2),
        (GOOD, (None, None), True, 2),
        (BAD, (GOOD, GOOD), False, 4),
        (GOOD, (), True, 0),
        (GOOD, (BAD, GOOD), True, 4),
    ],
)
async def test_writes_open_unless_a_majority_contradicts(
    mine: Sums, others: tuple[Sums | None, ...], opens: bool, asked: int
) -> None:
    group, opened = Group(Node(i5=mine), *map(node, others)), []
    group.consistency.before_open(5, lambda: opened.append(True))
    assert [decode(payload) for _, payload in group.proposed] == [Digest(5, mine)], "also for those who apply it later"
    await group.settle()
    assert bool(opened) == opens
    assert len(group.asked) == asked


async def test_writes_do_not_wait_for_a_peer_that_does_not_answer() -> None:
    group, opened = Group(Node(i5=GOOD), Node(), Node()), []

    async def silent(peer: NodeId, what: str, arguments: list[Any], timeout_ms: int) -> Fetched:
        await asyncio.Event().wait()
        raise AssertionError

    group.fetch = silent  # type: ignore[method-assign]
    group.consistency.before_open(5, lambda: opened.append(True))
    async with asyncio.timeout(at_most(10)):
        while not opened:
            await asyncio.sleep(0.01)
    await group.consistency.close()


async def test_a_leader_whose_peers_answer_late_is_fenced_all_the_same() -> None:
    """On a busy machine no peer answered in 200 ms, and a leader with other rows served until the next election."""
    group, opened, answers = Group(Node(i5=BAD), Node(i5=GOOD), Node(i5=GOOD)), [], asyncio.Event()
    fetch = group.fetch

    async def late(peer: NodeId, what: str, arguments: list[Any], timeout_ms: int) -> Fetched:
        await answers.wait()
        return await fetch(peer, what, arguments, timeout_ms)

    group.fetch = late  # type: ignore[method-assign]
    group.consistency.before_open(5, lambda: opened.append(True))
    async with asyncio.timeout(at_most(10)):
        while not opened:
            await asyncio.sleep(0.01)
    answers.set()
    await group.settle()
    assert group.consistency.fenced


async def test_markers_come_in_pairs_while_entries_flow() -> None:
    group = Group(Node(i5=GOOD), None, None)
    group.consistency.tick(0)
    assert len(group.proposed) == 1
    group.consistency.on_applied(run_of(group.entry(group.proposed[0][1])))
    assert len(group.proposed) == 2, "the second carries the sums at the first"
    group.consistency.on_applied(run_of(group.entry(group.proposed[1][1])))
    group.consistency.tick(999)
    group.applied_index += 2
    group.consistency.tick(1000)
    assert len(group.proposed) == 2, "nothing was applied but the markers themselves"
    group.applied_index += 1
    group.consistency.tick(2000)
    assert len(group.proposed) == 3
    await group.settle()


async def test_who_does_not_lead_proposes_nothing() -> None:
    group = Group(Node(i5=GOOD), role=Role.FOLLOWER)
    group.consistency.tick(10_000)
    assert group.consistency.mark() is None
    assert group.proposed == []


def test_sums_of_another_version_or_of_nothing_are_not_compared() -> None:
    assert decode(b"") is None
    assert decode(encode(Digest(5, {}))) is None
    payload = bytearray(encode(Digest(5, GOOD)))
    payload[1] = VERSION + 1
    assert decode(bytes(payload)) is None
    assert differing({"cq": 1}, {"cq": 1, "tier": 0}) == []
    assert differing({"cq": 1}, {"cq": 1, "tier": 9}) == ["tier"]

"""The stories about two groups of brokers: what their load and their judges find, on pretended answers."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jepsen_like.history import HistoryWriter, read_history
from jepsen_like.live.probes.broadcast_members import BroadcastMember
from jepsen_like.live.probes.groups_load import IN_ORDER, GroupsLoad
from jepsen_like.live.stories.groups_scene import GroupsScene
from jepsen_like.live.stories.story_group_drain import is_read_by_others
from jepsen_like.live.stories.story_groups import longest_gap
from jepsen_like.live.subjects.subject import NodeState, PlacedMessage, SendFailed, SendUnknown
from raftmq_wire.queue_numbers import number_of
from tests.support.rows import each_row


@pytest.fixture
def history(tmp_path: Path) -> Iterator[HistoryWriter]:
    with HistoryWriter(tmp_path / "h.jsonl") as writer:
        yield writer


@pytest.fixture
def load(history: HistoryWriter) -> Iterator[GroupsLoad]:
    made = GroupsLoad("127.0.0.1:1", {}, history, 7, 10)
    yield made
    made.abort()


def settle(load: GroupsLoad, key: str | None, outcome: PlacedMessage | Exception, number: int = 1) -> None:
    loop = asyncio.new_event_loop()
    done: asyncio.Future[PlacedMessage] = loop.create_future()
    if isinstance(outcome, Exception):
        done.set_exception(outcome)
    else:
        done.set_result(outcome)
    load.settle(load.sends.begin({"topic": "T", "id": f"g-{number}"}), key, done)
    loop.close()


def test_a_key_waits_for_the_outcome_of_its_last_message(
    load: GroupsLoad, history: HistoryWriter, tmp_path: Path
) -> None:
    keys = {load.free_key("T") for _ in range(2000)} - {None}
    assert len(keys) > 50
    assert {load.free_key("T") for _ in range(200)} == {None}, "all are busy"
    settle(load, "key-1", PlacedMessage(3, 0))
    settle(load, "key-2", SendFailed("no"), 2)
    settle(load, "key-3", SendUnknown("?"), 3)
    assert {load.free_key("T") for _ in range(4000)} == {None, "key-1", "key-2"}, "an unknown message may still come"
    assert (load.counts.acked, load.counts.failed, load.counts.unknown, load.counts.in_flight) == (1, 1, 1, 0)
    history.close()
    outcomes = [op.type for op in read_history(tmp_path / "h.jsonl").ops if op.type != "invoke"]
    assert outcomes == ["ok", "fail", "info"]


def test_what_was_acknowledged_and_never_handed_out_is_missing(load: GroupsLoad) -> None:
    far = number_of(2, 1)
    key = next(key for key in iter(lambda: load.free_key("T"), 0) if key is not None)
    settle(load, key, PlacedMessage(far, 5))
    for name in ("alone", "pair"):
        assert f"'{name}' never got 1 acknowledged messages of T/{far}, the first at 5" in load.missing()
    for handed in load.handed.values():
        handed["T", far].add(5)
    assert load.missing() == []
    assert load.places["T", key] == [far]
    assert len(load.acks_s[2]) == 1


def test_what_comes_out_of_order_or_not_at_all_is_reported(load: GroupsLoad) -> None:
    load.handed[IN_ORDER] = defaultdict(set)
    for offset in (0, 1, 1, 2, 0, 1):
        load.take_in_order(("T", 0), offset)
    assert load.wrong == [], "what was not acknowledged comes again"
    assert load.again == 3
    load.take_in_order(("T", 0), 4)
    load.take_in_order(("T", 0), 3)
    assert load.wrong == ["'in-order': of T/0 came offset 4 after 2", "'in-order': of T/0 came offset 3 after 4"]
    settle(load, None, PlacedMessage(0, 5))
    assert any(what.startswith("'in-order' never got 1") for what in load.missing())


def test_each_member_of_a_broadcasting_group_gets_all(load: GroupsLoad) -> None:
    far = number_of(2, 1)
    load.watchers = [BroadcastMember(name, None, ()) for name in ("a", "b")]  # type: ignore[arg-type]
    for number, offset in enumerate((0, 1)):
        settle(load, None, PlacedMessage(far, offset), number)
    one, other = load.watchers
    assert one.take(("T", far), 0, [0, 1]) == 2
    assert other.take(("T", far), 0, [1]) == 2
    assert (one.wrong, other.wrong) == ([], [f"member b of 'watchers': of T/{far} came offset 1, not 0"])
    missing = f"member b of 'watchers' never got 1 acknowledged messages of T/{far}, the first at 0"
    assert load.unseen(2) == [missing]
    assert load.unseen(1) == []


@each_row(
    "row",
    [
        (True, {}),
        (False, {"unread": []}),
        (False, {"unread": [{"broadcasts": True}, {"broadcasts": False}]}),
        (False, {"timers": 1}),
        (False, {"prepared_writes": 2}),
    ],
)
def test_force_is_for_what_only_broadcasting_members_have_to_read(row: tuple[bool, dict[str, Any]]) -> None:
    names = ("topics_read_by_nobody", "groups_with_dead_letters", "timers", "half_messages", "attempts")
    left = {"unread": [{"broadcasts": True}], **dict.fromkeys((*names, "prepared_writes"), 0)}
    assert is_read_by_others(left | row[1]) is row[0]


class Consumer:
    """A consumer that hands out these offsets of queue 0, one by one."""

    def __init__(self, *offsets: int) -> None:
        self._offsets = list(offsets)
        self.commits = 0

    async def poll(self, timeout_s: float) -> Any:
        return SimpleNamespace(topic="T", queue_id=0, queue_offset=self._offsets.pop(0)) if self._offsets else None

    async def commit(self) -> None:
        self.commits += 1


@pytest.mark.parametrize(("group", "broken"), [("alone", 1), ("pair", 0)])
async def test_what_one_reader_has_committed_never_comes_again(load: GroupsLoad, group: str, broken: int) -> None:
    floor: dict[tuple[str, int], int] = {}
    first: Any = Consumer(0, 1, 2)
    await load.take_some(group, first, floor)
    assert (first.commits, floor) == (1, {("T", 0): 3})
    later: Any = Consumer(0)
    await load.take_some(group, later, floor)
    assert (len(load.wrong), load.again) == (broken, 1)
    idle: Any = Consumer()
    await load.take_some(group, idle, floor)
    assert idle.commits == 0


def test_a_key_that_moves_is_found(load: GroupsLoad) -> None:
    broken: list[str] = []
    scene: Any = SimpleNamespace(demand=lambda holds, what: None if holds else broken.append(what))
    groups: Any = SimpleNamespace(load=load, scene=scene)
    load.places["T", "stays"] = [1]
    load.places["T", "moves"] = [1]
    load.places["other", "moves"] = [1]
    with GroupsScene.no_key_moves(groups, ["T"]):
        load.places["T", "moves"].append(number_of(2, 1))
        load.places["other", "moves"].append(2)
        load.places["T", "new"] = [0]
        load.places["T", "late"] = [0, 3]
    assert broken == [
        "T: moves was in queue 1 and came to 1, 2/1",
        "T: late was in queue 0 and came to 0, 3",
    ]


def test_the_longest_gap_counts_both_ends() -> None:
    assert longest_gap([], 10.0, 14.0) == 4.0
    assert longest_gap([1.0, 11.0, 12.5, 20.0], 10.0, 14.0) == 1.5
    assert longest_gap([13.5], 10.0, 14.0) == 3.5


class Copied(GroupsScene):
    """Two groups whose versions are equal; each request for the findings has the next of these outcomes."""

    def __init__(self, *findings: OSError | list[str]) -> None:
        left = iter(findings)

        def request(node: int, method: str, path: str) -> dict[str, Any]:
            if path == "/v1/broker-groups":
                return {"version": 7}
            outcome = next(left)
            if isinstance(outcome, OSError):
                raise outcome
            return {"findings": [{"code": code} for code in outcome]}

        leads = {1: NodeState(3, True, True, 1, 5, 5)}
        nodes: Any = SimpleNamespace(node_ids=[1, 2, 3], request=request, states=lambda: leads)
        scene: Any = SimpleNamespace(subject=nodes)
        self.scene, self.second = scene, nodes


def test_a_request_for_the_findings_that_is_not_answered_is_asked_again() -> None:
    groups = Copied(OSError("timed out"), ["truth_unconfirmed"], [])
    assert [groups.copy_is_whole() for _ in range(3)] == [False, False, True]
    assert Copied(OSError("timed out"), ["truth_unconfirmed"]).wait_finding("truth_unconfirmed")

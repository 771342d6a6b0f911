"""Learnt limits as rows of the log: an import is in force as a whole, or not at all."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from raftmq_wire.learnt_file import DAY, WEEK, hour_of
from statemachine.access import learnt_limits
from statemachine.access.learnt_limits import (
    HEAD,
    LearntHead,
    LearntMode,
    PutLearnt,
    SetLearnt,
    SweepLearnt,
    import_of,
    parse_learnt,
)
from statemachine.cluster_wide.broker_groups import AddBrokerGroup
from statemachine.commands import InvalidCommandError
from statemachine.truth import JournalNames
from tests.support.rows import each_row
from tests.support.truth_kit import BrokerLog, copy_all

NewLog = Callable[[], Any]
HOUR_MS = 3_600_000
MONDAY_MS = 4 * 24 * HOUR_MS
"""1970-01-05 was a Monday."""


@pytest.fixture
def broker(new_log: NewLog) -> BrokerLog:
    return BrokerLog(new_log())


def digest_of(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def head(name: str, topics: int, mode: str = "shadow", **fields: Any) -> Any:
    base = LearntHead(digest_of(name), topics, LearntMode(mode), 5, 1, 4, 90, 7, "ann")
    return tuple(base._replace(**fields))


def put(broker: BrokerLog, name: str, *topics: str, value: int = 9, hours: int = DAY) -> Any:
    rows = [(topic, [value] * hours, [value * 100] * hours) for topic in topics]
    return broker.one(PutLearnt(import_of(digest_of(name)), rows))


def in_force(broker: BrokerLog) -> dict[str, tuple[int, int]] | None:
    found = broker.state.learnt.in_force
    return None if found is None else {topic: found.of(topic, 0) for topic in found.rows}


def test_hours_count_from_monday() -> None:
    assert [hour_of(MONDAY_MS + n * HOUR_MS, WEEK) for n in (-1, 0, 1, 167, 168)] == [167, 0, 1, 167, 0]
    assert [hour_of(MONDAY_MS + n * HOUR_MS, DAY) for n in (-1, 0, 25)] == [23, 0, 1]


def test_an_import_is_in_force_when_all_its_topics_are_there(broker: BrokerLog) -> None:
    assert put(broker, "one", "a", "b").value == 2
    assert in_force(broker) is None
    refused = broker.one(SetLearnt(head("one", 3)))
    assert (refused.code, refused.value) == (
        "conflict",
        "2 of the 3 topics of this import are there; nothing was changed",
    )
    assert put(broker, "one", "c", "b").value == 3
    assert in_force(broker) is None
    assert broker.one(SetLearnt(head("one", 3))).value is True
    known = dict.fromkeys("abc", (9, 900))
    assert in_force(broker) == known
    assert broker.one(SetLearnt(head("one", 3, changed_ms=8, changed_by="bea"))).value is False, "it is so already"
    assert broker.one(SetLearnt(head("one", 3, mode="on"))).value is True
    broker.restart()
    assert in_force(broker) == known
    found = broker.state.learnt.in_force
    assert found is not None
    assert found.head == LearntHead(*head("one", 3, mode="on"))


def test_the_one_before_counts_until_the_next_has_come_and_its_rows_go(broker: BrokerLog) -> None:
    put(broker, "one", "a", "b")
    broker.one(SetLearnt(head("one", 2)))
    put(broker, "two", "a", value=5)
    assert in_force(broker) == {"a": (9, 900), "b": (9, 900)}
    broker.one(SetLearnt(head("two", 1)))
    assert in_force(broker) == {"a": (5, 500)}
    assert (broker.state.learnt.coming, broker.one(SweepLearnt(256)).value, broker.state.learnt.coming) == (2, 0, 0)
    assert in_force(broker) == {"a": (5, 500)}
    assert broker.one(SetLearnt(None)).value is True
    assert in_force(broker) is None
    assert broker.one(SetLearnt(None)).value is False
    broker.one(SweepLearnt(256))
    assert not broker.state.learnt.has_rows
    broker.restart()
    assert not broker.state.learnt.has_rows


def test_rows_of_an_import_never_change_and_one_in_force_gets_no_more(broker: BrokerLog) -> None:
    put(broker, "one", "a")
    assert put(broker, "one", "b", "a", value=8).code == "conflict"
    assert broker.state.learnt.coming == 1
    broker.one(SetLearnt(head("one", 1)))
    assert put(broker, "one", "b").code == "conflict"
    assert put(broker, "one", "a").value == 1, "a repetition changes nothing"
    assert in_force(broker) == {"a": (9, 900)}


def test_there_is_a_most_of_them_and_they_go_in_steps(broker: BrokerLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learnt_limits, "ROWS_MAX", 5)
    put(broker, "one", "a", "b")
    put(broker, "two", "a", "b")
    assert put(broker, "three", "a", "b").code == "refused"
    assert broker.state.learnt.coming == 4
    assert [broker.one(SweepLearnt(2)).value for _ in range(3)] == [2, 0, 0]
    assert put(broker, "three", "a", "b").ok


def test_a_node_that_was_restarted_sweeps_the_same_rows(new_log: NewLog) -> None:
    """Seed 983000003: it had the rows in the order of their keys, and others in the order in which they came."""
    left = []
    for restarts in (False, True):
        broker = BrokerLog(new_log())
        for topic in "cab":
            put(broker, "one", topic)
        if restarts:
            broker.restart()
        broker.one(SweepLearnt(1))
        left.append(broker.state.learnt.rows_of(digest_of("one")))
    assert left[0] == left[1]
    assert [topic for topic, _ in left[0]] == ["b", "c"]


@each_row(
    "topics",
    [
        [],
        [("a/b", [1] * 24, [1] * 24)],
        [("a", [1] * 23, [1] * 23)],
        [("a", [1] * 24, [1] * 168)],
        [("a", [-1] * 24, [1] * 24)],
        [("a", [1] * 24, [2**63] * 24)],
        [("a", [1.5] * 24, [1] * 24)],
        [(f"t{n}", [1] * 24, [1] * 24) for n in range(65)],
    ],
)
def test_what_is_no_import(broker: BrokerLog, topics: Any) -> None:
    assert broker.one(PutLearnt(1, topics)).code == "invalid"
    assert not broker.state.learnt.has_rows


@pytest.mark.parametrize(
    "fields", [{"digest": "no"}, {"topics": 0}, {"topics": 2_001}, {"mode": "off"}, {"ends_ms": -1}]
)
def test_what_is_no_head(broker: BrokerLog, fields: dict[str, Any]) -> None:
    put(broker, "one", "a")
    wrong = list(head("one", 1))
    for name, value in fields.items():
        wrong[LearntHead._fields.index(name)] = value
    assert broker.one(SetLearnt(tuple(wrong))).code == "invalid"


@each_row("row", [(1, "a"), (1, b"\xff"), (-1, b"a"), (1, b"a/b"), None])
def test_names_of_the_truth_that_are_none(row: Any) -> None:
    with pytest.raises(InvalidCommandError):
        parse_learnt(row, None)
    with pytest.raises(InvalidCommandError):
        parse_learnt((1, b"a"), [[1], [1]])


def test_imports_that_cross_are_never_in_force_in_part(new_log: NewLog) -> None:
    """Parts of three files in any order, heads, removals and sweeps between them, and a second group that copies at any
    moment: what is in force is one file as a whole, or nothing."""
    seen = Counter(found for seed in range(40) for found in crossing(seed, new_log))
    assert min(seen[True], seen[False]) > 1000, "both were seen"


def crossing(seed: int, new_log: NewLog) -> Iterator[bool]:
    """Yields, again and again, if there are limits in force."""
    rng, broker, second = Random(seed), BrokerLog(new_log()), BrokerLog(new_log(), 2)
    files = {name: [f"t{n}" for n in range(rng.randint(1, 5))] for name in ("one", "two", "three")}
    value = {"one": 1, "two": 2, "three": 3}
    whole = [dict.fromkeys(topics, (value[name], value[name] * 100)) for name, topics in files.items()]
    begun = rng.randrange(60)
    for step in range(80):
        name = rng.choice(list(files))
        match rng.randrange(8):
            case 0 | 1 | 2 | 3:
                put(broker, name, rng.choice(files[name]), value=value[name])
            case 4 | 5:
                broker.one(SetLearnt(head(name, len(files[name]), rng.choice(["on", "shadow"]))))
            case 6:
                broker.one(SweepLearnt(256))
            case _ if rng.random() < 0.2:
                broker.one(SetLearnt(None))
        if step == begun:
            broker.one(AddBrokerGroup(2, "raftmq-g02", ("raftmq", 3)))
        if step >= begun:
            broker.one(JournalNames(1))
            if rng.random() < 0.5:
                copy_all(broker, second, rng.choice([1, 200, 10_000]))
        for state in (broker, second):
            found = in_force(state)
            assert found is None or found in whole, f"seed {seed}"
            yield found is not None
        if rng.random() < 0.1:
            broker.restart()
    broker.make_ready(3)
    copy_all(broker, second, 200)
    assert in_force(second) == in_force(broker)
    assert second.state.learnt.has_rows == broker.state.learnt.has_rows


def test_the_head_may_come_before_its_rows(broker: BrokerLog, new_log: NewLog) -> None:
    """Those that were there before the journal get their places by name."""
    put(broker, "one", "a", "b")
    broker.one(SetLearnt(head("one", 2)))
    broker.one(AddBrokerGroup(2, "raftmq-g02", ("raftmq", 3)))
    second = BrokerLog(new_log(), 2)
    shown = []
    while not broker.state.truth_journal.is_ready:
        broker.one(JournalNames(1))
        copy_all(broker, second, 1)
        shown.append((second.state.learnt.has_rows, second.state.learnt.in_force is not None))
    assert (True, False) in shown
    assert in_force(second) == in_force(broker) != {}
    assert HEAD == (0, b"")

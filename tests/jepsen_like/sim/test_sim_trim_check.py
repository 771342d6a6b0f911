"""The judge of retention, fed by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from jepsen_like.sim.machine import Machine
from jepsen_like.sim.trim_check import TrimCheck
from raftlog.types import Entry, EntryType
from statemachine import commands, payload


def _entry(index: int, kind: EntryType, data: bytes) -> Entry:
    return Entry(1, index, kind, 0, index * 100, index, 0, 0, bytes(64), data)


def _message(index: int, topic_id: int, offset: int) -> Entry:
    run = payload.Run(topic_id, 0, offset, 1, 0, payload.ITEM.pack(0, 8, 0, 0, 0))
    return _entry(index, EntryType.MESSAGES, payload.encode([b"m" * 8], 1, [run]))


def _deleted(index: int, name: str) -> Entry:
    return _entry(index, EntryType.COMMAND, commands.pack([[commands.DELETE_TOPIC, name]]))


def _judged(*entries: Entry) -> list[str]:
    """What is said of a node that applied them all at once, and has deleted every topic by then."""
    said: list[str] = []
    machine: Any = SimpleNamespace(node=SimpleNamespace(state=SimpleNamespace(topics_by_id={})))
    TrimCheck(lambda _, what: said.append(what)).applied(cast(Machine, machine), [entries])
    return said


def test_a_topic_goes_on_although_another_goes_and_its_own_end_is_applied_in_the_same_run() -> None:
    run = (_message(0, 17, 0), _deleted(1, "sixteen"), _message(2, 17, 1), _deleted(3, "seventeen"))
    assert _judged(*run) == []


def test_a_queue_that_goes_on_elsewhere_than_it_ended_is_found() -> None:
    (what,) = _judged(_message(0, 17, 0), _message(1, 17, 2))
    assert "adds offset 2 to queue 0 of topic 17, which goes on at 1" in what

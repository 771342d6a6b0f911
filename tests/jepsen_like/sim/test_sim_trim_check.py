"""The judge of retention, fed by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from jepsen_like.sim.checks.retention_pin_check import PinCheck
from jepsen_like.sim.checks.trim_check import TrimCheck
from jepsen_like.sim.machines.machine import Machine
from raftlog.types import Entry, EntryType
from statemachine import commands, payload
from statemachine import trim as trims
from statemachine.delivery.timers import DeliverTimers
from statemachine.removal_slices import DeleteTopic


def _entry(index: int, kind: EntryType, data: bytes) -> Entry:
    return Entry(1, index, kind, 0, index * 100, index, 0, 0, bytes(64), data, index * 100 + 64 + len(data))


def _message(index: int, topic_id: int, offset: int) -> Entry:
    run = payload.Run(topic_id, 0, offset, 1, 0, payload.ITEM.pack(0, 8, 0, 0, 0))
    return _entry(index, EntryType.MESSAGES, payload.encode([b"m" * 8], 1, [run]))


def _deleted(index: int, name: str) -> Entry:
    return _entry(index, EntryType.COMMAND, commands.pack([DeleteTopic(name)]))


def _judged(*entries: Entry) -> list[str]:
    """Returns the findings about a node that applied them all at once, and has deleted every topic by then."""
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


def test_what_a_node_has_applied_beyond_what_anybody_heard_is_not_judged() -> None:
    """Its snapshot is of a node that was ended before it could report."""
    said: list[str] = []
    check = TrimCheck(lambda _, what: said.append(what))
    state = SimpleNamespace(
        topics_by_id={17: None},
        min_offset=lambda topic_id, queue_id: 1,
        kept_offset=lambda topic_id, queue_id: 0,
        applied=SimpleNamespace(index=0),
    )
    machine = cast(Machine, SimpleNamespace(node_id=4, node=SimpleNamespace(state=state)))
    check.applied(machine, [[_message(0, 17, 0)]])
    trim = trims.encode(trims.Trim(0, 0, "age", ((17, 0, 0),)))
    state.applied.index = 1
    check.applied(machine, [[_entry(1, EntryType.TRIM, trim)]])
    assert said == ["queue 0 of topic 17 begins at 1 on node 4, the log says 0 as of index 1"]
    state.applied.index = 2
    check.compare(machine)
    assert len(said) == 1


# --- what pins the log ---------------------------------------------------------------------------------------------

PLACE, DUE_MS = 500, 90


def _pinned(*entries: Entry) -> list[str]:
    """Returns the findings about a log that begins with a message at PLACE, due at DUE_MS, and a half message behind
    it."""
    said: list[str] = []
    check = PinCheck(lambda _, what: said.append(what))
    check.learn(_waiting(payload.RowKind.SCHEDULED, PLACE, DUE_MS))
    check.learn(_waiting(payload.RowKind.HALF, PLACE + 9, 1))
    for entry in entries:
        check.learn(entry)
    return said


def _waiting(kind: payload.RowKind, place: int, base: int, *effects: commands.Command) -> Entry:
    run = payload.Run(17, 0, base, 1, kind, payload.ITEM.pack(place, 8, 0, 0, 0))
    packed = commands.pack(list(effects)) if effects else b""
    return _entry(DUE_MS, EntryType.MESSAGES, payload.encode([b"m" * 8], 1, [run], effects=packed))


def _trimmed(position: int) -> Entry:
    return _entry(7, EntryType.TRIM, trims.encode(trims.Trim(position, 0, "age")))


DELIVER: commands.Command = DeliverTimers([(DUE_MS, PLACE)])
DELIVERED = _waiting(payload.RowKind.DELIVERED, 700, 0, DELIVER)
CARRIED = _waiting(payload.RowKind.CARRIED_TIMERS, 800, PLACE)
HALF_CARRIED = _waiting(payload.RowKind.CARRIED_HALF, 900, PLACE + 9)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([_trimmed(PLACE), DELIVERED, _trimmed(PLACE + 9)], ""),
        ([CARRIED, _trimmed(PLACE + 9), HALF_CARRIED, _trimmed(800), DELIVERED, _trimmed(900)], ""),
        ([_trimmed(PLACE + 1)], "passes a message that waits at 500"),
        ([DELIVERED, _trimmed(PLACE + 10)], "passes a message that waits at 509"),
        ([CARRIED, DELIVERED, HALF_CARRIED, _trimmed(901)], "waits at 900 (first stored at 509)"),
        ([DELIVERED, DELIVERED], "they do not wait"),
        ([CARRIED, DELIVERED, CARRIED, DELIVERED], "they do not wait"),
        ([_entry(8, EntryType.COMMAND, commands.pack([DELIVER]))], "82 ms before they are due"),
        ([_waiting(payload.RowKind.HALF, 950, 1, DELIVER)], "ends rows of 1 messages and has 0 for queues"),
    ],
)
def test_what_waits_is_kept_until_it_is_delivered_once(entries: list[Entry], said: str) -> None:
    found = _pinned(*entries)
    assert (said in found[0]) if said else found == []

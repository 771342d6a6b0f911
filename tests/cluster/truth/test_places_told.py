"""The leader of the first group tells the registry which groups have each topic: all once, then what changes."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from cluster.registry.records import OPERATION_BYTES_MAX, read_places
from cluster.runtime.peer_frames import Kind
from cluster.truth.places_told import EVERY_MS, NAMES_PER_FRAME, UNITS_PER_TURN, PlacesTold
from raftlog.work import METER
from statemachine.cluster_wide.truth_journal import TruthKind
from statemachine.removal_slices import DeleteTopic
from statemachine.topics.topics import CreateTopic
from tests.support.truth_kit import SECOND
from tests.support.two_groups import Two

COUNT = 700
WHOLE = 40
"""Turns in which two connections are told all."""


class Line:
    """A connection to the registry, which counts what it was told."""

    group = 0

    def __init__(self) -> None:
        self.is_open = True
        self.frames: list[list[list[Any]]] = []

    def send(self, kind: Kind, header: list[Any], payload: bytes = b"") -> bool:
        assert (kind, header) == (Kind.PLACES, [])
        assert len(read_places(payload)) <= NAMES_PER_FRAME
        if self.is_open:
            self.frames.append(msgpack.unpackb(payload))
        return self.is_open

    @property
    def told(self) -> dict[str, list[int]]:
        return {name: groups for frame in self.frames for name, _, groups in frame}


class Teller:
    """The service on the leader of a first group with COUNT topics."""

    def __init__(self, two: Two) -> None:
        self.state = two.first.log.state
        self.one = two.first.log.one
        self.leads = True
        self.lines = [Line()]
        self.now_ms = 0
        self.places = PlacesTold(self.state, lambda: self.leads, lambda: self.lines)

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.now_ms += EVERY_MS
            self.places.tick(self.now_ms)
            self.places.tick(self.now_ms + 1)


@pytest.fixture
def teller(new_log: Any) -> Teller:
    two = Two(new_log)
    for n in range(COUNT):
        two.first.log.one(CreateTopic({"name": f"t-{n:03}", "read_queues": 2, "write_queues": 2}, True))
    made = Teller(two)
    made.turns(3)
    assert made.lines[0].frames == [], "one group has no truth to tell"
    two.first.log.one(SECOND)
    two.run(3000)
    assert made.state.truth_journal.is_ready
    return made


def test_all_topics_are_told_in_steps_and_then_what_changes(teller: Teller) -> None:
    (line,) = teller.lines
    teller.turns(1)
    assert 0 < len(line.frames) < COUNT / NAMES_PER_FRAME
    teller.turns(WHOLE)
    assert line.told == {f"t-{n:03}": [1] for n in range(COUNT)}
    line.frames.clear()
    teller.turns(3)
    assert line.frames == [], "nothing changed"
    teller.one(CreateTopic({"name": "t-003", "place": [[2, 1, 1]]}, False))
    teller.one(DeleteTopic("t-004"))
    teller.one(CreateTopic({"name": "new"}, True))
    teller.turns(1)
    assert line.told == {"t-003": [1, 2], "new": [1]}, "what ended is not told"
    (frame,) = line.frames
    versions = {change.name: change.version for change in teller.state.truth_journal.changes(0)}
    assert all(version == versions[name] for name, version, _ in frame)


def test_one_turn_is_bounded_however_many_processes_there_are(teller: Teller) -> None:
    teller.lines = [Line() for _ in range(9)]
    for _ in range(9 * WHOLE):
        before = METER.units
        teller.turns(1)
        assert METER.units - before < 2 * UNITS_PER_TURN
    assert all(len(line.told) == COUNT for line in teller.lines)


def test_a_new_connection_and_one_that_lost_frames_get_all(teller: Teller) -> None:
    teller.turns(WHOLE)
    (first,) = teller.lines
    second = Line()
    second.is_open = False
    teller.lines.append(second)
    teller.turns(WHOLE)
    assert (len(first.told), second.frames) == (COUNT, [])
    second.is_open = True
    before = len(first.frames)
    teller.turns(WHOLE)
    assert len(second.told) == COUNT
    assert len(first.frames) == before
    teller.lines.remove(second)
    teller.turns(1)
    teller.lines.append(second)
    second.frames.clear()
    teller.turns(WHOLE)
    assert len(second.told) == COUNT


def test_who_does_not_lead_tells_nothing(teller: Teller) -> None:
    teller.leads = False
    teller.turns(WHOLE)
    assert teller.lines[0].frames == []
    teller.leads = True
    teller.turns(WHOLE)
    assert len(teller.lines[0].told) == COUNT
    assert any(change.kind is not TruthKind.TOPIC for change in teller.state.truth_journal.changes(0)), "and no others"


def test_a_frame_of_the_longest_names_is_an_operation() -> None:
    rows = [[f"{n:03}".ljust(255, "x"), 1 << 60, list(range(1, 65))] for n in range(NAMES_PER_FRAME)]
    assert len(msgpack.packb(rows)) < OPERATION_BYTES_MAX - 100
    assert len(read_places(msgpack.packb(rows))) == NAMES_PER_FRAME

"""Long turns of the event loop are events, but not more than people can read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cluster.node.event_watch import LONG_TURN_EVERY_MS, EventWatch
from cluster.runtime.events import EventLog
from cluster.runtime.turns.turn_watch import LongTurn
from raftlog.types import NodeId


def watch_of(events: EventLog) -> EventWatch:
    """Returns the watch of a node without peers and repairs."""
    membership = SimpleNamespace(in_force=SimpleNamespace(index=1))
    transport = SimpleNamespace(roster=SimpleNamespace(peers=list))
    storage = SimpleNamespace(directory=SimpleNamespace(log=SimpleNamespace(damage=SimpleNamespace(ranges=[]))))
    installs = SimpleNamespace(view=lambda: SimpleNamespace(stage="none"))
    looked_at: list[Any] = [storage, transport, membership, installs]
    return EventWatch(events, NodeId(3), *looked_at)


def test_a_turn_above_100_ms_is_an_event_with_what_ran() -> None:
    events = EventLog(3, lambda: 0)
    watch = watch_of(events)
    watch.long_turn(LongTurn(99.0, 99.0, 5, "cluster.f"))
    assert events.kept() == []
    watch.long_turn(LongTurn(312.0, 290.0, 5, "cluster.f"))
    (event,) = events.kept()
    assert (event.kind, event.object, event.severity) == ("stall", "node 3", "warning")
    assert event.says == "a turn of the event loop took 312 ms (290 ms of CPU, 5 units) in cluster.f"


def test_one_that_was_not_scheduled_says_so() -> None:
    events = EventLog(3, lambda: 0)
    watch_of(events).long_turn(LongTurn(312.0, 9.0, 5, "cluster.f"))
    (event,) = events.kept()
    assert event.says.endswith("it waited, or was not scheduled")
    assert event.severity == "info"


def test_there_is_one_such_event_per_second() -> None:
    events = EventLog(3, lambda: 0)
    watch = watch_of(events)
    watch.tick(1000)
    for _ in range(3):
        watch.long_turn(LongTurn(200.0, 200.0, 5, "cluster.f"))
    assert len(events.kept()) == 1
    watch.tick(1000 + LONG_TURN_EVERY_MS - 1)  # not long enough to be an event of its own
    watch.long_turn(LongTurn(200.0, 200.0, 5, "cluster.f"))
    assert len(events.kept()) == 1
    watch.tick(1000 + LONG_TURN_EVERY_MS)
    watch.long_turn(LongTurn(200.0, 200.0, 5, "cluster.f"))
    assert len(events.kept()) == 2

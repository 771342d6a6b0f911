"""What came on a connection behind sends whose entry is undecided when leadership ends: it does not overtake them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.sim_cluster import ClientPath, SimNode, codes, send_frame

SEED = 31
PID = bytes(range(16))
RETRY = 14


def asked(path: ClientPath, *numbers: int) -> None:
    for number in numbers:
        path.ask(send_frame(number, "T", b"%d" % number, pid=PID, seq=number, low=1))


@pytest.mark.parametrize("fate", ["lost", "kept"])
def test_later_sends_wait_until_the_log_has_decided_those_before(sim_of: Any, fate: str) -> None:
    """The former leader had proposed the first and forwarded the third, which was stored; the client had gone to
    another connection, repeated all three, and found the first behind the third (seed 830001029)."""
    sim = sim_of()
    old: SimNode = sim.leader()
    sim.create_topic("T")
    sim.settle()
    path = old.connect()
    if fate == "lost":
        sim.isolate(old)
    else:
        old.apply.hold()
    for number in (1, 2):
        asked(path, number)
        sim.loop.run_for(0.02)
    asked(path, 3)
    waiting, pending = old.proposals.flow.queue.waiting, old.undecided
    assert [send.body for send in waiting] == [b"3"]
    assert [send.body for entry in pending.values() for send in entry.sends] == [b"1", b"2"]
    old.apply.hold()
    if fate == "kept":
        sim.loop.run_for(0.5)
        sim.isolate(old)
    new = sim.leader(besides=old)
    sim.loop.run_until(lambda: new.proposals.open, 5)
    sim.mend()
    sim.loop.run_until(lambda: old.raw.leader_id == new.node_id, 5)
    asked(path, 4)  # came when it had ceased to lead
    sim.loop.run_for(0.3)
    assert path.replies == {}
    assert new.bodies("T") == ([] if fate == "lost" else [b"1", b"2"])
    again = new.connect()
    asked(again, 1, 2, 3, 4)
    sim.loop.run_until(lambda: again.replies.keys() == {1, 2, 3, 4}, 5)
    old.apply.release()
    sim.loop.run_until(lambda: path.replies.keys() == {1, 2, 3, 4}, 5)
    first = RETRY if fate == "lost" else 0
    assert [codes(path, number) for number in (1, 2, 3, 4)] == [[first], [first], [0], [0]]
    sim.settle()
    assert new.bodies("T") == [b"1", b"2", b"3", b"4"]
    assert not path.order_line().waits


def test_sends_that_are_given_up_let_the_later_ones_go(sim_of: Any) -> None:
    sim = sim_of()
    old: SimNode = sim.leader()
    sim.create_topic("T")
    sim.settle()
    path = old.connect()
    sim.isolate(old)
    for number in (1, 2):
        asked(path, number)
        sim.loop.run_for(0.02)
    asked(path, 3)
    old.apply.hold()
    new = sim.leader(besides=old)
    sim.mend()
    sim.loop.run_until(lambda: path.replies.keys() == {1, 2, 3}, 30)
    assert "may still be stored" in path.replies[1][0][1]
    assert not path.order_line().waits
    asked(path, 4)
    sim.loop.run_until(lambda: 4 in path.replies, 5)
    assert codes(path, 4) == [0]
    assert new.bodies("T")[-1:] == [b"4"]
    old.apply.release()
    sim.settle()

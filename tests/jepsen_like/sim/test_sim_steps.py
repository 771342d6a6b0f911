"""A lane's drain that is taken apart: it stops between its steps, others come between, and it can be left for good."""

from __future__ import annotations

import threading

import pytest

from jepsen_like.sim.machines.lane_steps import AbandonedError, Steps, may_stop
from jepsen_like.sim.scripted import play


def test_work_stops_where_it_may_and_goes_on() -> None:
    done: list[str] = []

    def work() -> str:
        done.append("first")
        may_stop()
        done.append("second")
        return "result"

    steps = Steps(work, lambda: False)
    assert not done
    assert not steps.advance()
    assert done == ["first"]
    assert steps.advance()
    assert (done, steps.result, steps.error) == (["first", "second"], "result", None)


def test_work_that_is_left_does_nothing_more() -> None:
    done: list[str] = []
    before = threading.active_count()

    def work() -> None:
        try:
            may_stop()
            done.append("never")
        finally:
            may_stop()

    steps = Steps(work, lambda: False)
    steps.advance()
    steps.abandon()
    assert not done
    assert isinstance(steps.error, AbandonedError)
    assert threading.active_count() == before


def test_nobody_stops_with_a_lock() -> None:
    steps = Steps(may_stop, lambda: True)
    assert steps.advance()


def test_outside_of_such_work_nothing_stops() -> None:
    may_stop()


@pytest.mark.parametrize("end", ["settle", "kill 2\nwait 0.2\nstart 2\nsettle", "power 2\nwait 0.2\nstart 2\nsettle"])
def test_nodes_whose_drains_are_taken_apart_keep_what_they_promised(end: str) -> None:
    script = f"nodes 3 stepped=1.0 segment_size=24576\nlead 1\nsend 60 body=300 later\nwait 0.7\n{end}\n"
    assert play(script).violations == ()

"""The watch over turns: stamps and looks by hand, and once with the loop, thread and clocks of the machine."""

from __future__ import annotations

import asyncio
import gc
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType

import pytest

from cluster.runtime.turns.turn_watch import (
    COLLECTION,
    DEPTH_MAX,
    IDLE_STAMP_S,
    STAMP_S,
    UNKNOWN,
    LongTurn,
    TurnWatch,
    name_of,
    running,
)
from raftlog.work import METER, charge
from tests.support.pace import at_most

MS = 1_000_000
ROOT = Path(__file__).parents[3]
STARTS = """
import gc, sys, threading, time
from cluster.runtime.turns.turn_watch import running

watched, over = threading.get_ident(), threading.Event()
gc.set_threshold(1)
gc.callbacks.append(lambda *_: time.sleep(0))
sys.setswitchinterval(1e-6)

def watch():
    while not over.is_set():
        running(watched)

watcher = threading.Thread(target=watch)
watcher.start()
for _ in range(2_000):
    started = threading.Thread(target=lambda: None)
    started.start()
    started.join()
over.set()
watcher.join()
print(gc.isenabled())
"""


class Machine:
    """A loop with one timer, and the clocks of its thread."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.wall_ns = self.cpu_ns = 0
        self.due_s: list[float] = []
        self.turns: list[LongTurn] = []
        patch.setattr(time, "monotonic_ns", lambda: self.wall_ns)
        patch.setattr(time, "thread_time_ns", lambda: self.cpu_ns)
        patch.setattr(threading, "Thread", lambda **_: self)
        self.watch = TurnWatch(self, self.turns.append)  # type: ignore[arg-type]
        self.watch.start()

    def start(self) -> None:
        """Does nothing: a test calls `look` in place of the thread."""

    join = cancel = start

    def call_later(self, wait_s: float, stamp: Callable[[], None]) -> Machine:
        self.due_s.append(wait_s)
        self.stamp = stamp
        return self

    def turn(self, wall_ms: int, cpu_ms: int) -> None:
        """The stamp comes so long after it was planned; the loop's thread worked so long meanwhile."""
        self.wall_ns += wall_ms * MS
        self.cpu_ns += cpu_ms * MS
        self.stamp()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(monkeypatch)
    yield made
    made.watch.stop()


def test_a_stamp_that_comes_in_time_tells_nothing_however_busy_the_loop_is(machine: Machine) -> None:
    for _ in range(5):
        machine.turn(21, 20)
    assert machine.turns == []
    assert machine.due_s == [STAMP_S] * 6


def test_a_late_stamp_is_a_long_turn(machine: Machine) -> None:
    charge(5)
    machine.turn(20 + 150, 160)
    (turn,) = machine.turns
    assert (turn.wall_ms, turn.cpu_ms, turn.what) == (150, 150, UNKNOWN)
    assert turn.units == 5
    assert turn.worked
    assert not turn.explained


def test_the_turn_that_opens_the_node_is_passed_over_and_no_other(machine: Machine) -> None:
    machine.turn(30, 15)
    machine.watch.pass_over()
    machine.turn(80, 70)
    assert not machine.turns
    machine.turn(80, 70)
    assert [turn.cpu_ms for turn in machine.turns] == [60]


def test_a_turn_that_was_not_scheduled_did_not_work(machine: Machine) -> None:
    machine.turn(20 + 150, 12)
    (turn,) = machine.turns
    assert (turn.wall_ms, turn.cpu_ms, turn.worked) == (150, 12, False)


def test_a_loop_that_was_idle_is_stamped_less_often_and_what_it_did_was_one_turn(machine: Machine) -> None:
    machine.turn(20, 0)
    assert machine.due_s[-1] == IDLE_STAMP_S
    machine.turn(100 + 30, 120)
    (turn,) = machine.turns
    assert (turn.wall_ms, turn.cpu_ms) == (120, 120)
    assert machine.due_s[-1] == STAMP_S


def test_work_that_was_charged_is_explained(machine: Machine) -> None:
    charge(40_000)
    machine.turn(20 + 150, 150)
    assert machine.turns[0].explained
    machine.turn(20 + 150, 150)
    assert not machine.turns[1].explained


def test_a_full_collection_is_named_and_smaller_ones_are_not(machine: Machine) -> None:
    for generation, what in (2, COLLECTION), (1, UNKNOWN):
        machine.watch._on_collection("start", {"generation": generation})
        machine.cpu_ns += 60 * MS
        machine.watch._on_collection("stop", {"generation": generation})
        machine.turn(20 + 100, 40)
        assert machine.turns[-1].what == what


def test_a_thread_is_named_by_the_innermost_function_of_ours() -> None:
    looks, over = threading.Event(), threading.Event()

    def of_a_library() -> None:
        looks.set()
        over.wait()

    namespace = {"__name__": "cluster.made", "of_a_library": of_a_library}
    exec("class Maker:\n    def make(self):\n        of_a_library()\n", namespace)
    maker = threading.Thread(target=namespace["Maker"]().make)  # type: ignore[operator]
    maker.start()
    looks.wait()
    assert maker.ident is not None
    assert name_of(maker.ident) == "cluster.made.Maker.make"
    over.set()
    maker.join()
    assert name_of(maker.ident) == UNKNOWN


def test_a_thread_that_goes_on_is_never_seen_as_something_else() -> None:
    """Once in some thousand tests a frame that was asked for its caller gave a dict: its thread had gone on."""
    over = threading.Event()

    def down(depth: int) -> int:
        return down(depth - 1) + 1 if depth else sum(number for number in range(3))

    def work() -> None:
        while not over.is_set():
            down(20)

    worker = threading.Thread(target=work)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        worker.start()
        assert worker.ident is not None
        looks = itertools.cycle(range(DEPTH_MAX))
        seen: list[CodeType] = []
        while len(seen) < 2_000 or down.__code__ not in seen:
            found = running(worker.ident, next(looks))
            seen += [found[1]] if found else []
        assert running(worker.ident, DEPTH_MAX - 1) is None
    finally:
        over.set()
        worker.join()
        sys.setswitchinterval(interval)
    assert {type(each) for each in seen} == {CodeType}


async def test_the_thread_sees_what_runs_in_a_turn_that_does_not_end() -> None:
    """However long the machine takes: the turn ends when the thread has looked."""
    turns: list[LongTurn] = []
    watch = TurnWatch(asyncio.get_running_loop(), turns.append)
    watch.start()
    namespace = {"__name__": "cluster.made"}
    exec("def works(until):\n    while not until():\n        pass\n", namespace)
    work: Callable[[Callable[[], bool]], None] = namespace["works"]  # type: ignore[assignment]
    began = time.monotonic()
    work(lambda: bool(watch._seen) and time.monotonic() - began > 0.2)
    while not turns:
        await asyncio.sleep(0.01)
    watch.stop()
    assert turns[0].what == "cluster.made.works"
    assert turns[0].wall_ms >= 50


async def test_nothing_is_left_behind() -> None:
    callbacks, threads = list(gc.callbacks), threading.active_count()
    watch = TurnWatch(asyncio.get_running_loop(), lambda turn: None)
    watch.start()
    watch.stop()
    watch.stop()
    assert gc.callbacks == callbacks
    assert threading.active_count() == threads
    assert METER.units >= 0


def test_threads_that_start_while_a_stack_is_looked_at_do_not_hang_the_process() -> None:
    """Once in some hundred starts under load a node hung for ever, with a thread that its loop was just starting."""
    ran = subprocess.run([sys.executable, "-c", STARTS], cwd=ROOT, capture_output=True, text=True, timeout=at_most(120))
    assert (ran.stdout, ran.stderr) == ("True\n", "")


def test_nobody_else_asks_for_the_stacks_of_other_threads() -> None:
    """`running` is the one way to do it that cannot hang."""
    rooms = ("cluster", "raftlog", "statemachine", "raftmq", "raftmq_wire", "jepsen_like", "pyspark_raftmq")
    names = "_current_" + "frames", "_current_" + "exceptions"
    files = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    asking = {str(path.relative_to(ROOT)) for path in files if any(name in path.read_text() for name in names)}
    assert asking == {"cluster/runtime/turns/turn_watch.py"}

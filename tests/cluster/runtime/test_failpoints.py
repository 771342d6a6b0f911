"""Failpoints: what each action does, who is released when, and errors that name the nearest right word."""

from __future__ import annotations

import errno
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cluster.runtime.failpoints.failpoint_fs import FailpointFileSystem
from cluster.runtime.failpoints.failpoints import (
    ACTIONS,
    POINTS,
    FailpointError,
    FailpointLane,
    FailpointSet,
    FailpointTransport,
    parse_action,
)
from raftlog.messages import Heartbeat, Message
from raftlog.storage.files.fs import FileSystem, OsFileSystem
from raftlog.types import NodeId
from tests.support.pace import at_most
from tests.support.rows import each_row

WAIT_S = at_most(20)
"""Time that a test waits for what must happen; only a broken one ever waits that long."""


class FakeTime:
    """A clock that only sleeping and the operation move."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def work(self) -> str:
        self.now += 0.5
        return "done"


class FakeLoop:
    """Keeps what is scheduled."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.later: list[tuple[float, Callable[[], None]]] = []

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        self.later.append((delay, callback))


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def points(time: FakeTime) -> FailpointSet:
    return FailpointSet(True, sleep=time.sleep, clock=time.clock)


def state(points: FailpointSet, name: str) -> tuple[str, int, int]:
    return next((each.action, each.hits, each.waiting) for each in points.states() if each.name == name)


def start(operation: Callable[[], None], results: queue.SimpleQueue[object]) -> threading.Thread:
    def body() -> None:
        try:
            operation()
            results.put("done")
        except OSError as error:
            results.put(error.errno)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    return thread


def wait_until(condition: Callable[[], bool]) -> None:
    """Polls; the outcome does not depend on how fast."""
    tick = threading.Event()
    for _ in range(int(WAIT_S / 0.001)):
        if condition():
            return
        tick.wait(0.001)
    raise AssertionError("it never happened")


def test_off_runs_the_operation_and_counts_nothing(points: FailpointSet, time: FakeTime) -> None:
    assert points.run("append.fdatasync", time.work) == "done"
    assert time.slept == []
    assert state(points, "append.fdatasync") == ("off", 0, 0)


def test_delay_comes_before_the_operation(points: FailpointSet, time: FakeTime) -> None:
    points.set("append.fdatasync", "delay:20ms")
    seen: list[float] = []
    points.run("append.fdatasync", lambda: seen.append(time.now))
    assert seen == [100.02]
    assert state(points, "append.fdatasync") == ("delay:20ms", 1, 0)
    points.set("append.fdatasync", "delay:2s")
    points.run("append.fdatasync", time.work)
    assert time.slept == [0.02, 2.0]


def test_slow_multiplies_the_measured_time(points: FailpointSet, time: FakeTime) -> None:
    points.set("apply.batch", "slow:20x")
    assert points.run("apply.batch", time.work) == "done"
    assert time.now == pytest.approx(110.0)  # 0.5 s became 10 s


def test_a_rate_lets_so_many_bytes_pass_in_a_second(points: FailpointSet, time: FakeTime, tmp_path: Path) -> None:
    points.set("append.fdatasync", "rate:2kB")
    files = FailpointFileSystem(OsFileSystem(), points, sync_point="append.fdatasync")
    file = files.open(tmp_path / "log", create=True)
    for _ in range(3):
        file.pwritev([b"x" * 600, b"y" * 400], 0)
    file.fdatasync()
    assert time.now == pytest.approx(101.5), "a sync takes as long as what was written before it"
    file.fdatasync()
    assert time.now == pytest.approx(101.5), "nothing was written since"
    time.now = 200.0
    file.pwritev([b"x" * 1000], 0)
    file.fdatasync()
    assert time.now == pytest.approx(200.5), "a rate that was not used is not saved up"
    assert state(points, "append.fdatasync") == ("rate:2kB", 3, 0)
    file.close()


def test_what_queues_at_a_rate_waits_for_what_came_before(points: FailpointSet, time: FakeTime) -> None:
    points.set("append.write", "rate:1kB")
    ends = []

    def first() -> None:  # while it is under way, another one comes
        points.run("append.write", lambda: ends.append(time.now), 1000)
        ends.append(time.now)

    points.run("append.write", first, 2000)
    assert ends == [100.0, 103.0]
    assert time.now == 103.0
    points.set("append.write", "rate:1kB")
    points.run("append.write", lambda: None, 500)
    assert time.now == 103.5, "a rate that is set begins anew"


@pytest.mark.parametrize(("action", "number"), [("error:EIO", errno.EIO), ("error:ENOSPC", errno.ENOSPC)])
def test_error_comes_instead_of_the_operation(points: FailpointSet, action: str, number: int) -> None:
    points.set("append.write", action)
    with pytest.raises(OSError, match=rf"failpoint {action}") as caught:
        points.run("append.write", lambda: pytest.fail("it ran"))
    assert caught.value.errno == number


def test_hold_blocks_every_thread_until_the_point_is_off() -> None:
    points = FailpointSet(True)
    points.set("append.fdatasync", "hold")
    results: queue.SimpleQueue[object] = queue.SimpleQueue()
    ran: list[int] = []
    threads = [start(lambda: points.run("append.fdatasync", lambda: ran.append(1)), results) for _ in range(3)]
    wait_until(lambda: state(points, "append.fdatasync") == ("hold", 3, 3))
    assert ran == []
    points.run("append.write", lambda: ran.append(2))  # other points are not held
    assert ran == [2]
    points.set("append.fdatasync", "off")
    for thread in threads:
        thread.join(WAIT_S)
    assert ran == [2, 1, 1, 1]
    assert state(points, "append.fdatasync") == ("off", 3, 0)


def test_holding_again_keeps_holding() -> None:
    points = FailpointSet(True)
    points.set("append.fdatasync", "hold")
    results: queue.SimpleQueue[object] = queue.SimpleQueue()
    thread = start(lambda: points.run("append.fdatasync", lambda: None), results)
    wait_until(lambda: state(points, "append.fdatasync")[2] == 1)
    points.set("append.fdatasync", "hold")
    wait_until(lambda: state(points, "append.fdatasync")[2] == 1)
    assert results.empty()
    points.clear()
    thread.join(WAIT_S)
    assert results.get(timeout=WAIT_S) == "done"


def test_what_was_held_meets_the_action_that_released_it() -> None:
    points = FailpointSet(True)
    points.set("hardstate.fdatasync", "hold")
    results: queue.SimpleQueue[object] = queue.SimpleQueue()
    start(lambda: points.run("hardstate.fdatasync", lambda: None), results)
    wait_until(lambda: state(points, "hardstate.fdatasync")[2] == 1)
    points.set("hardstate.fdatasync", "error:EIO")
    assert results.get(timeout=WAIT_S) == errno.EIO


def test_the_event_loop_never_waits(points: FailpointSet) -> None:
    loop = FakeLoop()
    sent: list[int] = []
    points.when_clear("peer.send", loop, lambda: sent.append(1))
    assert sent == [1]
    points.set("peer.send", "hold")
    points.when_clear("peer.send", loop, lambda: sent.append(2))
    points.when_clear("peer.send", loop, lambda: sent.append(3))
    assert (sent, loop.soon) == ([1], [])
    assert state(points, "peer.send") == ("hold", 2, 2)
    points.set("peer.send", "delay:20ms")
    for callback in loop.soon:
        callback()
    assert sent == [1, 2, 3]
    points.when_clear("peer.send", loop, lambda: sent.append(4))
    assert [delay for delay, _ in loop.later] == [0.02]
    points.set("peer.send", "error:EIO")
    with pytest.raises(OSError, match="failpoint"):
        points.when_clear("peer.send", loop, lambda: sent.append(5))
    assert sent == [1, 2, 3]


@each_row(
    ("name", "action", "text"),
    [
        ("append.fsync", "hold", "unknown failpoint append.fsync\ndid you mean append.fdatasync?"),
        ("zzz", "hold", "unknown failpoint zzz\nuse one of: " + ", ".join(POINTS)),
        ("apply.batch", "held", "unknown action held\ndid you mean hold?"),
        ("apply.batch", "zzz", "unknown action zzz\nuse one of: " + ", ".join(ACTIONS)),
        ("apply.batch", "delay:20", "unknown action delay:20\ndid you mean delay:20ms?"),
        ("apply.batch", "slow:5", "unknown action slow:5\ndid you mean slow:20x?"),
        ("apply.batch", "error:EIIO", "unknown action error:EIIO\ndid you mean error:EIO?"),
        ("apply.batch", "slow:0x", "slow:0x is out of range\nuse a number from 1 up to that of slow:10000x"),
        ("apply.batch", "delay:61s", "delay:61s is out of range\nuse a number from 1 up to that of delay:60000ms"),
        ("peer.send", "slow:2x", "peer.send cannot be slowed down\nuse delay:20ms"),
        ("append.write", "rate:4", "unknown action rate:4\ndid you mean rate:4MB?"),
        ("append.write", "rate:0kB", "rate:0kB is out of range\nuse a number from 1 up to that of rate:10000MB"),
        (
            "apply.batch",
            "rate:4MB",
            "what passes apply.batch has no size\n"
            "use delay:20ms, or one of: append.fdatasync, append.write, hardstate.fdatasync",
        ),
    ],
)
def test_errors_name_the_nearest_right_word(points: FailpointSet, name: str, action: str, text: str) -> None:
    before = points.states()
    with pytest.raises(FailpointError) as caught:
        points.set(name, action)
    assert str(caught.value) == text
    assert points.states() == before


def test_nothing_can_be_set_when_failpoints_are_off() -> None:
    with pytest.raises(FailpointError, match="failpoints are off on this node\nrestart it with"):
        FailpointSet(False).set("apply.batch", "hold")


@each_row("action", ACTIONS)
def test_every_example_is_an_action(action: str) -> None:
    assert parse_action(action).text == action


def test_files_pass_through_their_points(points: FailpointSet, tmp_path: Path) -> None:
    fs: FileSystem = FailpointFileSystem(
        OsFileSystem(), points, sync_point="append.fdatasync", write_point="append.write"
    )
    file = fs.open(tmp_path / "log", create=True)
    points.set("append.fdatasync", "error:EIO")
    file.pwritev([b"ab", b"c"], 1)
    with pytest.raises(OSError, match="failpoint error:EIO"):
        file.fdatasync()
    points.set("append.fdatasync", "off")
    file.fdatasync()
    points.set("append.write", "error:ENOSPC")
    with pytest.raises(OSError, match="failpoint error:ENOSPC"):
        file.pwritev([b"x"], 0)
    assert (file.pread(9, 0), file.size(), file.path) == (b"\0abc", 4, tmp_path / "log")
    file.truncate(2)
    assert file.size() == 2
    file.close()


def test_a_file_system_without_a_write_point_writes_freely(points: FailpointSet, tmp_path: Path) -> None:
    fs = FailpointFileSystem(OsFileSystem(), points, sync_point="hardstate.fdatasync")
    points.set("append.write", "error:EIO")
    file = fs.open(tmp_path / "hard", create=True)
    file.pwritev([b"x"], 0)
    assert file.pread(1, 0) == b"x"


def test_names_go_straight_through(points: FailpointSet, tmp_path: Path) -> None:
    for name in POINTS:
        points.set(name, "error:EIO")
    fs = FailpointFileSystem(OsFileSystem(), points, sync_point="append.fdatasync", write_point="append.write")
    fs.mkdir(tmp_path / "d")
    fs.open(tmp_path / "d" / "a", create=True).close()
    fs.rename(tmp_path / "d" / "a", tmp_path / "d" / "b")
    fs.fsync_dir(tmp_path / "d")
    assert (fs.exists(tmp_path / "d" / "a"), fs.listdir(tmp_path / "d")) == (False, ["b"])
    fs.unlink(tmp_path / "d" / "b")
    assert fs.listdir(tmp_path / "d") == []
    assert fs.free_bytes(tmp_path) > 0
    fs.lock(tmp_path / "lock", "me").close()


class CountingLane:
    """Remembers its batches."""

    idle_after_s = 1.5

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.idles = 0

    def drain(self, batch: Sequence[int]) -> int:
        self.batches.append(list(batch))
        return len(batch)

    def idle(self) -> None:
        self.idles += 1


def test_a_lane_passes_through_its_point(points: FailpointSet, time: FakeTime) -> None:
    inner = CountingLane()
    lane: Any = FailpointLane(inner, points, "apply.batch")  # type: ignore[arg-type]
    points.set("apply.batch", "delay:20ms")
    assert lane.drain([1, 2]) == 2
    assert time.slept == [0.02]
    points.set("apply.batch", "error:EIO")
    with pytest.raises(OSError, match="failpoint"):
        lane.drain([3])
    lane.idle()
    assert (inner.batches, inner.idles, lane.idle_after_s) == ([[1, 2]], 1, 1.5)


class CountingTransport:
    """Remembers what was sent."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    def send(self, messages: Iterable[Message]) -> None:
        self.sent += [message.term for message in messages]


def heartbeat(term: int) -> Message:
    return Heartbeat(NodeId(1), NodeId(2), term, 0, 0)


def test_messages_to_peers_are_held_or_lost(points: FailpointSet) -> None:
    loop, inner = FakeLoop(), CountingTransport()
    transport = FailpointTransport(inner, points, loop)
    transport.send([heartbeat(1)])
    points.set("peer.send", "hold")
    reused = [heartbeat(2)]
    transport.send(reused)
    reused.clear()
    assert inner.sent == [1]
    points.set("peer.send", "error:EIO")
    for callback in loop.soon:
        callback()
    transport.send([heartbeat(3)])
    points.set("peer.send", "off")
    transport.send([heartbeat(4)])
    assert inner.sent == [1, 2, 4]


def test_a_stall_of_the_loop_takes_place_once_for_each_time_that_it_is_set() -> None:
    fake = FakeTime()
    points = FailpointSet(True, sleep=fake.sleep, clock=fake.clock)
    points.stall("loop.turn")
    assert fake.slept == []
    for _ in range(2):
        points.set("loop.turn", "delay:900ms")
        points.stall("loop.turn")
        points.stall("loop.turn")
    assert fake.slept == [0.9, 0.9]
    assert [(each.action, each.hits) for each in points.states() if each.name == "loop.turn"] == [("off", 2)]

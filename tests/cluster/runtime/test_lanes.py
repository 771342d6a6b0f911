"""ThreadLaneRunner: order, batches of what gathered, one report of a failure, close finishes what is queued."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from cluster.replication.append_lane import AppendLane, Persisted, PersistJob, PrepareLane
from cluster.runtime.lanes import ThreadLaneRunner
from raftlog.frame import genesis_entry, make_entry, tail_after
from raftlog.messages import TimeoutNow
from raftlog.types import EMPTY_TAIL, Entry, EntryType, HardState, NodeId
from tests.support.pace import at_most

PATIENCE_S = at_most(20)


class Recorder:
    """A lane that notes its batches; `gate` holds the drain that is under way."""

    def __init__(self, idle_after_s: float | None = None) -> None:
        self.idle_after_s = idle_after_s
        self.batches: list[list[Any]] = []
        self.idles = 0
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.gate.set()

    def drain(self, batch: Sequence[Any]) -> list[Any]:
        self.entered.set()
        assert self.gate.wait(PATIENCE_S)
        self.batches.append(list(batch))
        if "fail" in batch:
            raise OSError("as the test wants")
        return list(batch)

    def idle(self) -> None:
        self.idles += 1


class Running:
    """A runner and what it reported."""

    def __init__(self, lane: Any) -> None:
        self.done: list[Any] = []
        self.failures: list[BaseException] = []
        self.changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.runner = ThreadLaneRunner[Any, Any]("test", lane, loop, self._on_done, self._on_failure)

    def _on_done(self, done: Any) -> None:
        assert threading.current_thread() is threading.main_thread()
        self.done.append(done)
        self.changed.set()

    def _on_failure(self, error: BaseException) -> None:
        self.failures.append(error)
        self.changed.set()

    async def wait(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while sum(map(len, self.done)) + len(self.failures) < count:
                self.changed.clear()
                await self.changed.wait()

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.runner.close)


async def test_what_gathers_is_one_batch_in_order() -> None:
    lane = Recorder()
    lane.gate.clear()
    running = Running(lane)
    running.runner.submit(0)
    assert await asyncio.to_thread(lane.entered.wait, PATIENCE_S)
    for job in range(1, 100):
        running.runner.submit(job)
    lane.gate.set()
    await running.wait(100)
    assert lane.batches == [[0], list(range(1, 100))]
    assert running.done == lane.batches
    await running.close()


async def test_close_finishes_what_is_queued() -> None:
    lane = Recorder()
    lane.gate.clear()
    running = Running(lane)
    for job in range(10):
        running.runner.submit(job)
    closing = asyncio.create_task(running.close())
    await asyncio.sleep(0)
    lane.gate.set()
    await closing
    await running.wait(10)
    assert [job for batch in lane.batches for job in batch] == list(range(10))
    running.runner.submit("too late")
    await running.close()
    assert len(lane.batches) == len(running.done)


async def test_a_failure_is_reported_once_and_final() -> None:
    lane = Recorder()
    running = Running(lane)
    running.runner.submit("fail")
    await running.wait(1)
    running.runner.submit("fail")
    await running.close()
    assert [str(error) for error in running.failures] == ["as the test wants"]
    assert running.done == []
    assert lane.batches == [["fail"]]


async def test_a_failing_idle_is_a_failure_too() -> None:
    lane = Recorder(idle_after_s=0.001)

    def idle() -> None:
        raise OSError("idle")

    lane.idle = idle  # type: ignore[method-assign]
    running = Running(lane)
    await running.wait(1)
    assert [str(error) for error in running.failures] == ["idle"]
    await running.close()


async def test_idle_is_called_once_until_the_next_job() -> None:
    lane = Recorder(idle_after_s=0.001)
    running = Running(lane)
    async with asyncio.timeout(PATIENCE_S):
        while not lane.idles:
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.02)
    assert lane.idles == 1
    running.runner.submit(1)
    await running.wait(1)
    async with asyncio.timeout(PATIENCE_S):
        while lane.idles < 2:
            await asyncio.sleep(0.001)
    await running.close()


def test_a_closed_loop_is_no_error() -> None:
    loop = asyncio.new_event_loop()
    lane = Recorder()
    runner = ThreadLaneRunner[Any, Any]("test", lane, loop, lambda _: None, lambda _: pytest.fail("no failure"))
    loop.close()
    runner.submit(1)
    runner.close()
    assert lane.batches == [[1]]


class Disk:
    """Notes what the append lane does, in order."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.next = True
        self.tail = EMPTY_TAIL

    def append(self, entries: Sequence[Entry]) -> None:
        self.calls.append([entry.index for entry in entries])

    def save(self, hard_state: HardState) -> None:
        self.calls.append(hard_state.term)

    def write_idle_mark(self) -> None:
        self.calls.append("mark")

    def needs_next(self) -> bool:
        return self.next

    def prepare_next(self, *, zeroed: bool, clock: Callable[[], float]) -> None:
        self.calls.append("zeroed" if zeroed else "a hole")
        self.next = False


def entries_of(*terms: int) -> list[Entry]:
    tail = tail_after(EMPTY_TAIL, genesis_entry(b"", timestamp_ms=0, group_id=1))
    made = []
    for term in terms:
        entry = make_entry(
            tail, term=term, entry_type=EntryType.NOOP, payload=b"p", timestamp_ms=0, group_id=1, segment_size=1 << 20
        )
        made.append(entry)
        tail = tail_after(tail, entry)
    return made


def message(term: int) -> TimeoutNow:
    return TimeoutNow(NodeId(1), NodeId(2), term)


def test_append_lane_joins_runs_and_keeps_truncations_apart() -> None:
    """1, 2, then 3, then 2' 3' (a conflict), then 4': one append for what continues, a new one for what overwrites."""
    disk = Disk()
    old, new = entries_of(1, 1, 1), entries_of(1, 2, 2, 2)
    batch = [
        PersistJob(HardState(1, NodeId(1), 0), old[:2], [message(1)]),
        PersistJob(None, old[2:], ()),
        PersistJob(HardState(2, NodeId(2), 0), new[1:3], [message(2)]),
        PersistJob(None, (), [message(3)]),
        PersistJob(None, new[3:], [message(4)]),
    ]
    done = AppendLane(disk, disk, 10).drain(batch)
    assert disk.calls == [2, [1, 2, 3], [2, 3, 4]], "the newest term first, then the frames"
    assert isinstance(done, Persisted)
    assert done.last == new[3].id
    assert done.messages == [message(term) for term in (1, 2, 3, 4)]
    assert (done.jobs, done.bytes_written) == (5, 6 * 65)


def test_append_lane_without_entries() -> None:
    disk = Disk()
    lane = AppendLane(disk, disk, 10)
    done = lane.drain([PersistJob(None, (), [message(1)])])
    assert (done.last, disk.calls) == (None, [])
    lane.idle()
    assert disk.calls == ["mark"]
    assert lane.idle_after_s == 0.01


def test_prepare_lane_prepares_once() -> None:
    disk = Disk()
    lane = PrepareLane(disk)
    lane.drain([True, True])
    lane.drain([True])
    assert disk.calls == ["zeroed"]


def test_prepare_lane_writes_no_zeroes_while_the_log_grows_fast() -> None:
    disk, now = Disk(), [0.0]
    lane = PrepareLane(disk, lambda: now[0])
    for seconds, grown in ((10.0, 64 << 20), (60.0, 64 << 20), (0.0, 1), (5.0, 0)):
        now[0] += seconds
        disk.tail = disk.tail._replace(end_position=disk.tail.end_position + grown)
        disk.next = True
        lane.drain([True])
    assert disk.calls == ["a hole", "zeroed", "a hole", "zeroed"]


@pytest.mark.parametrize(("groups", "made"), [(1, "zeroed"), (2, "zeroed"), (4, "a hole")])
def test_groups_that_share_a_disk_share_what_it_takes_in_zeroes(groups: int, made: str) -> None:
    disk, now = Disk(), [0.0]
    lane = PrepareLane(disk, lambda: now[0], groups_here=lambda: groups)
    now[0] += 40.0
    disk.tail = disk.tail._replace(end_position=disk.tail.end_position + (64 << 20))
    lane.drain([True])
    assert disk.calls == [made]

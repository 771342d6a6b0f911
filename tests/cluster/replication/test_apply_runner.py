"""Apply inline or on the lane: order, one drain at a time, and back to the lane once it was slow."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from cluster.replication import apply_lane
from cluster.replication.append_runner import STALL_BURST_S, STALL_SHARE
from cluster.replication.apply_lane import INLINE_ENTRIES_MAX, Applied, ApplyRunner
from raftlog.errors import ApplyStoppedError
from raftlog.types import Entry, EntryType
from statemachine.broker_state import ApplyRun
from tests.support.node_kit import WINDOW_BYTES, no_ops
from tests.support.wait_until import until


class Lane:
    """Notes on which thread each run was applied."""

    idle_after_s: float | None = None

    def __init__(self) -> None:
        self.seconds = 0.0
        self.seen: list[tuple[int, bool]] = []
        self.draining = 0
        self.gate: threading.Event | None = None
        self.error: Exception | None = None
        self.may_wait = False

    def begins(self, run: list[Entry]) -> bool:
        return self.may_wait

    def drain(self, batch: Sequence[list[Entry]]) -> Applied:
        self.draining += 1
        assert self.draining == 1, "two threads in one lane"
        main = threading.current_thread() is threading.main_thread()
        if self.gate is not None and not main:
            self.gate.wait()
        entries = [entry for run in batch for entry in run]
        self.seen += [(entry.index, main) for entry in entries]
        self.draining -= 1
        if self.error is not None:
            raise self.error
        return Applied(entries, ApplyRun([[] for _ in entries], set()), self.seconds)

    def idle(self) -> None:
        raise AssertionError


def runner_of(lane: Lane) -> tuple[ApplyRunner, list[int], list[BaseException]]:
    done: list[int] = []
    failed: list[BaseException] = []
    loop = asyncio.get_running_loop()
    runner = ApplyRunner("apply", lane, loop, lambda a: done.extend(e.index for e in a.entries), failed.append)
    return runner, done, failed


async def test_a_lone_small_run_is_applied_at_once() -> None:
    lane = Lane()
    runner, done, _ = runner_of(lane)
    runner.submit(no_ops(2))
    assert done == [1, 2]
    assert lane.seen == [(1, True), (2, True)]
    runner.close()


async def test_what_one_client_with_64_in_flight_waits_for_is_small() -> None:
    lane = Lane()
    runner, done, _ = runner_of(lane)
    runner.submit(no_ops(1, size=WINDOW_BYTES))
    assert done == [1]
    assert lane.seen == [(1, True)]
    runner.close()


async def test_a_large_run_and_what_follows_it_go_to_the_lane_in_order() -> None:
    lane = Lane()
    lane.gate = threading.Event()
    runner, done, _ = runner_of(lane)
    made = no_ops(3, size=80_000)
    runner.submit(made[:2])
    runner.submit(made[2:])
    assert done == []
    lane.gate.set()
    await until(lambda: done == [1, 2, 3])
    assert [main for _, main in lane.seen] == [False, False, False]
    runner.submit(no_ops(4)[3:])
    assert lane.seen[-1] == (4, True), "the lane is empty again"
    runner.close()


async def test_a_run_that_waited_a_little_keeps_the_next_ones_on_the_loop() -> None:
    lane = Lane()
    lane.seconds = apply_lane.SLOW_S + STALL_BURST_S / 2
    runner, done, _ = runner_of(lane)
    made = no_ops(2)
    runner.submit(made[:1])
    runner.submit(made[1:])
    assert done == [1, 2]
    assert lane.seen == [(1, True), (2, True)]
    runner.close()


async def test_a_stall_sends_the_next_runs_to_the_lane_until_it_is_paid() -> None:
    lane = Lane()
    owed_s = 0.2
    lane.seconds = apply_lane.SLOW_S + STALL_BURST_S + owed_s * STALL_SHARE
    runner, done, _ = runner_of(lane)
    made = no_ops(3)
    runner.submit(made[:1])
    lane.seconds = 0.0
    runner.submit(made[1:2])
    await until(lambda: done == [1, 2])
    await asyncio.sleep(owed_s + apply_lane.SLOW_S + STALL_BURST_S + owed_s * STALL_SHARE)  # from the stall's end on
    runner.submit(made[2:])
    assert lane.seen == [(1, True), (2, False), (3, True)]
    runner.close()


async def test_runs_that_may_wait_are_applied_together_after_a_while() -> None:
    lane = Lane()
    runner, done, _ = runner_of(lane)
    lane.may_wait = True
    made = no_ops(5)
    runner.submit(made[:1])
    runner.submit(made[1:3])
    assert done == []
    await until(lambda: done == [1, 2, 3])
    runner.submit(made[3:4])
    lane.may_wait = False
    runner.submit(made[4:])
    assert done == [1, 2, 3, 4, 5], "a run that may not wait takes the others along"
    runner.close()


async def test_catching_up_applies_what_is_held_at_once() -> None:
    lane = Lane()
    runner, done, _ = runner_of(lane)
    runner.catch_up()
    lane.may_wait = True
    runner.submit(no_ops(1))
    runner.catch_up()
    runner.catch_up()
    assert (done, lane.seen) == ([1], [(1, True)])
    runner.close()


@pytest.mark.parametrize(("count", "size"), [(INLINE_ENTRIES_MAX + 1, 0), (3, 50_000)])
async def test_no_more_is_held_than_one_step_may_apply(count: int, size: int) -> None:
    lane = Lane()
    runner, done, _ = runner_of(lane)
    lane.may_wait = True
    made = no_ops(count, size=size)
    for entry in made[:-1]:
        runner.submit([entry])
    assert done == []
    runner.submit(made[-1:])
    assert len(done) == count
    runner.close()


async def test_what_is_held_is_applied_before_a_run_that_goes_to_the_lane() -> None:
    lane = Lane()
    runner, done, _ = runner_of(lane)
    lane.may_wait = True
    first, trim = no_ops(2)
    runner.submit([first])
    runner.submit([trim._replace(type=EntryType.TRIM)])
    await until(lambda: len(done) == 2)
    assert lane.seen == [(1, True), (2, False)]
    runner.close()


async def test_nobody_reads_the_state_of_a_node_that_could_not_apply() -> None:
    lane = Lane()
    runner, done, failed = runner_of(lane)
    lane.may_wait = True
    first, second, trim = no_ops(3)
    runner.submit([first])
    lane.error = ValueError("broken")
    for _ in range(2):
        with pytest.raises(ApplyStoppedError, match="ask another node"):
            runner.catch_up()
    assert (done, failed) == ([], [lane.error])
    runner.submit([second])
    lane.error = None
    runner.submit([trim._replace(type=EntryType.TRIM)])
    await asyncio.sleep(0.03)
    assert done == [], "nothing is applied behind an entry that could not be"
    runner.close()


async def test_a_failure_is_told() -> None:
    lane = Lane()
    lane.error = ValueError("broken")
    runner, done, failed = runner_of(lane)
    runner.submit(no_ops(1))
    assert (done, failed) == ([], [lane.error])
    runner.close()


async def test_a_trim_goes_to_the_lane_however_small_it_is() -> None:
    lane = Lane()
    runner, done, _ = runner_of(lane)
    first, trim, last = no_ops(3)
    runner.submit([first])
    runner.submit([trim._replace(type=EntryType.TRIM)])
    await until(lambda: len(done) == 2)
    runner.submit([last])
    assert lane.seen == [(1, True), (2, False), (3, True)]
    runner.close()

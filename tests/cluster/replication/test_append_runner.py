"""Appends on the loop or on the thread: which, in what order, one drain at a time, and what a slow disk may cost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from cluster.replication.append_lane import MARK, RETRY, Persisted, PersistJob
from cluster.replication.append_runner import (
    INLINE_BYTES_MAX,
    SCORE_INLINE,
    SCORE_MAX,
    SLOW_S,
    STALL_BURST_S,
    STALL_SHARE,
    AppendRunner,
    DiskPace,
)
from raftlog.types import FLAG_ROLL, Entry, HardState, NodeId
from tests.support.node_kit import WINDOW_BYTES, no_ops
from tests.support.rows import each_row
from tests.support.wait_until import until


def job(*of: Entry, hard_state: HardState | None = None) -> PersistJob:
    return PersistJob(hard_state, of, ())


MARK_AFTER_S = 0.2
"""Longer than a slow machine takes from the first report, which starts the time, to what a test submits next."""


class Lane:
    """Notes on which thread each job was drained."""

    def __init__(self) -> None:
        self.idle_after_s: float | None = None
        self.seconds = 0.0
        self.parked = ""
        self.seen: list[tuple[Any, bool]] = []
        """(index of the last entry, or the job itself if it has none; whether the loop drained it)."""
        self.draining = 0
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None

    def drain(self, batch: Sequence[PersistJob]) -> Persisted:
        self.draining += 1
        assert self.draining == 1, "two threads in one lane"
        main = threading.current_thread() is threading.main_thread()
        if not main:
            self.gate.wait()
        for each in batch:
            name = (
                "mark" if each is MARK else "retry" if each is RETRY else each.entries[-1].index if each.entries else 0
            )
            self.seen.append((name, main))
        self.draining -= 1
        if self.error is not None:
            raise self.error
        work = [each for each in batch if each is not MARK and each is not RETRY]
        if self.parked:
            return Persisted(None, [], 0, 0, 0.0, self.parked, len(batch))
        return Persisted(None, [], len(work), len(work), self.seconds, "", len(batch))

    def idle(self) -> None:
        raise AssertionError("the thread must not write a mark by itself: the loop may be writing")


class Paced:
    """A Pace that says what the test wants."""

    def __init__(self) -> None:
        self.is_quick = True
        self.inline: list[float] = []

    def quick(self, now_s: float) -> bool:
        return self.is_quick

    def note(self, seconds: float) -> None:
        pass

    def note_inline(self, seconds: float, now_s: float) -> bool:
        self.inline.append(seconds)
        return seconds > SLOW_S


class Running:
    """A runner over a Lane, which has written entry 0 on its thread."""

    def __init__(self, lane: Lane) -> None:
        self.lane, self.pace = lane, Paced()
        self.done: list[Persisted] = []
        self.failed: list[BaseException] = []
        self.told: list[bool] = []
        loop = asyncio.get_running_loop()
        self.runner = AppendRunner(
            "append",
            lane,
            loop,
            self.done.append,
            self.failed.append,
            pace=self.pace,
            on_inline=self.told.append,
        )

    async def begin(self) -> None:
        """Begins with a job that goes to the thread: nobody knows where the log ends."""
        self.runner.submit(job(no_ops(1)[0]))
        await until(lambda: len(self.done) == 1)
        assert self.lane.seen[0] == (1, False)
        self.lane.seen.clear()


async def running(lane: Lane | None = None) -> Running:
    made = Running(lane or Lane())
    await made.begin()
    return made


async def test_a_lone_small_append_is_done_when_submit_returns() -> None:
    run = await running()
    made = no_ops(3)
    run.runner.submit(job(made[1]))
    assert run.lane.seen == [(2, True)]
    assert len(run.done) == 2
    assert run.told == [False]
    run.lane.seconds = SLOW_S * 2
    run.runner.submit(job(made[2]))
    assert run.told == [False, True], "a stall is told"
    run.runner.close()


@each_row("what", ["vote", "conflict", "gap", "roll", "large", "no entries"])
async def test_what_is_not_one_write_and_one_sync_goes_to_the_thread(what: str) -> None:
    run = await running()
    made = no_ops(3, size=10 if what != "large" else INLINE_BYTES_MAX)
    submitted = {
        "vote": job(made[1], hard_state=HardState(2, NodeId(1), 0)),
        "conflict": job(made[0]),
        "gap": job(made[2]),
        "roll": job(made[1]._replace(flags=FLAG_ROLL)),
        "large": job(made[1]),
        "no entries": job(),
    }[what]
    run.runner.submit(submitted)
    await until(lambda: len(run.done) == 2)
    assert [main for _, main in run.lane.seen] == [False]
    run.runner.close()


async def test_what_one_client_with_64_in_flight_waits_for_is_small() -> None:
    run = await running()
    run.runner.submit(job(no_ops(2, size=WINDOW_BYTES)[1]))
    assert run.lane.seen == [(2, True)]
    run.runner.close()


async def test_what_follows_a_job_on_the_thread_waits_for_it_there() -> None:
    run = await running()
    made = no_ops(4)
    run.lane.gate.clear()
    run.pace.is_quick = False
    run.runner.submit(job(made[1]))
    run.pace.is_quick = True
    run.runner.submit(job(made[2]))
    assert len(run.done) == 1
    run.lane.gate.set()
    await until(lambda: sum(done.jobs for done in run.done) == 3)
    assert run.lane.seen == [(2, False), (3, False)]
    run.runner.submit(job(made[3]))
    assert run.lane.seen[-1] == (4, True), "the thread has no work any more"
    run.runner.close()


async def test_jobs_that_were_put_aside_are_not_overtaken() -> None:
    run = await running()
    made = no_ops(5)
    run.lane.parked = "no space"
    run.runner.submit(job(made[1]))
    assert run.done[-1].parked
    run.runner.submit(job(made[2]))
    await until(lambda: len(run.done) == 3)
    assert run.lane.seen == [(2, True), (3, False)]
    run.lane.parked = ""
    run.runner.submit(RETRY)
    run.runner.submit(job(made[3]))
    await until(lambda: run.lane.seen[-1] == (4, False))
    await until(lambda: not run.done[-1].parked)
    run.runner.submit(job(made[4]))
    assert run.lane.seen[-1] == (5, True)
    run.runner.close()


async def test_a_failure_is_told_once_and_nothing_is_written_after_it() -> None:
    run = await running()
    made = no_ops(3)
    run.lane.error = OSError("broken")
    run.runner.submit(job(made[1]))
    run.runner.submit(job(made[2]))
    run.runner.close()
    assert (run.failed, len(run.done)) == ([run.lane.error], 1)
    assert run.lane.seen == [(2, True)]


async def test_the_mark_is_written_by_the_thread_once_nothing_comes() -> None:
    lane = Lane()
    lane.idle_after_s = MARK_AFTER_S
    run = await running(lane)
    run.runner.submit(job(no_ops(2)[1]))
    await until(lambda: ("mark", False) in lane.seen)
    await asyncio.sleep(2 * MARK_AFTER_S)
    assert run.failed == []
    assert [name for name, _ in lane.seen].count("mark") == 1
    assert len(run.done) == 2, "nobody hears of a mark"
    run.runner.submit(job(no_ops(3)[2]))
    await until(lambda: [name for name, _ in lane.seen].count("mark") == 2)
    run.runner.close()


async def test_a_mark_under_way_is_not_met_on_the_loop() -> None:
    lane = Lane()
    lane.idle_after_s = MARK_AFTER_S
    run = await running(lane)
    lane.gate.clear()
    run.runner.submit(job(no_ops(2)[1]))
    await until(lambda: lane.draining == 1)
    run.runner.submit(job(no_ops(3)[2]))
    assert lane.seen == [(2, True)]
    lane.gate.set()
    await until(lambda: (3, False) in lane.seen)
    run.runner.close()


# --- the pace ---------------------------------------------------------------------------------------------------------


def quick_pace() -> DiskPace:
    pace = DiskPace()
    for _ in range(SCORE_MAX):
        pace.note(SLOW_S)
    return pace


def test_a_disk_must_first_prove_that_it_is_quick() -> None:
    pace = DiskPace()
    for _ in range(SCORE_INLINE):
        assert not pace.quick(0.0)
        pace.note(SLOW_S)
    assert pace.quick(0.0)


def test_a_disk_that_becomes_a_little_slow_loses_the_loop_before_the_budget_is_gone() -> None:
    pace = quick_pace()
    drains = 0
    while pace.quick(0.0):
        assert pace.note_inline(SLOW_S * 1.01, 0.0)
        drains += 1
    assert 1 < drains < SCORE_MAX, "a few slow ones are no reason"
    assert drains * SLOW_S * 0.01 < STALL_BURST_S


def test_a_hang_is_met_once_and_paid_for() -> None:
    pace = quick_pace()
    now_s, hang_s = 1000.0, 3.0
    assert pace.note_inline(hang_s, now_s)
    assert not pace.quick(now_s)
    for _ in range(SCORE_MAX):
        pace.note(SLOW_S)
    owed_s = (hang_s - SLOW_S - STALL_BURST_S) / STALL_SHARE
    assert not pace.quick(now_s + owed_s * 0.99)
    assert pace.quick(now_s + owed_s * 1.01)


def test_whatever_the_disk_does_stalls_take_no_more_than_their_share() -> None:
    pace = quick_pace()
    now_s = stalled_s = 0.0
    for drain in range(20_000):
        took_s = 0.004 if drain % 5 == 0 else 0.0001
        now_s += 0.001 + took_s
        if pace.quick(now_s):
            pace.note_inline(took_s, now_s)
            stalled_s += max(0.0, took_s - SLOW_S)
        else:
            pace.note(took_s)
    assert stalled_s > 0, "it was tried"
    assert stalled_s <= now_s * STALL_SHARE + STALL_BURST_S + 0.004


def test_the_budget_does_not_grow_beyond_a_burst() -> None:
    pace = quick_pace()
    pace.note_inline(SLOW_S + STALL_BURST_S / 2, 1e6)
    assert pace.quick(1e6), "within the burst"
    pace.note_inline(SLOW_S + STALL_BURST_S, 1e6)
    assert not pace.quick(1e6), "years without a stall are no licence"

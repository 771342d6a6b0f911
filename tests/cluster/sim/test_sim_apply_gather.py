"""A follower passes committed entries to the apply lane in gathered runs, a leader at once. Nothing is lost when one
becomes the other."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from cluster.replication.raft_driver import APPLY_GATHER_MAX, DriverInbox, DriverLanes, RaftDriver
from raftlog.types import EntryType, NodeId, Role


class _Raw:
    def __init__(self, role: Role) -> None:
        self.role = role
        self.raft = self
        self.applied_index = 0
        self.leader_id = 0


class _Lane:
    def __init__(self) -> None:
        self.runs: list[list[Any]] = []

    def submit(self, job: list[Any]) -> None:
        self.runs.append(job)


def _driver(role: Role) -> tuple[RaftDriver, _Lane]:
    loop, lane, nothing = asyncio.get_running_loop(), _Lane(), cast(Any, None)
    driver = RaftDriver(
        cast(Any, _Raw(role)),
        NodeId(1),
        DriverInbox(loop),
        loop=loop,
        clock=nothing,
        tick_ms=50,
        transport=nothing,
        proposer=nothing,
        flush=nothing,
        lanes=DriverLanes(nothing, cast(Any, lane)),
    )
    return driver, lane


class _Entry(int):
    type: int = EntryType.MESSAGES
    position = 0
    payload = b""


def _committed(driver: RaftDriver, *entries: int) -> None:
    driver._apply_soon([entry if isinstance(entry, _Entry) else _Entry(entry) for entry in entries])  # type: ignore[misc]


async def test_a_leader_passes_entries_on_at_once() -> None:
    driver, lane = _driver(Role.LEADER)
    _committed(driver, 1)
    _committed(driver, 2)
    assert lane.runs == [[1], [2]]


async def test_a_follower_gathers_until_the_timer_or_the_limit() -> None:
    driver, lane = _driver(Role.FOLLOWER)
    most = APPLY_GATHER_MAX
    for entry in range(1, most):
        _committed(driver, entry)
    assert lane.runs == []
    _committed(driver, most)
    assert [entry for run in lane.runs for entry in run] == list(range(1, most + 1)), "the limit"
    _committed(driver, most + 1)
    await asyncio.sleep(0.05)
    assert lane.runs[-1] == [most + 1], "the timer"


async def test_what_a_follower_gathered_goes_before_what_it_applies_as_leader() -> None:
    driver, lane = _driver(Role.FOLLOWER)
    _committed(driver, 1)
    driver.raw.role = Role.LEADER  # type: ignore[misc]
    _committed(driver, 2)
    await asyncio.sleep(0.05)
    assert lane.runs == [[1, 2]]


async def test_a_stopped_node_applies_nothing_more() -> None:
    driver, lane = _driver(Role.FOLLOWER)
    _committed(driver, 1)
    driver.stop()
    await asyncio.sleep(0.05)
    assert lane.runs == []


async def test_a_follower_applies_a_no_op_at_once_for_its_leader_waits() -> None:
    driver, lane = _driver(Role.FOLLOWER)
    _committed(driver, 1)
    no_op = _Entry(2)
    no_op.type = EntryType.NOOP
    _committed(driver, no_op)
    assert lane.runs == [[1, 2]]

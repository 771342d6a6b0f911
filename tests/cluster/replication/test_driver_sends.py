"""A follower that has to wait for another turn of the driver gets one, without any other reason for it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from cluster.replication.raft_driver import DriverInbox, DriverLanes, RaftDriver
from cluster.runtime.clock import SystemClock
from raftlog.types import NodeId, Role


class Raw:
    """A core whose follower needs as many turns as `needs` says."""

    role, leader_id = Role.LEADER, NodeId(1)
    raft = SimpleNamespace(role=Role.LEADER)

    def __init__(self, needs: int) -> None:
        self.turns = 0
        self._needs = needs

    def set_clock(self, wall_ms: int, monotonic_ms: int) -> None:
        self.turns += 1

    @property
    def unsent(self) -> tuple[NodeId, ...]:
        return (NodeId(2),) * (self._needs - self.turns)

    def has_ready(self) -> bool:
        return False


async def test_a_follower_that_waits_for_another_turn_wakes_it() -> None:
    raw, loop = Raw(needs=5), asyncio.get_running_loop()
    nobody: Any = SimpleNamespace()
    driver = RaftDriver(
        raw,  # type: ignore[arg-type]
        NodeId(1),
        DriverInbox(loop),
        loop=loop,
        clock=SystemClock(),
        tick_ms=60_000,
        transport=nobody,
        proposer=nobody,
        flush=lambda raw: None,
        lanes=DriverLanes(nobody, nobody),
    )
    driver.wake()
    for _ in range(20):
        await asyncio.sleep(0)
    assert raw.turns == driver.turns == 5

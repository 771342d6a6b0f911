"""A peer that says what cannot be true loses its connections; the node goes on, and says so."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from cluster.peer.admission import ALARM, Implausible
from cluster.replication.raft_driver import DriverInbox, DriverLanes, RaftDriver
from cluster.runtime.alarms import Alarms
from cluster.runtime.clock import SystemClock
from raftlog.errors import ImplausibleMessageError, InvariantViolationError
from raftlog.messages import Heartbeat
from raftlog.types import NodeId, Role

ONE, TWO = NodeId(1), NodeId(2)


class Raw:
    """A core that believes no commit above 5, and breaks at 3."""

    role, leader_id, unsent = Role.FOLLOWER, TWO, ()
    raft = SimpleNamespace(role=role)

    def __init__(self) -> None:
        self.heard: list[int] = []

    def set_clock(self, wall_ms: int, monotonic_ms: int) -> None:
        pass

    def has_ready(self) -> bool:
        return False

    def step(self, message: Any) -> None:
        if message.commit_index > 5:
            raise ImplausibleMessageError(f"commit index {message.commit_index} is beyond the log")
        if message.commit_index == 3:
            raise InvariantViolationError("our own mistake")
        self.heard.append(message.commit_index)


async def driven(*commits: int) -> tuple[Raw, list[Any], list[BaseException], Alarms]:
    raw, alarms = Raw(), Alarms(lambda: 1)
    cut: list[Any] = []
    ended: list[BaseException] = []
    nobody: Any = SimpleNamespace()
    loop = asyncio.get_running_loop()
    inbox = DriverInbox(loop)
    driver = RaftDriver(
        raw,  # type: ignore[arg-type]
        ONE,
        inbox,
        loop=loop,
        clock=SystemClock(),
        tick_ms=50,
        transport=nobody,
        proposer=SimpleNamespace(on_failure=ended.append),
        flush=lambda raw: None,
        lanes=DriverLanes(nobody, nobody),
    )
    transport: Any = SimpleNamespace(cut_off=lambda peer, why: cut.append((peer, why)))
    driver.implausible.add(Implausible(transport, alarms).note)
    for commit in commits:
        inbox.receive(Heartbeat(TWO, ONE, 1, commit, 0))
    await asyncio.sleep(0.01)
    return raw, cut, ended, alarms


async def test_the_connection_goes_and_the_node_stays() -> None:
    raw, cut, ended, alarms = await driven(1, 1 << 40, 2)
    assert raw.heard == [1, 2], "what was said before and after counts"
    assert cut == [(TWO, f"commit index {1 << 40} is beyond the log")]
    assert not ended
    assert alarms.raised(ALARM)


async def test_a_mistake_of_our_own_ends_the_node() -> None:
    _, cut, ended, _ = await driven(3)
    assert not cut
    assert [str(error) for error in ended] == ["our own mistake"]

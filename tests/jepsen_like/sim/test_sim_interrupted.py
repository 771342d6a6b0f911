"""What ends the simulator itself, Ctrl-C or a test's time-out, ends the run: it is no fault of a node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from cluster.replication.apply_lane import ApplyLane
from jepsen_like.sim.machines.loop import SimLoop
from jepsen_like.sim.scripted import play
from raftlog.core.raw_node import RawNode


class TestTimeOut(BaseException):
    """As pytest's own, it is no Exception."""

    __test__ = False


INTERRUPTIONS = [KeyboardInterrupt, TestTimeOut]


@pytest.mark.parametrize("kind", INTERRUPTIONS)
@pytest.mark.parametrize("place", [(ApplyLane, "drain"), (RawNode, "step")], ids=["a lane", "a turn of the loop"])
def test_an_interruption_inside_a_node_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, place: tuple[type, str], kind: type[BaseException]
) -> None:
    owner, name = place
    real, calls = getattr(owner, name), 0

    def interrupted(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 20:
            raise kind
        return real(*arguments)

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(kind):
        play("nodes 3\nlead 1\nload 0.5\nsettle\n")
    assert calls >= 20


def at_once(loop: SimLoop, act: Callable[[], None]) -> None:
    loop.call_soon(act)


def in_a_task(loop: SimLoop, act: Callable[[], None]) -> None:
    async def task() -> None:
        await asyncio.sleep(1)
        await asyncio.get_running_loop().run_in_executor(None, act)

    loop.create_task(task())


@pytest.mark.parametrize(
    ("begin", "kind"), [(at_once, KeyboardInterrupt), (at_once, TestTimeOut), (in_a_task, KeyboardInterrupt)]
)
def test_it_is_raised_where_the_loop_runs(
    begin: Callable[[SimLoop, Callable[[], None]], None], kind: type[BaseException]
) -> None:
    def act() -> None:
        raise kind

    loop = SimLoop(100)
    begin(loop, act)
    with pytest.raises(kind):
        loop.run_forever()
    assert loop.errors == []
    loop.bury([])

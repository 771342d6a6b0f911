"""After a long turn of the loop its sockets are read before silence is judged, on either loop; and clocks that stop."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from cluster.runtime.turns.stalled_loop import AWAKE_MS, SilenceTimer, behind_sockets
from cluster.runtime.turns.stalled_loop import AwakeClock as Awake
from tests.support.node_kit import Clock

STALL_S = 0.1


class Stalled:
    """A loop with one turn that takes long. While it does, `said` is said to this process, and a timer comes due."""

    def __init__(self, make: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.loop = make()
        self.order: list[str] = []
        self.near, self._far = socket.socketpair()
        self.begin, self._begins = socket.socketpair()
        self.heard: Callable[[], object] = lambda: None
        for each in (self.near, self.begin):
            each.setblocking(False)

    def run(self, judge: Callable[[Stalled], object]) -> list[str]:
        self.loop.add_reader(self.near, self._read)
        self.loop.add_reader(self.begin, self._stall, judge)
        self._begins.send(b"x")
        try:
            self.loop.run_forever()
        finally:
            for each in (self.near, self.begin):
                self.loop.remove_reader(each)
            self.loop.close()
            for each in (self.near, self._far, self.begin, self._begins):
                each.close()
        return self.order

    def _stall(self, judge: Callable[[Stalled], object]) -> None:
        self.begin.recv(10)
        judge(self)
        self._far.send(b"x")
        time.sleep(STALL_S)

    def _read(self) -> None:
        self.near.recv(10)
        self.order.append("heard")
        self.heard()
        self.loop.call_later(0.05, self.loop.stop)

    def judge(self) -> None:
        self.order.append("judged")


LOOPS = pytest.mark.parametrize("make", [uvloop.new_event_loop, asyncio.SelectorEventLoop])


@LOOPS
def test_a_judge_behind_the_sockets_comes_after_what_they_hold(make: Callable[[], Any]) -> None:
    def begin(stalled: Stalled) -> None:
        stalled.loop.call_later(STALL_S / 2, behind_sockets, stalled.loop, stalled.judge)

    assert Stalled(make).run(begin) == ["heard", "judged"]


def test_without_that_uvloop_lets_it_judge_first() -> None:
    """If this fails uvloop polls before it runs timers, and nobody needs to go behind the sockets any more."""

    def begin(stalled: Stalled) -> None:
        stalled.loop.call_later(STALL_S / 2, stalled.loop.call_soon, stalled.judge)

    assert Stalled(uvloop.new_event_loop).run(begin) == ["judged", "heard"]


@LOOPS
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_timer_of_silence_can_be_cancelled_by_what_lay_in_the_sockets(
    make: Callable[[], Any], cancelled: bool
) -> None:
    def begin(stalled: Stalled) -> None:
        timer = SilenceTimer(stalled.loop, STALL_S / 2, stalled.judge)
        stalled.heard = timer.cancel if cancelled else lambda: None

    assert Stalled(make).run(begin) == ["heard"] + ["judged"] * (not cancelled)


def test_the_clock_of_a_node_that_stands_still_stands_still() -> None:
    clock = Clock()
    awake = Awake(clock)
    for clock.now_ms in range(0, 1001, 50):
        awake.tick(clock.now_ms)
    assert awake.now_ms() == 1000
    clock.now_ms += 60_000
    assert awake.now_ms() == 1000 + AWAKE_MS, "also before the first look"
    awake.tick(clock.now_ms)
    assert awake.now_ms() == 1000 + AWAKE_MS
    clock.now_ms += 50
    assert awake.now_ms() == 1050 + AWAKE_MS

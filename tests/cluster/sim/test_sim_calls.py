"""The cost of a send in calls: a clock on a busy machine does not see 5 %, and a count in virtual time is exact.

A check that is added to the way of every request or message shows here, before a benchmark on a quiet machine shows it.
The nodes' other work in that time (ticks, heartbeats, chores) is measured beside it and does not count.
Raise a budget only for something that is worth it, and say so in docs/performance.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import cluster
from raftmq.commands.bench_load import batch_body, request_frame
from raftmq_wire import kernel
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import LEVEL
from tests.support.kernels import native_kernel
from tests.support.sim_cluster import SimCluster

ROOT = Path(cluster.__file__).parents[1]
PRODUCT = tuple(str(ROOT / package) for package in ("cluster", "raftlog", "raftmq_wire", "statemachine"))
OF_THE_DISK = str(ROOT / "statemachine" / "rows" / "digest.py")
"""What the simulated store calls to check itself; RocksDB does not."""
SENDS = 50
PYTHON_CHOSEN = f"{kernel.VARIABLE}=python"


class Calls:
    """Counts calls of the product's Python functions, all nodes together."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Calls:
        sys.setprofile(self._on)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.setprofile(None)

    def _on(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and (file := frame.f_code.co_filename).startswith(PRODUCT) and file != OF_THE_DISK:
            self.count += 1


def send(sim: SimCluster, path: Any, opaque: int, batch: int) -> None:
    """One request of `batch` messages, until it is answered."""
    body = batch_body(1024, batch) if batch > 1 else bytes(1024)
    answers: list[int] = []

    def answered(_: int, code: int, remark: str) -> None:
        answers.append(code)
        sim.loop.stop()

    path.on_reply = answered
    path.ask(request_frame("bench", opaque, opaque % 4, batch, body, ""))
    while not answers:
        sim.loop.run_forever()
    assert answers == [0]


@pytest.mark.skipif(kernel.WHY == PYTHON_CHOSEN, reason="the budgets are those of the native kernel's short way")
@pytest.mark.parametrize(
    ("batch", "inline", "thrifty", "budget"),
    [(1, 0.0, "off", 482), (1, 1.0, "off", 475), (1, 1.0, "on", 411), (100, 0.0, "off", 597)],
)
def test_a_send_costs_no_more_calls_than_its_budget(batch: int, inline: float, thrifty: str, budget: int) -> None:
    """`inline` 1: on a quick disk, where a lone message needs no other thread."""
    native_kernel()
    with SimCluster(7, segment_size=1 << 24, inline=inline, **{"replication.thrifty": thrifty}) as sim:
        sim.propose(sim.leader(), Finalize(LEVEL))  # as in every new cluster
        sim.create_topic("bench", 4)
        path = sim.leader().connect()
        for opaque in range(SENDS):
            send(sim, path, opaque, batch)
        began_s = sim.loop.now
        with Calls() as calls:
            for opaque in range(SENDS, 2 * SENDS):
                send(sim, path, opaque, batch)
        with Calls() as idle:
            sim.loop.run_for(sim.loop.now - began_s)
    assert (calls.count - idle.count) / SENDS <= budget, "all nodes together: what is new on the way of a send?"

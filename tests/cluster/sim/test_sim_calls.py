"""The cost of a send in calls: a clock on a busy machine does not see 5 %, and a count in virtual time is exact.

A check that is added to the way of every request or message shows here, before a benchmark on a quiet machine shows it.
The nodes' other work in that time (ticks, heartbeats, chores) is measured beside it and does not count.
Raise a budget only for something that is worth it, and say so in docs/performance.md.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import FrameType
from typing import cast

import pytest

import cluster
from jepsen_like.sim.machines.loop import Process
from jepsen_like.sim.machines.machine import BROKER_PORT, host_of
from jepsen_like.sim.machines.network import Endpoint
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
LOOPBACK_S = (0.0001, 0.0002)
"""With this, a message at 1 in flight takes 0.6 ms as on one machine, and entries are gathered as they are there."""
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

    def _on(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and (file := frame.f_code.co_filename).startswith(PRODUCT) and file != OF_THE_DISK:
            self.count += 1


class Producer(asyncio.Protocol):
    """A client on a connection of the simulated network, with one request in flight."""

    def __init__(self, sim: SimCluster) -> None:
        self._loop = sim.loop
        self._process = Process("client", "10.0.1.1")
        leader = host_of(sim.leader().node_id)
        opened = self._process.run(sim.loop.create_task, sim.network.connect(lambda: self, leader, BROKER_PORT))
        sim.loop.run_until(opened.done, 1.0)
        self._transport = cast(Endpoint, opened.result()[0])
        self._opaque = 0

    def data_received(self, data: bytes) -> None:
        assert data.count(b'"code":0,') == 1
        self._loop.stop()

    def send(self, batch: int) -> None:
        """Sends one request of `batch` messages, and returns when it is answered."""
        self._opaque += 1
        body = batch_body(1024, batch) if batch > 1 else bytes(1024)
        frame = request_frame("bench", self._opaque, self._opaque % 4, batch, body, "")
        self._process.run(self._transport.write, frame)
        self._loop.run_forever()


@pytest.mark.skipif(kernel.WHY == PYTHON_CHOSEN, reason="the budgets are those of the native kernel's short way")
@pytest.mark.parametrize(
    ("batch", "inline", "thrifty", "budget"),
    [(1, 0.0, "off", 436), (1, 1.0, "off", 350), (1, 1.0, "on", 272), (100, 0.0, "off", 550)],
)
def test_a_send_costs_no_more_calls_than_its_budget(batch: int, inline: float, thrifty: str, budget: int) -> None:
    """`inline` 1: on a quick disk, where a lone message needs no other thread."""
    native_kernel()
    options = {"replication.thrifty": thrifty}
    with SimCluster(7, segment_size=1 << 24, inline=inline, latency_s=LOOPBACK_S, **options) as sim:
        sim.propose(sim.leader(), Finalize(LEVEL))  # as in every new cluster
        sim.create_topic("bench", 4)
        producer = Producer(sim)
        for _ in range(SENDS):
            producer.send(batch)
        began_s = sim.loop.now
        with Calls() as calls:
            for _ in range(SENDS):
                producer.send(batch)
        with Calls() as idle:
            sim.loop.run_for(sim.loop.now - began_s)
    assert (calls.count - idle.count) / SENDS <= budget, "all nodes together: what is new on the way of a send?"

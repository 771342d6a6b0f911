"""The path of a message through one node and nothing else: requests in, the entry, its apply, answers out.

A real node on the simulator's loop: its disk and rows are in memory, it has no peers, and time is virtual, so two runs
of the same code do the same. `bench_instructions.py` counts what each stage here costs.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from typing import Any, cast

from jepsen_like.sim.loop import Process, SimLoop
from jepsen_like.sim.machine import BROKER_PORT, Machine, host_of
from jepsen_like.sim.network import EdgeConditions, Endpoint, Network
from jepsen_like.sim.options import draw, stream
from raftlog.types import NodeId
from raftmq.commands.bench_load import batch_body, request_frame

STAGES = {
    "send, 1 in flight": (1, 1, 100),
    "send, 64": (64, 1, 24),
    "send, 512": (512, 1, 4),
    "batch of 100": (4, 100, 4),
}
"""Name -> requests in flight, messages per request, rounds."""
TOPIC = "bench"
BODY_BYTES = 1024


class Unwatched:
    """A `Watcher` that does nothing, except that a node which fails ends the run."""

    def broken(self, what: str, error: BaseException) -> None:
        """See Watcher."""
        raise SystemExit(f"{what}: {error}")

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class Client(asyncio.Protocol):
    """Counts answers; what they say is looked at once, in the first round."""

    def __init__(self) -> None:
        self.missing = 0
        self.seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See Protocol."""
        self.transport = cast(Endpoint, transport)

    def data_received(self, data: bytes) -> None:
        """See Protocol."""
        self.seen = data
        self.missing -= data.count(b'"opaque":')
        if self.missing <= 0:
            asyncio.get_running_loop().stop()


def stages() -> Iterator[tuple[str, int]]:
    """Runs one stage after the other; yields its name and its number of messages when it is over."""
    options = draw(0)._replace(
        nodes=1,
        segment_size=16 << 20,
        latency_s=(0.0001, 0.0001),
        split=0.0,
        disk_s=(0.0001, 0.0001),
        apply_s=(0.0001, 0.0001),
        apply_inline=1.0,
        append_bytes_max=1 << 20,
        batch_bytes_max=1 << 20,
        batch_messages_max=4096,
        batches_inflight_max=4,
        node_inflight_bytes_max=128 << 20,
        retained_bytes=0,
        retained_ms=0,
        remakes=0,
        flush_async=0,
        memory_pool=0,
        stepped=0.0,
        hostile=0,
        event_budget=1 << 40,
    )
    loop = SimLoop(options.event_budget)
    asyncio.set_event_loop(loop)
    network = Network(loop, EdgeConditions(stream(0, "network"), options.latency_s, options.split))
    machine = Machine(NodeId(1), options, loop, network, cast(Any, Unwatched()))
    machine.start()
    process = Process("client", "10.0.1.1")

    def pass_time(seconds: float) -> None:
        loop.call_outside(seconds, loop.stop)
        loop.run_forever()

    pass_time(5.0)  # an election
    task = process.run(loop.create_task, network.connect(Client, host_of(1), BROKER_PORT))
    pass_time(0.1)
    client: Client = task.result()[1]

    def rounds(in_flight: int, batch: int, count: int) -> None:
        body = batch_body(BODY_BYTES, batch) if batch > 1 else bytes(BODY_BYTES)
        requests = b"".join(request_frame(TOPIC, opaque, opaque % 4, batch, body) for opaque in range(in_flight))
        for _ in range(count):
            client.missing = in_flight
            process.run(client.transport.write, requests)
            loop.run_forever()

    rounds(1, 1, 1)  # makes the topic
    if b'"code":0,' not in client.seen:
        raise SystemExit(f"refused: {client.seen!r}")
    for in_flight, batch, _ in STAGES.values():
        rounds(in_flight, batch, 1)
    gc.collect()
    yield "warm-up", 0
    for name, (in_flight, batch, count) in STAGES.items():
        rounds(in_flight, batch, count)
        yield name, in_flight * batch * count


if __name__ == "__main__":
    for stage, messages in stages():
        os.getppid()  # where callgrind ends one part of its counts and begins the next
        print(stage, messages, sep="\t", flush=True)

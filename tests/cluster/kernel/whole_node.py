"""A node alone in a simulated world, run as a process: reads of a client in, its answers and the log's bytes out.

A line of JSON each way: ["70d1...", ...], the reads of one connection in hex; {"answers": ..., "closed": ...,
"log": ...}, what that client got, whether it was hung up on, and the entries that were appended meanwhile. Which kernel
the node has is the environment's choice; nothing else differs between two such processes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from typing import Any, cast

from cluster import kernel
from jepsen_like.sim.loop import Process, SimLoop
from jepsen_like.sim.machine import BROKER_PORT, Machine, host_of
from jepsen_like.sim.network import EdgeConditions, Endpoint, Network
from jepsen_like.sim.options import Options, draw, stream
from raftlog.types import NodeId

ELECTED_S, CONNECTED_S, SETTLED_S = 5.0, 0.01, 0.2


class Unwatched:
    """A `Watcher` that does nothing, except that a node which fails ends the process."""

    def broken(self, what: str, error: BaseException) -> None:
        """See Watcher."""
        raise SystemExit(f"{what}: {error!r}")

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class Client(asyncio.Protocol):
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.answers = b""
        self.closed = False

    def data_received(self, data: bytes) -> None:
        self.answers += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True


class Lone:
    """A node that leads alone."""

    def __init__(self) -> None:
        options = lone_options()
        self._loop = SimLoop(options.event_budget)
        asyncio.set_event_loop(self._loop)
        self._network = Network(self._loop, EdgeConditions(stream(0, "network"), options.latency_s, options.split))
        self._machine = Machine(NodeId(1), options, self._loop, self._network, cast(Any, Unwatched()))
        self._machine.start()
        self._process = Process("client", "10.0.1.1")
        self._pass_time(ELECTED_S)
        self._next = self._tail() + 1

    def _pass_time(self, seconds: float) -> None:
        self._loop.call_outside(seconds, self._loop.stop)
        self._loop.run_forever()

    def _tail(self) -> int:
        assert self._machine.node is not None, "the node has ended"
        return self._machine.node.storage.directory.log.state.tail.index

    def ask(self, reads: Sequence[bytes]) -> dict[str, Any]:
        """One connection sends these, each as a segment of its own."""
        task = self._process.run(self._loop.create_task, self._network.connect(Client, host_of(1), BROKER_PORT))
        self._pass_time(CONNECTED_S)
        endpoint, client = cast("tuple[Endpoint, Client]", task.result())
        for read in reads:
            if not endpoint.is_closing():
                self._process.run(endpoint.write, read)
                self._pass_time(CONNECTED_S)
        self._pass_time(SETTLED_S)
        closed = client.closed
        self._process.run(endpoint.close)
        self._pass_time(CONNECTED_S)
        return {"answers": client.answers.hex(), "closed": closed, "log": self._appended().hex()}

    def _appended(self) -> bytes:
        first, last = self._next, self._tail()
        self._next = last + 1
        assert self._machine.node is not None
        entries = (
            self._machine.node.storage.directory.log.read_entries(first, last + 1, 1 << 60) if last >= first else []
        )
        return b"".join(entry.header + entry.payload for entry in entries)


def lone_options() -> Options:
    """One node on which nothing happens that nobody asked for."""
    return draw(0)._replace(
        nodes=1,
        segment_size=4 << 20,
        latency_s=(0.0001, 0.0001),
        split=0.0,
        disk_s=(0.0001, 0.0001),
        apply_s=(0.0001, 0.0001),
        apply_inline=1.0,
        retained_bytes=0,
        retained_ms=0,
        remakes=0,
        flush_async=0,
        memory_pool=0,
        stepped=0.0,
        hostile=0,
        event_budget=1 << 40,
    )


def main() -> None:
    """Answers each line of stdin on stdout; the first line tells the kernel."""
    logging.disable()
    lone = Lone()
    print(json.dumps({"kernel": kernel.NAME}), flush=True)  # noqa: T201
    for line in sys.stdin:
        print(json.dumps(lone.ask([bytes.fromhex(read) for read in json.loads(line)])), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

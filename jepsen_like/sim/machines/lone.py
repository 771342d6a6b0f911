"""A lone node: it leads, nothing happens that was not asked for, and the caller lets time pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from jepsen_like.sim.machines.loop import Process, SimLoop
from jepsen_like.sim.machines.machine import BROKER_PORT, Machine, config_of, host_of
from jepsen_like.sim.machines.network import EdgeConditions, Endpoint, Network
from jepsen_like.sim.options import Options, draw, stream
from raftlog.types import NodeId

if TYPE_CHECKING:
    from cluster.config.config import Config

ELECTED_S = 5.0
_Client = TypeVar("_Client", bound=asyncio.Protocol)


class Unwatched:
    """A `Watcher` that does nothing, except that a node which fails ends the run."""

    def broken(self, what: str, error: BaseException) -> None:
        """Ends the run with SystemExit, as the node failed."""
        raise SystemExit(f"{what}: {error!r}")

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class LoneNode:
    """Raises SystemExit when the node fails."""

    def __init__(self, options: Options, change: Callable[[Config], Config] = lambda config: config) -> None:
        """`change`: of the configuration that these options make."""
        self.loop = SimLoop(options.event_budget)
        asyncio.set_event_loop(self.loop)
        self._network = Network(self.loop, EdgeConditions(stream(0, "network"), options.latency_s, options.split))
        config = change(config_of(NodeId(1), options))
        self.machine = Machine(NodeId(1), options, self.loop, self._network, cast(Any, Unwatched()), config)
        self.machine.start()
        self.client = Process("client", "10.0.1.1")
        self.pass_time(ELECTED_S)

    def pass_time(self, seconds: float) -> None:
        """Lets the node work for so many seconds."""
        self.loop.call_outside(seconds, self.loop.stop)
        self.loop.run_forever()

    def connect(self, make: Callable[[], _Client], seconds: float) -> tuple[Endpoint, _Client]:
        """A client's connection, which takes so long at most."""
        task = self.client.run(self.loop.create_task, self._network.connect(make, host_of(1), BROKER_PORT))
        self.pass_time(seconds)
        return cast("tuple[Endpoint, _Client]", task.result())


def lone_options(**changes: Any) -> Options:
    """One node, without faults, and with delays that are all alike; `changes` are made to that."""
    quiet: dict[str, Any] = {
        "nodes": 1,
        "latency_s": (0.0001, 0.0001),
        "split": 0.0,
        "disk_s": (0.0001, 0.0001),
        "apply_s": (0.0001, 0.0001),
        "apply_inline": 1.0,
        "retained_bytes": 0,
        "retained_ms": 0,
        "remakes": 0,
        "flush_async": 0,
        "memory_pool": 0,
        "stepped": 0.0,
        "hostile": 0,
        "event_budget": 1 << 40,
    }
    return draw(0)._replace(**quiet | changes)

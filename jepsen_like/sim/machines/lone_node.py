"""A single simulated node, which is the leader. It gets only the caller's requests, and virtual time passes only when
the caller lets it pass."""

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
    """A `MachineWatcher` that ignores everything, except that a failing node ends the run."""

    def broken(self, what: str, error: BaseException) -> None:
        """Ends the run by raising SystemExit, because the node failed."""
        raise SystemExit(f"{what}: {error!r}")

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class LoneNode:
    """One node that runs alone in a simulated network. Raises SystemExit when the node fails."""

    def __init__(self, options: Options, change: Callable[[Config], Config] = lambda config: config) -> None:
        """Starts the node and waits until it leads. `change` alters the configuration that the options yield."""
        self.loop = SimLoop(options.event_budget)
        asyncio.set_event_loop(self.loop)
        self._network = Network(self.loop, EdgeConditions(stream(0, "network"), options.latency_s, options.split))
        config = change(config_of(NodeId(1), options))
        self.machine = Machine(NodeId(1), options, self.loop, self._network, cast(Any, Unwatched()), config)
        self.machine.start()
        self.client = Process("client", "10.0.1.1")
        self.pass_time(ELECTED_S)

    def pass_time(self, seconds: float) -> None:
        """Runs the event loop for this many seconds of virtual time."""
        self.loop.call_outside(seconds, self.loop.stop)
        self.loop.run_forever()

    def close(self) -> None:
        """Ends the node and its client without an orderly stop, and closes the event loop."""
        self.machine.abandon()
        self.loop.bury([*self.machine.processes, self.client])
        asyncio.set_event_loop(None)

    def connect(self, make: Callable[[], _Client], seconds: float) -> tuple[Endpoint, _Client]:
        """Opens a client's connection to the node and returns its transport and protocol. Lets `seconds` of virtual
        time pass; raises asyncio.InvalidStateError if the connection is not open by then, OSError if it fails."""
        task = self.client.run(self.loop.create_task, self._network.connect(make, host_of(1), BROKER_PORT))
        self.pass_time(seconds)
        return cast("tuple[Endpoint, _Client]", task.result())


def lone_options(**changes: Any) -> Options:
    """Returns the options of a single node without faults and with constant delays, altered by `changes`."""
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

"""Ends a simulated run, so that nothing of it is left to the garbage collector."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from jepsen_like.sim.machines.loop import Process, SimLoop
from jepsen_like.sim.machines.machine import Machine
from jepsen_like.sim.machines.network import Network


def end_run(loop: SimLoop, network: Network, machines: Collection[Machine], clients: Sequence[Process] = ()) -> None:
    """Ends everything that still runs, and clears the attributes of nodes and processes: a request in flight is
    invisible to the garbage collector and would keep its node alive."""
    processes = [process for machine in machines for process in machine.processes] + list(clients)
    for machine in machines:
        machine.abandon()
    loop.bury(processes)
    for machine in machines:
        for node in machine.nodes:
            for part in (*vars(node).values(), node):
                if type(part).__module__.startswith("cluster.") and hasattr(part, "__dict__"):
                    vars(part).clear()
    for process in processes:
        process.tasks.clear()
    loop.loose.clear()
    loop.network = None
    vars(network).clear()

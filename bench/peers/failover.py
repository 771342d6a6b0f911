"""Measures for how long no send is acknowledged when the leader of a loaded cluster is killed (kill -9), hangs
(SIGSTOP) or, in `bench.peers.cut`, loses its network.

The leader has 512 messages in flight. From the moment of the fault on, every PROBE_EVERY_S seconds, a new connection to
each other node sends one message; the first one that is acknowledged ends the measurement. Timeouts are the system's
own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import uvloop

from bench.peers import loads
from bench.peers.rounds import wait_for_leader
from bench.peers.system import Load, Node, System

PROBE_EVERY_S = 0.01
PATIENCE_S = 60.0
"""Seconds without an acknowledged send after which a measurement ends without a failover."""
CALM_S = 5.0
"""Seconds between the return of a node and the next fault, beyond the time that the node needs to return."""
LOADED_S = 1.5


class Fault(NamedTuple):
    """A fault of a leader, with the function that causes it and the one that ends it."""

    name: str
    strike: Callable[[Node], None]
    heal: Callable[[Node], None]


def of_processes(system: System) -> list[Fault]:
    """Returns the faults that affect the process of a node: a kill and a pause."""

    def start_again(node: Node) -> None:
        system.processes.reap(node.pid)
        system.restart(node)

    def kill(node: Node) -> None:
        system.processes.kill(node.pid)

    def pause(node: Node) -> None:
        system.processes.pause(node.pid)

    def resume(node: Node) -> None:
        system.processes.resume(node.pid)

    return [Fault("kill -9", kill, start_again), Fault("SIGSTOP", pause, resume)]


def once(system: System, fault: Fault) -> float:
    """Causes one fault under load; returns the seconds to the first acknowledged send at another node. All nodes run
    again afterwards.

    Raises OSError (TimeoutError if no send was acknowledged), NoLeader if there was no leader before or after.
    """
    leader = wait_for_leader(system)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_struck(system, leader, fault))
    finally:
        fault.heal(leader)
        wait_until_back(system, leader.number)
        time.sleep(CALM_S)
        wait_for_leader(system)


def wait_until_back(system: System, number: int) -> None:
    """Returns when the node answers a send, with success or a refusal. Raises TimeoutError after PATIENCE_S."""
    until = time.monotonic() + PATIENCE_S
    while not loads.answers(system, system.nodes[number]):
        if time.monotonic() > until:
            raise TimeoutError(f"node {number} is not back after {PATIENCE_S:.0f} s")
        time.sleep(0.2)


def repeated(
    system: System,
    times: int,
    faults: Sequence[Fault],
    tell: Callable[[str], None],
    measure: Callable[[System, Fault], float] = once,
) -> list[dict[str, object]]:
    """Calls `measure` `times` times for every fault. Returns a row per fault, whose "seconds" lists the results. The
    first failure ends the measurements; the field "error" of the last row then says why."""
    found: list[dict[str, object]] = []
    for fault in faults:
        seconds: list[float] = []
        found.append({"system": system.traits.name, "fault": fault.name, "seconds": seconds})
        for number in range(times):
            tell(f"failover {number + 1} of {times}: {system.traits.name}, {fault.name}")
            try:
                seconds.append(round(measure(system, fault), 3))
            except Exception as error:  # noqa: BLE001 - as in rounds.attempt
                found[-1]["error"] = f"{type(error).__name__}: {error}"
                tell(f"{system.traits.name} failed: {found[-1]['error']}")
                return found
    return found


async def _struck(system: System, leader: Node, fault: Fault) -> float:
    """Puts the leader under load, causes the fault, and waits until another node acknowledges a send; returns the
    seconds from the fault to the acknowledgement."""
    others = [node for node in system.nodes if node != leader]
    async with loads.running(system.generator, leader, Load(1024, 1, 512, PATIENCE_S)) as generator:
        await asyncio.sleep(LOADED_S)
        if not generator.acked:
            raise ConnectionError(f"nothing was acknowledged before the {fault.name}")
        began = time.monotonic()
        fault.strike(leader)
        return await first_acknowledged(system, others) - began


async def first_acknowledged(system: System, nodes: Sequence[Node], patience_s: float = PATIENCE_S) -> float:
    """Returns the time (time.monotonic) at which one of the nodes acknowledged a send. Raises TimeoutError after
    `patience_s`.
    """
    loop = asyncio.get_running_loop()
    first: asyncio.Future[float] = loop.create_future()
    probes: set[asyncio.Task[None]] = set()

    async def probe(node: Node) -> None:
        if await loads.acknowledges(system, node, patience_s) and not first.done():
            first.set_result(time.monotonic())

    try:
        async with asyncio.timeout(patience_s):
            while not first.done():
                for node in nodes:
                    task = loop.create_task(probe(node))
                    probes.add(task)
                    task.add_done_callback(probes.discard)
                await asyncio.wait([first], timeout=PROBE_EVERY_S)
        return first.result()
    finally:
        for task in list(probes):
            task.cancel()
        await asyncio.gather(*probes, return_exceptions=True)

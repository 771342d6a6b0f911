"""How long no send is acknowledged when the leader of a loaded cluster is killed (kill -9) or hangs (SIGSTOP).

The leader has 512 messages in flight. From the moment of the fault on, every PROBE_EVERY_S a new connection to each
other node sends one message; the first that is acknowledged ends the measurement. Timeouts are the system's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence

import uvloop

from bench.peers import loads
from bench.peers.rounds import wait_for_leader
from bench.peers.system import Load, Node, System

KILL, STOP = "kill -9", "SIGSTOP"
FAULTS = (KILL, STOP)
PROBE_EVERY_S = 0.01
PATIENCE_S = 60.0
"""Without an acknowledged send for so long, there is no failover."""
CALM_S = 5.0
"""Between the return of a node and the next fault, beside what the node needs to be there again."""
LOADED_S = 1.5


def once(system: System, fault: str) -> float:
    """One fault under load: seconds to the first acknowledged send at another node. All nodes run again afterwards.

    Raises TimeoutError if there was none, NoLeader if no leader was there before or after.
    """
    leader = wait_for_leader(system)
    others = [node for node in system.nodes if node != leader]
    load = threading.Thread(target=_load, args=(system, leader), daemon=True)
    load.start()
    time.sleep(LOADED_S)
    began = time.monotonic()
    if fault == KILL:
        system.processes.kill(leader.pid)
    else:
        system.processes.pause(leader.pid)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            took = runner.run(first_acknowledged(system, others)) - began
    finally:
        if fault == KILL:
            system.processes.reap(leader.pid)
            system.restart(leader)
        else:
            system.processes.resume(leader.pid)
        load.join(loads.PATIENCE_S)
    time.sleep(CALM_S)
    wait_for_leader(system)
    return took


def repeated(system: System, times: int, tell: Callable[[str], None]) -> list[dict[str, object]]:
    """Every fault that many times; see `once` for errors."""
    found: list[dict[str, object]] = []
    for fault in FAULTS:
        seconds: list[float] = []
        for number in range(times):
            tell(f"failover {number + 1} of {times}: {system.traits.name}, {fault}")
            seconds.append(round(once(system, fault), 3))
        found.append({"system": system.traits.name, "fault": fault, "seconds": seconds})
    return found


async def first_acknowledged(system: System, nodes: Sequence[Node]) -> float:
    """When (time.monotonic) one of the nodes acknowledged a send. Raises TimeoutError after PATIENCE_S."""
    loop = asyncio.get_running_loop()
    first: asyncio.Future[float] = loop.create_future()
    probes: set[asyncio.Task[None]] = set()

    async def probe(node: Node) -> None:
        if await loads.acknowledges(system, node, PATIENCE_S) and not first.done():
            first.set_result(time.monotonic())

    try:
        async with asyncio.timeout(PATIENCE_S):
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


def _load(system: System, leader: Node) -> None:
    with contextlib.suppress(OSError):  # it ends when its leader does
        loads.run(system, leader, Load(1024, 1, 512, PATIENCE_S + 2 * LOADED_S))

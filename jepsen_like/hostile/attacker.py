"""The process that attacks. It is separate from the honest clients, so that its own cost is not mistaken for the
nodes'.

It reads one line of JSON (Orders) and attacks until its standard input ends; it reports each round as a line of JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from jepsen_like.hostile.attack import BULK_TOPIC, EVERY_S, GROUP, ORDER_GROUPS, QUEUES, TOPIC, Arena, Attack, Report
from jepsen_like.hostile.attacks import ATTACKS
from jepsen_like.hostile.request_fields import group_body, send_fields, topic_fields
from jepsen_like.hostile.wire import Target, Wire
from raftmq_wire.codes import RequestCode

AT_ONCE = 2
"""The most rounds of one attack that may overlap, if a node takes longer than the time between two."""
_BULK_MESSAGE, _BULK_MESSAGES = 256 << 10, 64


class Orders(msgspec.Struct):
    """The nodes to attack, and the attacks to play."""

    targets: list[Target]
    leader: int
    cluster: str
    attacks: list[str]
    seed: int
    size: float = 1.0
    every_s: float = EVERY_S


async def prepare(arena: Arena) -> None:
    """Creates the topics and groups that the attacks name. Raises OSError if the leader does not create them."""
    async with await Wire.dial(arena.leader.client_port) as wire:
        for topic, queues in ((TOPIC, QUEUES), (BULK_TOPIC, 1)):
            await _must(wire, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topic, queues))
        for group in (GROUP, *ORDER_GROUPS):
            await _must(wire, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group_body(group))
        for _ in range(_BULK_MESSAGES):
            await _must(wire, RequestCode.SEND_MESSAGE_V2, send_fields(BULK_TOPIC), bytes(_BULK_MESSAGE))


async def _must(wire: Wire, code: int, ext: dict[str, str], body: bytes = b"") -> None:
    answer = await wire.ask(code, ext, body)
    if answer.code != 0:
        raise OSError(f"request {code} was answered {answer.code}: {answer.remark}")


async def play(arena: Arena, attack: Attack, round_number: int, tell: Callable[[dict[str, Any]], None]) -> None:
    """Plays one round and reports it at its start and at its end."""
    node, report = arena.target(round_number), Report()
    about = {"attack": attack.name, "node": node.id, "round": round_number}
    tell(about | {"at_ns": time.monotonic_ns()})
    begun = time.monotonic()
    try:
        await attack.play(arena, node, report)
    except OSError as error:  # refused, reset: an answer too
        report.sent += 1
        report.closed += 1
        about["error"] = str(error)
    finally:  # what was found counts, also if the run ends meanwhile
        tell(about | report.to_json() | {"took_s": round(time.monotonic() - begun, 3)})


async def repeat(
    arena: Arena, attack: Attack, first_s: float, every_s: float, tell: Callable[[dict[str, Any]], None]
) -> None:
    """Plays a round every `every_s` seconds, without end."""
    loop = asyncio.get_running_loop()
    room = asyncio.Semaphore(AT_ONCE)
    due = loop.time() + first_s
    async with asyncio.TaskGroup() as group:
        for number in range(1 << 60):
            await asyncio.sleep(max(0.0, due - loop.time()))
            await room.acquire()
            task = group.create_task(play(arena, attack, number, tell))
            task.add_done_callback(lambda _: room.release())
            due = max(due + every_s, loop.time())


async def attack_until_told(orders: Orders, tell: Callable[[dict[str, Any]], None]) -> None:
    """Prepares, then attacks until standard input ends."""
    arena = Arena(orders.targets, orders.leader, orders.cluster, orders.seed, orders.size)
    await prepare(arena)
    tell({"ready": True})
    loop = asyncio.get_running_loop()
    chosen = [ATTACKS[name] for name in orders.attacks]
    tasks = [
        loop.create_task(repeat(arena, attack, number * orders.every_s / len(chosen), orders.every_s, tell))
        for number, attack in enumerate(chosen)
    ]
    ended = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(ended), sys.stdin)
    done, _ = await asyncio.wait({loop.create_task(ended.read()), *tasks}, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for each in done:
        each.result()


def main() -> None:
    _step_back()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    orders = msgspec.json.decode(sys.stdin.readline(), type=Orders)
    asyncio.run(attack_until_told(orders, _tell))


def _step_back() -> None:
    """Lowers this process's priority. A real attacker has a machine of its own; here it shares one with the nodes and
    the honest clients, so it prepares its attacks in the time that they leave. Measured is the cost of its requests to
    a node, not of making them."""
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _tell(row: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

"""The process that attacks. It is separate from the honest clients, so that its own cost is not mistaken for the
nodes'.

It reads one line of JSON (AttackOrders) and attacks until its standard input ends. It reports each round in two lines.
Each further line is a hand, a JSON list of the attacks to play from then on. An empty one ends the attacks: no new
round begins, and those that run continue to their end or until the next hand arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from jepsen_like.client_kit.fields import group_body, send_fields, topic_fields
from jepsen_like.client_kit.wire import Target, Wire
from jepsen_like.hostile.attack import (
    BULK_TOPIC,
    EVERY_S,
    GROUP,
    ORDER_GROUPS,
    QUEUES,
    TOPIC,
    Arena,
    Attack,
    RoundReport,
)
from jepsen_like.hostile.attacks import ATTACKS
from raftmq_wire.codes import RequestCode

AT_ONCE = 2
"""The most rounds of one attack that may overlap, if a node takes longer than the time between two."""
_BULK_MESSAGE, _BULK_MESSAGES = 256 << 10, 64


class AttackOrders(msgspec.Struct):
    """The nodes to attack, and the attacks to play."""

    targets: list[Target]
    leader: int
    cluster: str
    attacks: list[str]
    """The first hand; may be empty."""
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


class Table:
    """Plays hands (lists of attacks), one after the other. Its methods are called on the event loop."""

    def __init__(self, arena: Arena, every_s: float, tell: Callable[[dict[str, Any]], None]) -> None:
        self._arena = arena
        self._every_s = every_s
        self._tell = tell
        self._numbers: dict[str, Iterator[int]] = {}
        self._over = asyncio.Event()
        self.tasks: set[asyncio.Task[None]] = set()
        """The running tasks: one for each attack of a hand, until the attack's last round is over."""

    async def deal(self, names: list[str]) -> None:
        """Plays these attacks from now on, and ends the rounds of the earlier ones. If `names` is empty, begins no new
        round, but lets the running ones finish.
        """
        self._over.set()
        if not names:
            return
        await self.clear()
        self._over = asyncio.Event()
        self._arena.beside = frozenset(names)
        for place, name in enumerate(names):
            numbers = self._numbers.setdefault(name, itertools.count())
            first_s = place * self._every_s / len(names)
            repeated = repeat(self._arena, ATTACKS[name], numbers, first_s, self._every_s, self._tell, self._over)
            self.tasks.add(asyncio.get_running_loop().create_task(repeated))

    async def clear(self) -> None:
        """Ends all rounds at once."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()


async def play(arena: Arena, attack: Attack, round_number: int, tell: Callable[[dict[str, Any]], None]) -> None:
    """Plays one round and reports it at its start and at its end."""
    node, report = arena.target(round_number), RoundReport()
    about = {"attack": attack.name, "node": node.id, "round": round_number}
    tell(about | {"at_ns": time.monotonic_ns()})
    begun = time.monotonic()
    try:
        await attack.play(arena, node, report)
    except OSError as error:  # a refused or reset connection counts as a closed one
        report.sent += 1
        report.closed += 1
        about["error"] = str(error)
    finally:  # findings count even if the run ends meanwhile
        tell(about | report.to_json() | {"took_s": round(time.monotonic() - begun, 3)})


async def repeat(
    arena: Arena,
    attack: Attack,
    numbers: Iterator[int],
    first_s: float,
    every_s: float,
    tell: Callable[[dict[str, Any]], None],
    over: asyncio.Event,
) -> None:
    """Plays a round every `every_s` seconds until `over` is set, and returns when the last one is over."""
    loop = asyncio.get_running_loop()
    room = asyncio.Semaphore(AT_ONCE)
    due = loop.time() + first_s
    async with asyncio.TaskGroup() as group:
        while not await _is_set(over, due - loop.time()):
            await room.acquire()
            if over.is_set():
                return
            number = next(numbers)
            task = group.create_task(play(arena, attack, number, tell))
            task.add_done_callback(lambda _: room.release())
            due = max(due + every_s, loop.time())


async def _is_set(event: asyncio.Event, within_s: float) -> bool:
    """Returns True as soon as the event is set, False if it is not within this time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, within_s)):  # wait_for may lose a cancellation that comes with the event
            await event.wait()
    return event.is_set()


async def attack_until_told(orders: AttackOrders, tell: Callable[[dict[str, Any]], None]) -> None:
    """Prepares the cluster, then plays the hands that come as lines on standard input, until it ends."""
    arena = Arena(orders.targets, orders.leader, orders.cluster, orders.seed, orders.size)
    await prepare(arena)
    tell({"ready": True})
    loop = asyncio.get_running_loop()
    hands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(hands), sys.stdin)
    table = Table(arena, orders.every_s, tell)
    names = list(orders.attacks)
    try:
        while True:
            await table.deal(names)
            line = await _next_line(hands, table)
            if not line:
                return
            names = json.loads(line)
    finally:
        await table.clear()


async def _next_line(lines: asyncio.StreamReader, table: Table) -> bytes:
    """Returns the next line, b"" at the end. Raises the error of an attack that fails during the wait."""
    reading = asyncio.get_running_loop().create_task(lines.readline())
    try:
        while not reading.done():
            await asyncio.wait({reading, *table.tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in table.tasks if task.done()]:
                table.tasks.discard(task)
                task.result()
        return reading.result()
    finally:
        reading.cancel()


def main() -> None:
    _step_back()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    orders = msgspec.json.decode(sys.stdin.readline(), type=AttackOrders)
    asyncio.run(attack_until_told(orders, _tell))


def _step_back() -> None:
    """Lowers this process's priority. A real attacker has a machine of its own; here it shares one with the nodes and
    the honest clients, so it prepares its attacks in the time that they leave. A run measures what the requests cost
    the nodes, not what they cost the attacker.
    """
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _tell(row: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

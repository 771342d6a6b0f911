"""Three registry processes on the loopback interface, and what they hold."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cluster.registry import frames
from cluster.registry.child import Child
from cluster.registry.frames import OK, RegistrySettings, RegistryStatus
from cluster.registry.records import Records, TopicPlace, topics_operation
from raftmq.local.process import free_base_port
from tests.support.pace import at_most

CLUSTER = bytes(range(16))
PASSWORD = "sixteen letters or more"
LIMIT_S = at_most(2)


class Trio:
    """The processes, by number. `settings` of each may be replaced before it is started."""

    def __init__(self, folder: Path, count: int = 3) -> None:
        base = free_base_port(count)
        addresses = {number: f"127.0.0.1:{base + number - 1}" for number in range(1, count + 1)}
        self.folder = folder
        self.settings = {
            number: RegistrySettings(str(folder / str(number)), CLUSTER, number, addresses, address, PASSWORD)
            for number, address in addresses.items()
        }
        self.children: dict[int, Child] = {}
        self.acked: dict[str, TopicPlace] = {}

    def directory(self, number: int) -> Path:
        return Path(self.settings[number].directory)

    def log(self, number: int) -> str:
        return (self.folder / f"{number}.log").read_text()

    async def start(self, *numbers: int, prefix: Callable[[int], Sequence[str]] = lambda _: ()) -> None:
        """Starts these processes, or all, and waits until they listen. `prefix` returns the command that runs one."""
        for number in numbers or self.settings:
            with (self.folder / f"{number}.log").open("ab") as log:
                self.children[number] = await Child.start(self.settings[number], log.fileno(), prefix(number))
        for number in numbers or self.settings:
            await self.children[number].ready(at_most(20))

    async def kill(self, *numbers: int) -> None:
        for number in numbers:
            self.children[number].process.kill()
        for number in numbers:
            await self.children.pop(number).close(at_most(5))

    async def close(self) -> None:
        await asyncio.gather(*(child.close(at_most(5)) for child in self.children.values()))

    async def put(self, at: int, name: str, version: int = 1) -> bool:
        """Applies one operation at a process; returns True if it was acknowledged."""
        place = TopicPlace(version, (1, 2))
        reply = await self.children[at].apply(topics_operation(CLUSTER, {name: place}), LIMIT_S)
        if reply[1] == OK:
            self.acked[name] = max(place, self.acked.get(name, place))
        return reply[1] == OK

    async def put_somehow(self, name: str) -> None:
        """Applies an operation at whichever process takes it."""
        deadline = time.monotonic() + at_most(30)
        while True:
            for number in list(self.children):
                if await self.put(number, name):
                    return
            assert time.monotonic() < deadline, {number: self.log(number)[-1000:] for number in self.settings}
            await asyncio.sleep(0.05)

    async def held(self, number: int) -> dict[str, TopicPlace]:
        outcome = await self.children[number].read(LIMIT_S)
        records = Records(CLUSTER)
        if outcome[1] == OK:
            records.merge(outcome[3])
        return dict(records.view.topics)

    async def status(self, number: int) -> RegistryStatus:
        return frames.read_status((await self.children[number].status(LIMIT_S))[3])

    async def leader(self) -> int:
        """Returns the number of the process that the others follow."""
        await self.put_somehow("somebody-leads")
        while True:
            told = {(await self.status(number)).leader for number in self.children}
            if len(told) == 1 and 0 not in told:
                return told.pop()
            await asyncio.sleep(0.05)

    async def lacking(self) -> dict[int, set[str]]:
        """Returns what was acknowledged and is not held, once that changes no more: process -> names."""
        deadline = time.monotonic() + at_most(20)
        while True:
            lacking = {}
            for number in self.children:
                held = await self.held(number)
                lacking[number] = {
                    name for name, place in self.acked.items() if held.get(name, TopicPlace(0, ())) < place
                }
            if not any(lacking.values()) or time.monotonic() > deadline:
                return lacking
            await asyncio.sleep(0.1)

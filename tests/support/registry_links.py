"""Three replicas in one thread, over links in memory and under a clock that is set by hand: one of the losses of
unmodified pysyncobj, and the registry's in the same schedule. In a process of its own, because pysyncobj replaces
functions of `socket`::

    python -m tests.support.registry_links stock|hardened SCHEDULE DIRECTORY    prints what became of it, as JSON
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pysyncobj.syncobj
from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf
from pysyncobj.node import TCPNode
from pysyncobj.transport import Transport

from cluster.registry import hardened
from cluster.registry.hardened import HardenedRaft, RegistryPeers
from cluster.registry.records import Records, TopicPlace, topics_operation
from cluster.registry.store import Store
from raftlog.storage.files.fs import OsFileSystem

CLUSTER = bytes(range(16))
ADDRESSES = {number: f"127.0.0.1:{10000 + number}" for number in (1, 2, 3)}
OPERATIONS = 300
ROUNDS_MAX = 200
"""Rounds in which the replicas that are left are to take an operation."""


class Clock:
    """Seconds, set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Links(Transport):  # type: ignore[misc]  # no types
    """The links of one replica: what it sends waits in line until the schedule delivers it."""

    def __init__(self, world: World, own: int) -> None:
        super().__init__(None, None, [])
        self.world = world
        self.own = own

    def send(self, node: TCPNode, message: Any) -> bool:
        other = int(node.address[-1])
        if (self.own, other) in self.world.cut:
            return False
        self.world.lines.setdefault((self.own, other), []).append(message)
        return True

    def join(self, other: int) -> None:
        """Tells the replica that the link to the other one is up."""
        self._onNodeConnected(TCPNode(ADDRESSES[other]))

    def part(self, other: int) -> None:
        """Tells the replica that the link is down."""
        self._onNodeDisconnected(TCPNode(ADDRESSES[other]))

    def take(self, other: int, message: Any) -> None:
        """Hands the replica a message."""
        self._onMessageReceived(TCPNode(ADDRESSES[other]), message)

    def destroy(self) -> None:
        """Has nothing to close."""


class StockSet(SyncObj):  # type: ignore[misc]  # no types
    """Unmodified pysyncobj with a set of numbers."""

    def __init__(self, own: int, links: Links) -> None:
        conf = SyncObjConf(autoTick=False, commandsWaitLeader=False, appendEntriesUseBatch=False)
        others = [TCPNode(address) for number, address in ADDRESSES.items() if number != own]
        super().__init__(TCPNode(ADDRESSES[own]), others, conf, transport=links)
        self.held: set[int] = set()

    @pysyncobj.replicated  # type: ignore[untyped-decorator]
    def put(self, number: int, padding: str) -> None:
        """Adds the number."""
        self.held.add(number)


class World:
    """The three replicas and what is on its way between them."""

    def __init__(self, is_hardened: bool, folder: Path) -> None:
        self.clock = Clock()
        vars(pysyncobj.syncobj)["monotonicTime"] = self.clock
        vars(hardened)["monotonic"] = self.clock
        self.is_hardened = is_hardened
        self.lines: dict[tuple[int, int], list[Any]] = {}
        self.cut: set[tuple[int, int]] = set()
        self.acked: set[int] = set()
        self.again = 0
        """Entries that a leader sent again, although they were on their way or confirmed."""
        self.links = {number: Links(self, number) for number in ADDRESSES}
        self.records = {number: Records(CLUSTER) for number in ADDRESSES}
        self.replicas: dict[int, Any] = {}
        for number, links in self.links.items():
            if is_hardened:
                store = Store(OsFileSystem(), folder / str(number), CLUSTER, number, self.records[number])
                peers = RegistryPeers(ADDRESSES, number, "127.0.0.1:0")
                self.replicas[number] = HardenedRaft(peers, "x", store, self.records[number], transport=links)
            else:
                self.replicas[number] = StockSet(number, links)
        for number, links in self.links.items():
            for other in ADDRESSES.keys() - {number}:
                links.join(other)

    def held(self, number: int) -> set[int]:
        """Returns the numbers that a replica has applied."""
        if self.is_hardened:
            return {int(name) for name in self.records[number].view.topics}
        return set(self.replicas[number].held)

    def put(self, at: int, number: int) -> None:
        """Proposes a number at a replica."""

        def done(answer: object, reason: int) -> None:
            if reason == FAIL_REASON.SUCCESS:
                self.acked.add(number)

        if self.is_hardened:
            place = {str(number): TopicPlace(1, tuple(range(1, 65)))}
            self.replicas[at].propose(topics_operation(CLUSTER, place), done)
        else:
            self.replicas[at].put(number, "x" * 4096, callback=done)

    def separate(self, one: int, other: int) -> None:
        """Cuts the link, and what is on it is lost."""
        for pair in ((one, other), (other, one)):
            self.cut.add(pair)
            self.lines.pop(pair, None)
            self.links[pair[0]].part(pair[1])

    def connect(self, one: int, other: int) -> None:
        """Mends the link."""
        for pair in ((one, other), (other, one)):
            self.cut.discard(pair)
            self.links[pair[0]].join(pair[1])

    def deliver(self, source: int, target: int, count: int = 1 << 30) -> None:
        """Delivers the next messages of a link."""
        line = self.lines.get((source, target), [])
        for message in line[:count]:
            self.links[target].take(source, message)
        del line[:count]

    def tick(self, *numbers: int) -> None:
        """Lets these replicas do what is to be done."""
        for number in numbers:
            self.replicas[number].doTick(0.0)

    def run(self, numbers: list[int], until: Callable[[], object], rounds: int = 400) -> int:
        """Lets time pass among these replicas until it is so. Returns the rounds that it took, of 50 ms."""
        for round_number in range(rounds):
            if until():
                return round_number
            self.clock.now += 0.05
            self.tick(*numbers)
            for source in numbers:
                for target in numbers:
                    self.deliver(source, target)
        raise AssertionError(f"not so after {rounds} rounds")

    def elect(self, leader: int) -> None:
        """Makes a replica lead all three."""
        vars(self.replicas[leader])["_SyncObj__raftElectionDeadline"] = 0.0
        self.run([1, 2, 3], lambda: self.leads(leader) and self.replicas[leader].raftCommitIndex >= 2)

    def leads(self, number: int) -> bool:
        """True if the replica leads."""
        return bool(self.replicas[number]._isLeader())


def sent_again(world: World) -> None:
    """The leader has sent all to one follower, takes its answers one after the other, and sends again what was
    confirmed; then it is killed, and that follower elects with the other one."""
    world.elect(1)
    world.separate(1, 3)
    for number in range(OPERATIONS):
        world.put(1, number)
        world.tick(1)
        world.lines[1, 3] = []
    again = list(world.lines[1, 2])[:20]
    world.deliver(1, 2)
    world.deliver(2, 1, 1)
    world.clock.now += 0.2
    world.tick(1)
    world.again = sum(len(message["entries"]) for message in world.lines[1, 2])
    world.deliver(2, 1)
    world.tick(1, 1)
    assert len(world.acked) == OPERATIONS, len(world.acked)
    world.deliver(1, 2, 1)
    for message in again:  # and a copy of what came first
        world.links[2].take(1, message)
    world.separate(1, 2)


def refuted_tail(world: World) -> None:
    """A follower has 300 entries of an old leader that nobody else has, and a majority needs it."""
    world.elect(1)
    world.separate(1, 2)
    world.separate(1, 3)
    for number in range(1000, 1000 + OPERATIONS):
        world.put(1, number)
        world.tick(1)
    world.run([2, 3], lambda: world.leads(2) or world.leads(3))
    leader = 2 if world.leads(2) else 3
    for number in range(OPERATIONS):
        world.put(leader, number)
        world.run([2, 3], lambda number=number: number in world.acked)  # type: ignore[misc]
    leader = 5 - leader  # a new leader asks for what comes after its own last entry
    vars(world.replicas[leader])["_SyncObj__raftElectionDeadline"] = 0.0
    world.run([2, 3], lambda: world.leads(leader) and not world.leads(5 - leader))
    if world.is_hardened:  # what follows the entry that both have is not confirmed by this, nor committed
        common = vars(world.replicas[1])["_SyncObj__raftLog"][1]
        told = {"term": world.replicas[leader].raftCurrentTerm, "commit_index": OPERATIONS}
        place = {"entries": [], "prevLogIdx": common[1], "prevLogTerm": common[2]}
        world.links[1].take(leader, {"type": "append_entries", **told, **place})
        world.tick(1)
    world.separate(2, 3)
    world.connect(leader, 1)


SCHEDULES: dict[str, Callable[[World], None]] = {"sent_again": sent_again, "refuted_tail": refuted_tail}


def main(kind: str, schedule: str, folder: Path) -> dict[str, object]:
    """Runs a schedule, and then the two replicas that are left until one of them takes an operation."""
    world = World(kind == "hardened", folder)
    SCHEDULES[schedule](world)
    left = [2, 3] if schedule == "sent_again" else [1, 2 if world.leads(2) else 3]
    looks = itertools.count()

    def accepted() -> bool:
        look = next(looks)
        for number in left:
            if look % 20 == 0 and world.leads(number):
                world.put(number, 5000 + look)
        return any(number >= 5000 for number in world.acked)

    try:
        rounds = world.run(left, accepted, ROUNDS_MAX)
    except AssertionError:
        return {"acked": len(world.acked), "lost": 0, "rounds": ROUNDS_MAX}
    world.run(left, lambda: all(any(n >= 5000 for n in world.held(each)) for each in left), 4000)
    acked = {number for number in world.acked if number < 5000}
    held = set.intersection(*(world.held(number) for number in left))
    refuted = {number for each in left for number in world.held(each) if 1000 <= number < 5000}
    lost = len(acked - held)
    return {"acked": len(acked), "lost": lost, "rounds": rounds, "again": world.again, "refuted": len(refuted)}


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    sys.stdout.write(json.dumps(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))))

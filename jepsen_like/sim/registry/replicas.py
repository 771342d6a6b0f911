"""Models the registry's replicas, which the product keeps with pysyncobj, and the child process in which each runs.

Together the replicas are one linearizable store. An operation is accepted when more than half of the replicas run and
reach each other; then each of these has it on its disk. The records and the operations are the product's own
(`cluster.registry.records`); elections, the log and its transfer are not modelled.
`tests/jepsen_like/sim/test_sim_registry.py` compares the model with the replicas of the product.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import msgspec

from cluster.registry.frames import FAIL, OK, UNKNOWN, RegistryReply, RegistryStatus
from cluster.registry.records import Records, RegistryAnswer

DELAY_S = (0.001, 0.03)
"""Seconds after which an operation is on the disks of a majority."""


class Replicas:
    """The replicas of all processes, by their numbers."""

    def __init__(self, cluster: bytes, numbers: Sequence[int]) -> None:
        self._cluster = cluster
        self.disks = {number: Records(cluster) for number in numbers}
        self.runs: Callable[[int], bool] = lambda number: True
        """Function that returns True if the replica with this number runs."""
        self.joined: Callable[[int, int], bool] = lambda one, other: True
        """Function that returns True if messages from the first replica reach the second."""
        self.accepted = 0
        """Number of new operations that a majority has accepted."""

    def apply(self, number: int, operation: bytes) -> RegistryAnswer | None:
        """Lets a replica apply an operation; returns its answer, None if there is no majority."""
        own = self.disks[number]
        known = own.known(operation)
        if known is not None:
            return known
        reached = self._reached(number)
        if 2 * len(reached) <= len(self.disks):
            return None
        self._catch_up(reached)
        answers = {each: self.disks[each].apply(operation) for each in reached}
        self.accepted += 1
        return answers[number]

    def _reached(self, number: int) -> list[int]:
        return [
            each
            for each in self.disks
            if self.runs(each) and (each == number or (self.joined(number, each) and self.joined(each, number)))
        ]

    def _catch_up(self, reached: Sequence[int]) -> None:
        """Merges the records of these replicas into each of them: together, a majority has all that was accepted."""
        dumps = [self.disks[each].dump() for each in reached]
        for each in reached:
            for dump in dumps:
                self.disks[each].merge(dump)

    def wipe(self, number: int) -> None:
        """Empties the disk of a replica that does not run."""
        self.disks[number] = Records(self._cluster)

    def put_back(self, number: int, dump: bytes) -> None:
        """Restores the disk of a stopped replica to the state of the dump."""
        self.wipe(number)
        self.disks[number].merge(dump)


class SimReplica:
    """The child of a process: implements `cluster.registry.surroundings.Replica`."""

    def __init__(self, replicas: Replicas, number: int, rng: random.Random) -> None:
        self._replicas, self._number, self._rng = replicas, number, rng
        self.hangs = False
        """True while the replica answers requests for its state, but applies no operation."""
        self.is_over = False

    pid = 0
    exit_code: int | None = None

    def when_over(self, then: Callable[[], object]) -> None:
        """Does nothing: the child ends with its parent."""

    async def ready(self, limit_s: float) -> None:
        """Returns when the child is ready for requests."""
        await asyncio.sleep(self._rng.uniform(*DELAY_S))

    async def apply(self, operation: bytes, limit_s: float) -> RegistryReply:
        """Applies an operation and returns the outcome. If there is no majority, or the replica hangs, the outcome is
        unknown, and is returned after `limit_s` seconds."""
        await asyncio.sleep(self._rng.uniform(*DELAY_S))
        answer = None if self.hangs else self._replicas.apply(self._number, operation)
        if answer is None:
            await asyncio.sleep(limit_s)
            return 0, UNKNOWN, "no answer", b""
        error, value = answer
        return 0, FAIL if error else OK, error, value

    async def read(self, limit_s: float) -> RegistryReply:
        """Returns all records of this replica."""
        return 0, OK, "", self._replicas.disks[self._number].dump()

    async def status(self, limit_s: float) -> RegistryReply:
        """Returns the replica's state. Only the number of entries in it is modelled."""
        entries = self._replicas.accepted
        status = RegistryStatus(
            term=1, leader=1, applied=entries, committed=entries, entries=entries, is_full=False, syncs=0
        )
        return 0, OK, "", msgspec.msgpack.encode(status)

    async def close(self, limit_s: float) -> int:
        """Marks the child as over, and returns the exit code 0."""
        self.is_over = True
        return 0

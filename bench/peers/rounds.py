"""Alternating rounds: every system is continued in turn, measured under every load, and stopped again.

All systems are started and warmed up once. Between its turns a system is stopped (SIGSTOP), so it takes neither CPU nor
disk from the one that is measured, and its JIT-compiled code stays. Dirty pages that it left in the page cache are
written before the next turn (sync(2)). A turn counts only if the same leader led from its first to its last load.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.bench_disk_floor import Floor
from bench.peers import loads
from bench.peers.system import Load, Node, NoLeader, System
from raftmq.commands.bench_load import Result
from raftmq.commands.open_arrivals import percentile

LOADS = ((1024, 1, 1, 1), (1024, 1, 64, 1), (1024, 1, 512, 1), (1024, 1, 500, 500), (1024, 100, 16, 1))
"""The loads: (body bytes, messages per request, requests in flight, connections)."""
SETTLE_S = 1.0
LEADER_S = 40.0
"""Seconds that a system may be without a leader after it was continued."""
TRIES = 3
"""The most turns that a system may begin in one round."""


class Sample(NamedTuple):
    """The figures of one load in one round."""

    messages_per_second: float
    cpu_us_per_message: float
    """User and system time of all processes of the system, per message, in microseconds."""
    p50_ms: float
    p99_ms: float
    errors: int
    """Requests that were refused."""


class Spread(NamedTuple):
    """The median of several rounds, and their lowest and highest value."""

    median: float
    low: float
    high: float


Run = Callable[[System, Node, Load], Result]
"""A function that puts a load on a node. Raises OSError."""


class Field:
    """A system that takes part, with its measurements and the set of nodes that were warmed up."""

    def __init__(
        self,
        system: System,
        warm_s: float = 0.0,
        *,
        settle_s: float = SETTLE_S,
        leader_s: float = LEADER_S,
        run: Run = loads.run,
        sync: Callable[[], None] = os.sync,
    ) -> None:
        """`warm_s`: seconds for which a leader is warmed up, instead of the value in the system's traits. `settle_s`:
        seconds between the system's continuation and the first question to it; `leader_s`: the seconds that it may then
        be without a leader. `run` puts load on a node; `sync` writes what a system left in the page cache."""
        self.system = system
        self._settle_s = settle_s
        self._leader_s = leader_s
        self._run = run
        self._sync = sync
        self.warm_s = warm_s or system.traits.warm_s
        self.samples: dict[Load, list[Sample]] = {}
        self.failed = ""
        """The reason why the system no longer takes part; "" if it does."""
        self.memory_bytes = 0
        """Resident memory of all its processes after its last turn."""
        self.leader_changes = 0
        """The number of turns that found another leader than the turn before, or lost their leader."""
        self._warm: set[int] = set()
        self._leader: Node | None = None

    @property
    def name(self) -> str:
        """The system's name in the report."""
        return self.system.traits.name

    def start(self, directory: Path) -> None:
        """Starts the system, warms up its leader, and stops it until its first turn."""
        directory.mkdir(parents=True)
        self.system.start(directory)
        self._leader = wait_for_leader(self.system, self._leader_s)
        self.warm()
        self.system.processes.pause()

    def warm(self) -> None:
        """Puts load on the leader: for the full warm-up time if it is new, for one second if it was warmed up
        before."""
        leader = self._leader
        assert leader is not None, "a system is warmed after it was started"
        seconds = 1.0 if leader.pid in self._warm else self.warm_s
        self._run(self.system, leader, Load(1024, 1, 256, seconds))
        self._warm.add(leader.pid)

    def resume(self) -> Node:
        """Continues the system, its leader first, so that its heartbeats arrive when the other nodes wake up; returns
        the leader.

        If another node leads now, it is warmed up.
        """
        if self._leader is not None:
            self.system.processes.resume(self._leader.pid)
        self.system.processes.resume()
        time.sleep(self._settle_s)
        now = wait_for_leader(self.system, self._leader_s)
        changed = now != self._leader
        self._leader = now
        if changed:
            self.leader_changes += 1
            self.warm()
        return now

    def pause(self) -> None:
        """Records the system's memory, stops its processes (SIGSTOP), and syncs the disk."""
        self.memory_bytes = self.system.processes.memory_bytes()
        self.system.processes.pause()
        self._sync()

    def turn(self, rows: Sequence[Load]) -> None:
        """Continues the system, measures every load and stops it; starts again if the leader changed during the turn.
        Raises OSError."""
        try:
            for _ in range(TRIES):
                leader = self.resume()
                try:
                    found = [(row, measure(self.system, leader, row, self._run)) for row in rows]
                    stayed = wait_for_leader(self.system, self._leader_s) == leader
                except OSError:  # the leader was deposed, or the turn began too early
                    stayed = False
                if gone := self.system.processes.ended():
                    raise NoLeader(f"processes ended by themselves: {gone}")
                if stayed:
                    break
            else:
                raise NoLeader(f"its leader changed during {TRIES} turns in a row")
            for row, sample in found:
                self.samples.setdefault(row, []).append(sample)
        finally:
            self.pause()


def order(names: Sequence[str], number: int) -> list[str]:
    """Returns the order of systems in round `number` (from 0). Rounds come in pairs, the second one backwards, and each
    pair begins with the next system. So each system is first equally often, and no system always follows the same other
    one."""
    shift = number // 2 % len(names) if names else 0
    turned = [*names[shift:], *names[:shift]]
    return turned[::-1] if number % 2 else turned


def wait_for_leader(system: System, patience_s: float = LEADER_S) -> Node:
    """Polls until a node leads, and returns it. Raises NoLeader after `patience_s` seconds."""
    until = time.monotonic() + patience_s
    while True:
        try:
            return system.leader()
        except (NoLeader, OSError) as error:
            if time.monotonic() > until:
                raise NoLeader(f"no leader within {patience_s:.0f} s: {error}") from error
            time.sleep(0.1)


def measure(system: System, leader: Node, row: Load, run: Run = loads.run) -> Sample:
    """Measures one load against the leader. Raises OSError."""
    before = system.processes.cpu_seconds()
    result = run(system, leader, row)
    return sample(result, system.processes.cpu_seconds() - before)


def sample(result: Result, cpu_s: float) -> Sample:
    """Returns the figures of one run. Raises ConnectionError if nothing was acknowledged."""
    if not result.messages:
        raise ConnectionError(f"nothing was acknowledged, {result.errors} requests were refused")
    return Sample(
        result.messages / result.seconds,
        cpu_s * 1e6 / result.messages,
        percentile(result.latencies_ms, 0.5),
        percentile(result.latencies_ms, 0.99),
        result.errors,
    )


def spread(values: Sequence[float]) -> Spread:
    """Returns the median, the lowest and the highest of at least one value."""
    return Spread(median(values), min(values), max(values))


def play(fields: Sequence[Field], rounds: int, seconds: float, floor: Floor, tell: Callable[[str], None]) -> None:
    """Plays all rounds. A system that fails takes no further part. It keeps its earlier measurements, and `failed` has
    the reason."""
    by_name = {field.name: field for field in fields}
    for number in range(rounds):
        floor.measure()
        for name in order(list(by_name), number):
            field = by_name[name]
            if field.failed:
                continue
            tell(f"round {number + 1} of {rounds}: {name}")
            rows = [
                Load(size, batch, in_flight, seconds, connections)
                for size, batch, in_flight, connections in LOADS
                if batch == 1 or field.system.traits.batches
            ]
            attempt(field, partial(field.turn, rows), tell)


def attempt(field: Field, action: Callable[[], object], tell: Callable[[str], None]) -> bool:
    """Calls `action` for a system; if that fails, stops the system and sets its `failed`, so that the benchmark goes
    on. Returns True on success."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 - whatever goes wrong with one system must not cost the others' figures
        field.failed = f"{type(error).__name__}: {error}"
        tell(f"{field.name} failed: {field.failed}")
        field.system.stop()
        return False
    return True

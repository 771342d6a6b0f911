"""The faults of the registry in a run: its processes are gone, come back with nothing or with an old copy, are paused,
hang, are cut off, or lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from jepsen_like.sim.options import Options, stream
from jepsen_like.sim.registry.replicas import Replicas

if TYPE_CHECKING:
    from jepsen_like.sim.machines.loop import SimLoop
    from jepsen_like.sim.machines.network import Network
    from jepsen_like.sim.registry.registry_machine import RegistryMachine

KINDS = ("gone", "empty", "old copy", "stands still", "hangs", "cut off", "lies")
PAUSE_S, LASTS_S = (0.2, 1.5), (0.5, 5.0)
LIES_EVERY_S = 0.3
COPY_P = 0.3
"""Probability that all disks are copied before a fault. A later fault may put such a copy back."""


class RegistryFaults:
    """Begins one fault after the other, drawn by the seed. `applied` counts the faults by kind."""

    def __init__(
        self,
        options: Options,
        loop: SimLoop,
        network: Network,
        machines: Mapping[int, RegistryMachine],
        replicas: Replicas,
        nodes: Sequence[str],
    ) -> None:
        """`nodes`: the hosts of the nodes of all groups."""
        self._rng = stream(options.seed, "registry faults")
        self._loop, self._network, self._machines, self._replicas = loop, network, machines, replicas
        self._nodes = list(nodes)
        self.copies: dict[int, bytes] = {}
        """Number of a process -> the records that its disk had at the last `copy`."""
        self.applied: Counter[str] = Counter()
        self.over = False

    def start(self) -> None:
        """Schedules the first fault."""
        self._loop.call_outside(self._rng.uniform(*PAUSE_S), self._next)

    def end(self) -> None:
        """Begins no further fault, and ends those that were begun: every process runs, answers and no longer lies. Does
        not heal cut links."""
        self.over = True
        for machine in self._machines.values():
            machine.lies = False
            machine.resume()
            machine.start()
            if machine.child is not None:
                machine.child.hangs = False

    def _next(self) -> None:
        if self.over:
            return
        if self._rng.random() < COPY_P:
            self.copy()
        some = self._rng.sample(list(self._machines), self._rng.choice((1, 1, 2, 3)))
        lasts_s = self._rng.uniform(*LASTS_S)
        self.begin(self._rng.choice(KINDS), some, lasts_s)
        self._loop.call_outside(lasts_s + self._rng.uniform(*PAUSE_S), self._next)

    def copy(self) -> None:
        """Copies all disks."""
        self.copies = {number: records.dump() for number, records in self._replicas.disks.items()}

    def begin(self, kind: str, numbers: Sequence[int], lasts_s: float) -> None:
        """Begins a fault of these processes, which ends after `lasts_s` virtual seconds."""
        self.applied[kind] += 1
        for machine in [self._machines[number] for number in numbers]:
            undo: Callable[[], object]
            match kind:
                case "gone" | "empty" | "old copy":
                    machine.kill()
                    if kind == "empty":
                        self._replicas.wipe(machine.number)
                    elif kind == "old copy" and machine.number in self.copies:
                        self._replicas.put_back(machine.number, self.copies[machine.number])
                    undo = machine.start
                case "stands still":
                    machine.pause()
                    undo = machine.resume
                case "hangs":
                    undo = partial(self._hang, machine, hangs=False)
                    self._hang(machine, hangs=True)
                case "cut off":
                    undo = self._cut(machine)
                case _:
                    undo = partial(setattr, machine, "lies", False)
                    machine.lies = True
                    self._lie(machine)
            self._loop.call_outside(lasts_s, undo)

    def _hang(self, machine: RegistryMachine, *, hangs: bool) -> None:
        if machine.child is not None:
            machine.child.hangs = hangs

    def _cut(self, machine: RegistryMachine) -> Callable[[], None]:
        others = [each.host for each in self._machines.values() if each is not machine]
        away = self._rng.sample([*self._nodes, *others], self._rng.randint(1, len(self._nodes)))
        edges = [edge for other in away for edge in ((machine.host, other), (other, machine.host))]
        self._network.cut(edges)
        return partial(self._network.heal, edges)

    def _lie(self, machine: RegistryMachine) -> None:
        if machine.lies:
            machine.lie()
            self._loop.call_outside(LIES_EVERY_S, self._lie, machine)

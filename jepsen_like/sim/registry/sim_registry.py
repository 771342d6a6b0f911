"""The registry of a run: three processes, their faults, and their checks.

Nodes register there and take maps (records of the groups of brokers) from it, and clients ask it for routes. Whatever
the registry says or forgets, nodes lose nothing (docs/adr/0112): `sim.groups.map_check` checks the maps of nodes. This
module checks the maps of the registry's own processes, and how soon they are complete again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from jepsen_like.sim.callbacks import Wait
from jepsen_like.sim.machines.machine import CLUSTER, REGISTRY, Machine
from jepsen_like.sim.registry.registry_faults import RegistryFaults
from jepsen_like.sim.registry.registry_machine import RegistryMachine
from jepsen_like.sim.registry.replicas import Replicas

if TYPE_CHECKING:
    from cluster.placement.group_map import Epoch
    from jepsen_like.sim.checks.monitor import Monitor
    from jepsen_like.sim.machines.loop import Process, SimLoop
    from jepsen_like.sim.machines.network import Network
    from jepsen_like.sim.options import Options
    from raftlog.types import NodeId

CHECKER = "registry"
REBUILT_S = 10.0
"""Virtual seconds within which all processes must know all groups again after they have come back with empty disks, if
connections work.
"""
TOLD_S = 12.0
"""Virtual seconds in which a process has surely sent all its records to others. Most of its frames contain only new
records (`cluster.registry.registrations.WHOLE_EVERY`)."""


class RegistryWorld(Protocol):
    """The attributes of the simulated world that SimRegistry uses."""

    options: Options
    loop: SimLoop
    network: Network
    monitor: Monitor


class SimRegistry:
    """The simulated registry. `hosts` are the IP addresses of its processes."""

    def __init__(self, world: RegistryWorld, groups: Mapping[int, Mapping[NodeId, Machine]], topic: str) -> None:
        """`groups`: number of a group -> its machines. `topic`: a topic that all groups hold, about which a process may
        lie.
        """
        options, loop, network = world.options, world.loop, world.network
        self._world, self._groups = world, groups
        self.replicas = Replicas(CLUSTER.bytes, REGISTRY)
        self.machines = {
            number: RegistryMachine(number, options, loop, network, self.replicas, topic) for number in REGISTRY
        }
        self.hosts = [machine.host for machine in self.machines.values()]
        self.replicas.runs = lambda number: self.machines[number].runs_replica
        self.replicas.joined = lambda one, other: (
            not network.links.blocked((self.machines[one].host, self.machines[other].host))
        )
        nodes = [machine.host for machines in groups.values() for machine in machines.values()]
        self.faults = RegistryFaults(options, loop, network, self.machines, self.replicas, nodes)
        self._epochs: dict[tuple[Process, int], Epoch] = {}
        self._gone = 0
        """The number of the group that has retired; 0 if none has."""

    def start(self) -> None:
        """Starts the processes."""
        for machine in self.machines.values():
            machine.start()

    def processes(self) -> list[Process]:
        """Returns every process that ran."""
        return [process for machine in self.machines.values() for process in machine.processes]

    # --- what is always true -----------------------------------------------------------------------------------------

    def look(self, process: Process) -> None:
        """Checks the map of a process after each of its events: no epoch goes back. A process that has lied since its
        start is not checked."""
        machine = next(
            (each for each in self.machines.values() if each.process is process and each.server is not None), None
        )
        if machine is None or machine.has_lied or machine.server is None:
            return
        for number, record in machine.server.records.view.groups.items():
            before = self._epochs.get((process, number))
            if before is not None and record.epoch < before:
                what = f"process {machine.number} went back from {before} of group {number} to {record.epoch}"
                self._world.monitor.report(CHECKER, what)
            self._epochs[process, number] = record.epoch

    # --- the end -----------------------------------------------------------------------------------------------------

    def rebuilt(self, wait: Wait) -> bool:
        """Empties the disks of all processes, when all faults are over, and demands that the processes soon know all
        groups again. Returns False if something is wrong.
        """
        self.faults.copy()
        self._begin_anew()
        if not wait(self._is_whole, REBUILT_S, "the registry is not rebuilt from the groups", CHECKER):
            self._world.monitor.report(CHECKER, self._lacking())
        return not self._world.monitor.violations

    def _begin_anew(self) -> None:
        for machine in self.machines.values():
            machine.kill()
            self.replicas.wipe(machine.number)
            machine.start()

    def _is_whole(self) -> bool:
        return not self._lacking()

    def _lacking(self) -> str:
        """Returns a description of what some process lacks of the existing groups; "" if every process is ready and
        knows all groups.
        """
        wanted = {
            number: max((m.readable.raw.term for m in machines.values() if m.readable is not None), default=0)
            for number, machines in self._groups.items()
            if number != self._gone
        }
        for machine in self.machines.values():
            if machine.server is None or not machine.server.registrations.ready.is_set():
                return f"process {machine.number} is not ready"
            if not machine.server.supervisor.has_majority:
                return f"process {machine.number} has no operation accepted"
            for where, records in (("", machine.server.records), (" on disk", self.replicas.disks[machine.number])):
                known = records.view.groups
                for number, term in wanted.items():
                    if number not in known or known[number].epoch.term < term:
                        what = f"{known.get(number)} of group {number}, in term {term}"
                        return f"process {machine.number} knows{where} {what}"
        return ""

    def stays_gone(self, number: int, wait: Wait) -> bool:
        """Restores the registry's records from before the group `number` retired, and demands that no node accepts
        them. Returns False if one does, or if the registry does not soon know all other groups again.
        """
        self._gone = number
        for node in self._groups[number].values():
            node.kill(power=False)
            node.held += 1
        for machine in self.machines.values():
            machine.kill()
            self.replicas.put_back(machine.number, self.faults.copies[machine.number])
            machine.start()
        ends_s = self._world.loop.now + TOLD_S

        def is_told() -> bool:
            for own, machines in self._groups.items():
                for machine in machines.values() if own != number else ():
                    node = machine.readable
                    if node is not None and number in node.serving.other_groups.others():
                        what = f"node {machine.node_id} of group {own} takes group {number} for there"
                        self._world.monitor.report(CHECKER, f"{what}, which has retired")
            return self._world.loop.now >= ends_s

        return wait(is_told, TOLD_S + 1.0, "time does not pass", CHECKER) and wait(
            self._is_whole, REBUILT_S, "the registry waits for a group that has retired", CHECKER
        )

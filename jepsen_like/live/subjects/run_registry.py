"""The registry of a run: three processes, made and started by the same functions that `raftmq up` uses."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import psutil
import tomlkit

from cluster.config.local_layout import NodeRecord, RegistryRecord
from jepsen_like.live.subjects.processes import OfProcesses
from jepsen_like.live.subjects.proxy import HOST, Fabric
from jepsen_like.live.subjects.raftmq_subject import RaftMQSubject
from raftmq.local.process import free_base_port, is_free
from raftmq.local.registry_processes import PORTS, plan_registry, servers_of, tell_nodes, write_registry
from raftmq.local.waiting import until
from raftmq_wire.errors import LocalError

_ENDED_S = 10.0


APART_FROM = 61_000
"""The first port of processes whose links can be cut. It is above the ports that Linux gives to listeners that name no
port, such as the proxies.
"""


class Disk(Protocol):
    """The disk of a process. Its power can fail, and it can fill up."""

    def environment(self) -> dict[str, str]:
        """Returns the environment of the next process."""

    def set_full(self, full: bool) -> None:
        """If `full`, makes every write fail for want of space; else lets writes succeed again."""

    def lose_unsynced(self, rng: random.Random, survive: float) -> int:
        """Changes the disk as a power failure would. Each unsynced write survives with probability `survive`. Returns
        how many writes were lost.
        """


class RunRegistry(OfProcesses):
    """The processes of the registry, by their ids. Nodes do not depend on them, so nothing waits for them here."""

    def __init__(self, first: RaftMQSubject, disk: Callable[[int, Path], Disk] | None = None) -> None:
        """Plans the processes, with free ports; starts nothing. `disk` returns the simulated disk of a process with
        that directory: then their power can fail, their disks can fill up and their links can be cut. Raises
        LocalError."""
        self.processes = first.processes.beside()
        self._data = first.data
        self._records = plan_registry(first.data, free_base_port(PORTS) if disk is None else _above_proxies(), [])
        self._fabric: Fabric | None = None
        self._disks: dict[int, Disk] = {}
        if disk is not None:
            self._fabric = Fabric({record.id: record.own_port for record in self._records}, duplex=True)
            self._disks = {each.id: disk(each.id, each.home / "data") for each in self._records}
        self.ids = [record.id for record in self._records]
        self.ports = {record.id: record.port for record in self._records}
        """Process -> its port for clients."""

    @property
    def has_faults(self) -> bool:
        """True if power, disks and links of the processes can fail."""
        return self._fabric is not None

    @property
    def servers(self) -> str:
        """The addresses for clients."""
        return servers_of(self._records)

    def make(self, uuid: UUID, nodes: Iterable[NodeRecord]) -> None:
        """Writes the files of the processes, and changes the configuration of these nodes so that they register there.
        Raises LocalError.
        """
        write_registry(self._data, self._records, uuid)
        if self._fabric is not None:
            for record in self._records:
                self._lead_through_proxies(record, self._fabric)
        tell_nodes(nodes, self._records, wanted=True)

    def _lead_through_proxies(self, record: RegistryRecord, fabric: Fabric) -> None:
        """Makes a process dial the others through proxies. pysyncobj dials only those whose address sorts below its
        own, and introduces itself to them by its own address."""
        own = [f"{HOST}:{each.own_port}" for each in self._records]
        for other in self._records[: record.id - 1]:
            own[other.id - 1] = f"{HOST}:{fabric.ports[record.id, other.id]}"
            if own[other.id - 1] >= own[record.id - 1]:
                raise LocalError(
                    f"a proxy has the port {fabric.ports[record.id, other.id]}, above those of the registry",
                    f"listeners that name no port get one below {APART_FROM}, or the links cannot be cut",
                    "sysctl net.ipv4.ip_local_port_range",
                )
        document = tomlkit.parse(record.config_path.read_text(encoding="utf-8"))
        document["processes"] = own
        record.config_path.write_text(tomlkit.dumps(document), encoding="utf-8")

    def separate(self, *numbers: int) -> None:
        """Cuts these processes off from the others, and from each other."""
        assert self._fabric is not None
        self._fabric.cut(self._fabric.between(numbers, self.ids))

    def join(self) -> None:
        """Undoes `separate`."""
        assert self._fabric is not None
        self._fabric.heal(reset=True)

    def set_full(self, full: bool, *numbers: int) -> None:
        """Fills the disks of these processes, or gives them space again."""
        for number in numbers:
            self._disks[number].set_full(full)

    def fail_power(self, rng: random.Random, *numbers: int) -> int:
        """Cuts the power of these processes; returns how many writes were lost that no sync had covered."""
        self.lose(*numbers)
        return sum(self._disks[number].lose_unsynced(rng, rng.choice((0.0, 0.5))) for number in numbers)

    def start(self, *numbers: int) -> None:
        """Starts processes that do not run."""
        for record in self._records:
            if record.id in numbers:
                command = [sys.executable, "-P", "-m", record.module, "--config", str(record.config_path)]
                if self._disks:
                    self.directory(record.id).mkdir(mode=0o700, parents=True, exist_ok=True)
                shim = self._disks[record.id].environment() if self._disks else {}
                self.processes.start(record.id, command, Path(record.log), {**os.environ, **shim})

    def lose(self, *numbers: int) -> None:
        """Kills these processes with -9 at the same moment, and waits until they and their children have ended."""
        children = [child for number in numbers for child in self._children(number)]
        for blow in [self.aim(number) for number in numbers if self.is_running(number)]:
            blow()
        until(lambda: not any(map(self.is_running, numbers)), _ENDED_S, 0.002)
        _, left = psutil.wait_procs(children, _ENDED_S)
        for child in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

    def halt(self, *numbers: int) -> None:
        """Stops processes and their children with SIGSTOP."""
        for number in numbers:
            self._signal_children(number, signal.SIGSTOP)
            self.pause(number)

    def go_on(self, *numbers: int) -> None:
        """Undoes `halt`."""
        for number in numbers:
            self._signal_children(number, signal.SIGCONT)
            self.resume(number)

    def directory(self, number: int) -> Path:
        """Returns the directory of a process."""
        return self._records[number - 1].home / "data"

    def wipe(self, *numbers: int) -> None:
        """Deletes the directories of processes that do not run."""
        for number in numbers:
            shutil.rmtree(self.directory(number))

    def log(self, number: int) -> str:
        """Returns what a process has printed."""
        return Path(self._records[number - 1].log).read_text(encoding="utf-8", errors="replace")

    def stop(self) -> None:
        """Stops all processes, including paused ones."""
        self.go_on(*self.ids)
        self.processes.stop_all()
        if self._fabric is not None:
            self._fabric.close()

    def leader(self, told: Iterable[Mapping[str, Any]]) -> int:
        """Returns the process that leads, according to the states that the processes reported to nodes (`told`); the
        first process if none is known to lead.
        """
        return next((each["leader"] for each in told if each["leader"] in self.ids), self.ids[0])

    def _children(self, number: int) -> list[psutil.Process]:
        pid = self.processes.pid(number)
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(pid).children() if pid is not None and self.is_running(number) else []
        return []

    def _signal_children(self, number: int, which: signal.Signals) -> None:
        for child in self._children(number):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(which)


def _above_proxies() -> int:
    """Returns the first port of a range, from APART_FROM on, in which all ports that the processes need are free.
    Raises LocalError if there is none.
    """
    for base in range(APART_FROM, 65536 - PORTS, PORTS):
        if all(map(is_free, range(base, base + PORTS))):
            return base
    raise LocalError("no ports are free for the registry", f"all from {APART_FROM} on were tried", "ss -ltn")

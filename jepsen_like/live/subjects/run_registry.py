"""The registry of a run: three processes as `raftmq up` starts them, made through the same functions."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

import psutil

from cluster.config.local_layout import NodeRecord
from jepsen_like.live.subjects.processes import OfProcesses
from jepsen_like.live.subjects.raftmq_subject import RaftMQSubject
from raftmq.local.process import free_base_port
from raftmq.local.registry_processes import PORTS, plan_registry, servers_of, tell_nodes, write_registry
from raftmq.local.waiting import until

_ENDED_S = 10.0


class RunRegistry(OfProcesses):
    """The processes by their ids. Nothing depends on them, so nobody waits for them here."""

    def __init__(self, first: RaftMQSubject) -> None:
        """Plans them, with ports of their own; makes nothing."""
        self.processes = first.processes.beside()
        self._data = first.data
        self._records = plan_registry(first.data, free_base_port(PORTS), [])
        self.ids = [record.id for record in self._records]
        self.ports = {record.id: record.port for record in self._records}
        """Process -> its port for clients."""

    @property
    def servers(self) -> str:
        """The addresses for clients."""
        return servers_of(self._records)

    def make(self, uuid: UUID, nodes: Iterable[NodeRecord]) -> None:
        """Writes the files of the processes, and has these nodes register there. Raises LocalError."""
        write_registry(self._data, self._records, uuid)
        tell_nodes(nodes, self._records, wanted=True)

    def start(self, *numbers: int) -> None:
        """Starts processes that do not run."""
        for record in self._records:
            if record.id in numbers:
                command = [sys.executable, "-P", "-m", record.module, "--config", str(record.config_path)]
                self.processes.start(record.id, command, Path(record.log), dict(os.environ))

    def lose(self, *numbers: int) -> None:
        """Kills processes with -9 at the same moment, and waits until their children have ended, too."""
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
        """Ends all processes, including paused ones."""
        self.go_on(*self.ids)
        self.processes.stop_all()

    def _children(self, number: int) -> list[psutil.Process]:
        pid = self.processes.pid(number)
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(pid).children() if pid is not None and self.is_running(number) else []
        return []

    def _signal_children(self, number: int, which: signal.Signals) -> None:
        for child in self._children(number):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(which)

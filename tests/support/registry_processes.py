"""The processes of a registry as an operator runs them, `python -m cluster.registry`, for a cluster on this machine."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import tomlkit

from cluster.config.local_layout import NodeRecord
from raftmq.local.process import free_base_port
from tests.support.pace import at_most
from tests.support.wait_until import wait


class RegistryProcesses:
    """Three processes, by id."""

    def __init__(self, folder: Path, cluster: uuid.UUID, secret: Path, count: int = 3) -> None:
        self.folder = folder
        self.base = base = free_base_port(3 * count)
        self.count = count
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        processes = [f"127.0.0.1:{base + 2 * count + at}" for at in range(count)]
        for number in range(1, count + 1):
            self.home(number).mkdir(parents=True)
            text = tomlkit.dumps(
                {
                    "id": number,
                    "cluster_id": str(cluster),
                    "secret_file": str(secret),
                    "data_dir": "data",
                    "processes": processes,
                    "port": base + number - 1,
                    "peer_port": base + count + number - 1,
                }
            )
            (self.home(number) / "registry.toml").write_text(text)

    def home(self, number: int) -> Path:
        return self.folder / f"r{number}"

    @property
    def servers(self) -> str:
        """The addresses for clients."""
        return ";".join(f"127.0.0.1:{self.base + at}" for at in range(self.count))

    def join(self, nodes: list[NodeRecord]) -> None:
        """Has nodes, which do not run, register with these processes."""
        for node in nodes:
            document = tomlkit.parse(node.config_path.read_text())
            table = document.setdefault("cluster", tomlkit.table())
            table["registry"] = [f"127.0.0.1:{self.base + self.count + at}" for at in range(self.count)]
            node.config_path.write_text(tomlkit.dumps(document))

    def start(self, *numbers: int) -> None:
        for number in numbers or range(1, self.count + 1):
            home = self.home(number)
            command = [sys.executable, "-P", "-m", "cluster.registry", "--config", str(home / "registry.toml")]
            with (home / "log").open("ab") as log:
                self.running[number] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self, *numbers: int) -> None:
        """kill -9 of the processes; their children end with them."""
        for number in numbers or list(self.running):
            process = self.running.pop(number)
            process.kill()
            process.wait(at_most(10))

    def stop(self) -> list[int]:
        """Ends all in order; returns their exit codes."""
        ended = list(self.running.values())
        self.running = {}
        for process in ended:
            process.send_signal(signal.SIGTERM)
        return [process.wait(at_most(20)) for process in ended]

    def wipe(self) -> None:
        """All disks are lost."""
        for number in range(1, self.count + 1):
            folder = self.home(number) / "data"

            def gone(folder: Path = folder) -> bool:
                shutil.rmtree(folder, ignore_errors=True)  # the child of a killed process may write until it ends, too
                return not folder.exists()

            wait(gone)

    def log(self, number: int) -> str:
        return (self.home(number) / "log").read_text(errors="replace")

"""RaftMQ as a system under test: three nodes as `raftmq up` starts them, with default settings or with some others."""

from __future__ import annotations

import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

from bench.peers.system import HERE, NODES, TOPIC, Generator, Load, Node, NoLeader, Places, Traits
from bench.peers.three_processes import Group
from cluster.config.local_layout import NodeRecord
from cluster.config.node_files import HOST, plan_nodes, write_configs
from raftmq.commands import bench_load
from raftmq.local.init import create_data_dirs
from raftmq.local.process import free_base_port
from raftmq.local.status import GroupStatus, NodeView, fetch_status
from raftmq_wire.errors import LocalError

READY_S = 30.0
THRIFTY = '\n[replication]\nthrifty = "on"\n'
"""The lines of each node's configuration file with which the third replica gets entries in batches."""


class RaftMQ(Group):
    """A `System` of three RaftMQ nodes."""

    def __init__(self, name: str, settings: str, places: Places = HERE) -> None:
        """`settings`: lines at the end of each node's file."""
        super().__init__(places)
        self._settings = settings
        self.traits = Traits(name, version("raftmq"), "majority fdatasync", warm_s=3.0, batches=True)
        self._planned: list[NodeRecord] = []

    def start(self, directory: Path) -> None:
        """Starts nodes as `raftmq up` does, but as processes of the benchmark. Raises NoLeader."""
        self._home = directory
        try:
            self._planned = plan_nodes(directory, NODES, free_base_port(4 * NODES))
            write_configs(self._planned)
            for number in range(NODES):
                self._move(number)
                with self._planned[number].config_path.open("a") as file:
                    file.write(self._settings)
            create_data_dirs([node.config_path for node in self._planned], os.environ)
        except LocalError as error:
            raise NoLeader(str(error)) from error
        self._start_all(lambda number: self._planned[number].broker_port)
        until = time.monotonic() + READY_S
        while not self._view().ready:
            if time.monotonic() > until or self.processes.ended():
                raise NoLeader(f"raftmq is not ready; see {self._planned[0].log}")
            time.sleep(0.1)

    def leader(self) -> Node:
        """Returns the node that leads the highest term and accepts writes."""
        view = self._view()
        if view.leader is None or not view.writes_open:
            raise NoLeader("no node of raftmq takes writes")
        return self._nodes[view.leader - 1]

    def generator(self, load: Load) -> Generator:
        """Returns a generator of sends in RocketMQ frames."""
        return bench_load.Load(TOPIC, load.size, load.batch, load.in_flight, load.seconds)

    def _view(self) -> GroupStatus:
        hosts = [place.host for place in self.places.nodes]
        return GroupStatus(
            [
                NodeView(record, True, fetch_status(f"{host}:{record.admin_port}"))
                for record, host in zip(self._planned, hosts, strict=True)
            ]
        )

    def _start(self, number: int) -> int:
        """Starts a node as `raftmq.local.process.start_node` does."""
        record = self._planned[number]
        node = [sys.executable, "-P", "-m", record.module, "--config", str(record.config_path)]
        return self.processes.start([*self.places.nodes[number].enter, *node], Path(record.log))

    def _move(self, number: int) -> None:
        """Writes the addresses of the places into a node's file, if the nodes are not all on loopback."""
        if self.places == HERE:
            return
        file = self._planned[number].config_path
        text, own = file.read_text(), self.places.nodes[number].host
        for section in ("[peer]", "[admin]", "[[listeners]]"):
            text = text.replace(f"{section}\n", f'{section}\nbind = "{own}"\n')
        for record, place in zip(self._planned, self.places.nodes, strict=True):
            text = text.replace(f"id = {record.id}\nport =", f'id = {record.id}\nhost = "{place.host}"\nport =')
            for port in record.ports.values():
                text = text.replace(f'"{HOST}:{port}"', f'"{place.host}:{port}"')
        file.write_text(text)

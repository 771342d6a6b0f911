"""RaftMQ as `raftmq up` starts it: three nodes, default settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from bench.peers.processes import Processes
from bench.peers.system import NODES, TOPIC, Generator, Load, Node, NoLeader, Traits
from cluster.config.local_layout import ClusterFile, NodeRecord, read_cluster, write_cluster
from cluster.config.node_files import plan_nodes, write_configs
from cluster.errors import LocalError
from raftmq.commands import bench_load
from raftmq.local.cluster import LocalCluster
from raftmq.local.init import create_data_dirs
from raftmq.local.process import NODE_MODULE, free_base_port


class RaftMQ:
    """See `bench.peers.system.System`."""

    def __init__(self) -> None:
        self.traits = Traits("raftmq", version("raftmq"), "majority fdatasync", warm_s=3.0, batches=True)
        self.processes = Processes()
        self._cluster = LocalCluster(Path())

    def start(self, directory: Path) -> None:
        """What `raftmq up` does, but the processes are ours. Raises NoLeader with what `raftmq up` would have said."""
        self._cluster = LocalCluster(directory)
        try:
            planned = plan_nodes(directory, NODES, free_base_port(4 * NODES))
            write_configs(planned)
            create_data_dirs([node.config_path for node in planned], os.environ)
            write_cluster(directory, ClusterFile(planned))
            for node in planned:
                self._start(node)
            self._cluster.wait_ready()
        except LocalError as error:
            raise NoLeader(str(error)) from error

    @property
    def nodes(self) -> Sequence[Node]:
        """From cluster.json."""
        return [_node(record) for record in self._cluster.nodes]

    def leader(self) -> Node:
        """The node that leads the highest term and takes writes."""
        view = self._cluster.view()
        for record in self._cluster.nodes:
            if record.id == view.leader and view.writes_open:
                return _node(record)
        raise NoLeader("no node of raftmq takes writes")

    def generator(self, load: Load) -> Generator:
        """RocketMQ frames."""
        return bench_load.Load(TOPIC, load.size, load.batch, load.in_flight, load.seconds)

    def restart(self, node: Node) -> None:
        """Starts the node's process; it joins by itself."""
        self._start(self._cluster.nodes[node.number])

    def stop(self) -> None:
        """Ends the nodes."""
        self.processes.end()

    def _start(self, node: NodeRecord) -> None:
        """Starts a node as `raftmq.local.process.start_node` does, and writes its pid into cluster.json."""
        command = [sys.executable, "-P", "-m", NODE_MODULE, "--config", str(node.config_path)]
        pid = self.processes.start(command, Path(node.log))
        data = self._cluster.data
        write_cluster(data, read_cluster(data).with_pid(node.id, pid))


def _node(record: NodeRecord) -> Node:
    return Node(record.id - 1, record.broker_port, record.pid or 0)

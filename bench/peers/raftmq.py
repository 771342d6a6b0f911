"""RaftMQ as `raftmq up` starts it: three nodes, default settings."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from bench.peers.processes import Processes
from bench.peers.system import NODES, TOPIC, Generator, Load, Node, NoLeader, Traits
from cluster.config.local_layout import NodeRecord
from cluster.errors import LocalError
from raftmq.commands import bench_load
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port


class RaftMQ:
    """See `bench.peers.system.System`."""

    def __init__(self) -> None:
        self.traits = Traits("raftmq", version("raftmq"), "majority fdatasync", warm_s=3.0, batches=True)
        self.processes = Processes()
        self._cluster = LocalCluster(Path())

    def start(self, directory: Path) -> None:
        """Raises NoLeader with what `raftmq up` would have said."""
        self._cluster = LocalCluster(directory / "data")
        try:
            self._cluster.up(NODES, free_base_port(4 * NODES))
        except LocalError as error:
            raise NoLeader(str(error)) from error
        for node in self.nodes:
            self.processes.adopt(node.pid)

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
        """Waits until the node knows a leader."""
        try:
            pid = self._cluster.restart(node.number + 1)
        except LocalError as error:
            raise NoLeader(str(error)) from error
        self.processes.adopt(pid)

    def stop(self) -> None:
        """Ends the nodes."""
        self.processes.end()


def _node(record: NodeRecord) -> Node:
    return Node(record.id - 1, record.broker_port, record.pid or 0)

"""A further group of brokers, which joins a running cluster. It is made and added by the same functions that `raftmq up
--groups` uses.
"""

from __future__ import annotations

from cluster.config.node_files import plan_group
from jepsen_like.live.subjects.raftmq_nodes import RaftMQNodes
from jepsen_like.live.subjects.raftmq_subject import RaftMQSubject
from raftmq.local.further_groups import add_groups, make_group
from raftmq.local.process import free_base_port, is_free


class FurtherGroup(RaftMQNodes):
    """The nodes of a further group: `make`, `start` and `add` in this order bring it into the cluster."""

    def __init__(self, first: RaftMQSubject, number: int, count: int = 3) -> None:
        """Plans the nodes, with ports that no other node has."""
        base = free_base_port(4 * count)
        super().__init__(
            first.data, first.processes.beside(), plan_group(first.data, number, count, base, first.nodes, is_free)
        )
        self.number = number
        self._first = first

    def make(self) -> None:
        """Makes the directories, with the uuid, secret and settings of the first group. Raises LocalError."""
        make_group(self.nodes, self._first.nodes)

    def start(self) -> None:
        """Starts all nodes."""
        for node in self.node_ids:
            self.start_node(node)

    def start_node(self, node: int) -> None:
        """Starts a node that does not run, without waiting for it to join."""
        self.run(node, {})

    def add(self) -> None:
        """Adds the group to the cluster, unless it was added before. Raises LocalError and RaftMQError."""
        add_groups(self.nodes, self._first.nodes)

    def stop(self) -> None:
        """Stops all nodes, including paused ones."""
        self.processes.stop_all()
        self._pool.shutdown()

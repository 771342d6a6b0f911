"""Reports of the nodes of one Raft group of the simulated world which ones run, which one takes writes, and whether all
are equal."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.node.node import Node
from jepsen_like.sim.machines.machine import Machine
from raftlog.types import NodeId


class GroupStates:
    """The states of the nodes on some machines. Each call reads the present state."""

    def __init__(self, machines: Mapping[NodeId, Machine]) -> None:
        """`machines`: those of the group; they may become more."""
        self._machines = machines

    def members(self) -> list[Machine]:
        """Returns the machines whose nodes are members of the Raft group, or will be once all changes are done."""
        return [machine for machine in self._machines.values() if not machine.retired]

    def running(self) -> list[Node]:
        """Returns the nodes that run and whose rows may be read."""
        return [node for m in self.members() if (node := m.readable) is not None and hasattr(node, "raw")]

    def writable(self) -> bool:
        """Returns True if a node leads and takes writes."""
        nodes = [machine.node for machine in self._machines.values()]
        return any(node is not None and hasattr(node, "serving") and node.serving.proposals.open for node in nodes)

    def healthy(self) -> bool:
        """Returns True if all members run in one term, and one of them takes writes."""
        if not self.writable():
            return False
        nodes = self.running()
        return len(nodes) == len(self.members()) and len({node.raw.term for node in nodes}) == 1

    def equal(self) -> bool:
        """Returns True if all members have applied the same entries, up to the end of their logs."""
        nodes = self.running()
        marks = {(n.state.applied, n.raw.raft.log.tail.index, n.raw.commit_index) for n in nodes}
        return (
            len(nodes) == len(self.members())
            and len(marks) == 1
            and all(
                n.state.applied.index == n.raw.raft.log.tail.index and not n.integrity.installs.missing_bytes
                for n in nodes
            )
        )

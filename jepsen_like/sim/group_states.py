"""Answers questions about the nodes of one simulated Raft group: which ones run, which one takes writes, and whether
all are equal.
"""

from __future__ import annotations

from collections.abc import Mapping

from cluster.node.node import Node
from cluster.peer.transport import BULK, CONTROL
from cluster.replication.message_batch import Send
from jepsen_like.sim.machines.machine import PEER_PORT, Machine
from jepsen_like.sim.machines.network import Network
from raftlog.types import NodeId


class GroupStates:
    """Answers questions about the nodes on some machines, each time from their present state."""

    def __init__(self, machines: Mapping[NodeId, Machine]) -> None:
        """`machines`: node id -> machine, for the machines of the group. The caller may add more."""
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

    def taken(self) -> int:
        """Returns the number of messages that the running nodes have acknowledged since their starts."""
        return sum(node.meters.traffic.messages_taken for node in self.running())

    def open_transactions(self) -> int:
        """Returns the number of transactions that nobody has ended: the largest of the running nodes' numbers; 1 if no
        node runs."""
        return max([node.state.halves.pending.count for node in self.running()], default=1)

    def timers(self) -> int:
        """Returns the number of waiting delayed messages: the largest of the running nodes' numbers; 1 if no node
        runs."""
        return max([node.state.timers.counts.pending for node in self.running()], default=1)

    def draining(self) -> int:
        """Returns the number of attempts at staged writes whose messages are being copied or removed: the largest of
        the running nodes' numbers; 1 if no node runs."""
        return max([len(node.state.writes.draining) for node in self.running()], default=1)

    def resets_of(self, group: str) -> int:
        """Returns the number of open offset resets of a group: the largest of the running nodes' numbers; 1 if no node
        runs."""
        return max([len(node.state.resets_of_group(group)) for node in self.running()], default=1)

    def end_of(self, topic: str, queue: int) -> int:
        """Returns the offset after the queue's last message that any node has applied."""
        states = [node.state for node in self.running() if topic in node.state.topics]
        return max([state.max_offset(state.topics[topic].id, queue) for state in states], default=0)

    def first_of(self, topic: str, queue: int) -> int:
        """Returns the highest first offset that the queue has on any node."""
        states = [node.state for node in self.running() if topic in node.state.topics]
        return max([state.min_offset(state.topics[topic].id, queue) for state in states], default=0)

    def reign_of(self, host: str) -> object:
        """Returns the term of the node at this address if it leads and takes writes, else None."""
        for machine in self._machines.values():
            node = machine.node
            if machine.host == host and node is not None and hasattr(node, "serving") and node.serving.proposals.open:
                return node.raw.term
        return None

    def reign(self) -> tuple[int, int] | None:
        """Returns (term, node) of the leader that takes writes; None if there is none."""
        open_at = [node for node in self.running() if node.serving.proposals.open]
        return max(((node.raw.term, int(node.node_id)) for node in open_at), default=None)

    def crowded(self) -> bool:
        """Returns True if a leader holds more bytes of unanswered sends than its overload limit allows, or refuses
        sends because of that limit.
        """
        leaders = [node.serving.proposals for node in self.running() if node.serving.proposals.open]
        return any(
            each.flow.limit.overloaded or each.gate.sends.bytes > each.flow.limit.house_bytes for each in leaders
        )

    def waiting_sends(self) -> list[Send]:
        """Returns the sends that wait in the proposal queue of the leader that takes writes; [] if there is none."""
        return [
            send for node in self.running() if node.serving.proposals.open for send in node.serving.proposals._sends
        ]


class GroupReach:
    """Tells whether the nodes of a group reach each other. It asks the simulated network, which knows more than the
    nodes do.
    """

    def __init__(self, network: Network, states: GroupStates) -> None:
        self._network, self._states = network, states

    def is_linked(self) -> bool:
        """Returns True if every member runs and reaches all others, none is paused or stalled (seed 810000024), and no
        connection that one member dialled to another is dead. After the heal, nodes notice dead connections in time and
        dial again (seed 41650136). The accepting end of a dead connection may stay: nodes send nothing on it.
        """
        hosts = {machine.host for machine in self._states.members()}
        nodes = self._states.running()
        processes = [machine.process for machine in self._states.members()]
        return (
            len(nodes) == len(hosts)
            and not any(each is None or each.paused or each.stalls for each in processes)
            and all(node.peers.transport.reaches_all() for node in nodes)
            and not any(end.other[1] == PEER_PORT for end in self._network.dead_ends(hosts))
        )

    def is_calm(self) -> bool:
        """Returns True if the nodes reach each other (`is_linked`), and no link is cut, slow or without power."""
        links = self._network.links
        return not (links.cuts or links.slow or links.down) and self.is_linked()

    def is_deaf(self) -> bool:
        """Returns True if a member has no connection to another, or has one that a middlebox has forgotten. A
        connection may be missing for seconds: a member repeats its dial to a machine without power after 1 s, and then
        after 2 s more (seed 953500102).
        """
        ids = {machine.node_id for machine in self._states.members()}
        linked = all(
            (other, channel) in node.peers.transport.links
            for node in self._states.running()
            for other in ids - {node.node_id}
            for channel in (CONTROL, BULK)
        )
        return not linked or self._network.forgets({machine.host for machine in self._states.members()})

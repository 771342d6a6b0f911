"""The in-memory twin of `transport.PeerTransport`: nodes of one process, a network whose faults are the caller's.

The very bytes of `wire` travel, in order per (from, to, channel) as on TCP, so whatever one side cannot encode or the
other not decode shows here too. Used by the simulator and by tests; a node on a real network never sees it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Any

from cluster.peer.roster import REMOVED, Addresses, Membership, Refusal
from cluster.peer.transport import BULK, CONTROL, Handlers
from cluster.peer.wire import FRAME_MAX, NODE_KINDS, Kind, WireError, decode_message, encode_message, pack, unpack
from cluster.runtime.framing import FrameBuffer
from raftlog.messages import AppendEntries, Message
from raftlog.types import NodeId

TICK_S = 1e-7
"""Between two frames of a channel: timers that are due at the same moment have no order."""


class MemoryNetwork:
    """All links of a group. Every choice comes from `rng`, all time from `loop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: random.Random, group_id: int) -> None:
        self.group_id = group_id
        self.delay_s = (0.0002, 0.002)
        """Each frame takes a time drawn from this range; none overtakes another of its channel."""
        self.loss = 0.0
        """Chance that a Raft message is lost. Forwarded requests are not: a TCP connection loses nothing silently."""
        self.lost = 0
        self._loop = loop
        self._rng = rng
        self._nodes: dict[NodeId, MemoryTransport] = {}
        self._cut: set[tuple[NodeId, NodeId]] = set()
        self._free_at: dict[tuple[NodeId, NodeId, str], float] = {}

    # --- faults ------------------------------------------------------------------------------------------------------

    def cut(self, sender: NodeId, receiver: NodeId) -> None:
        """Nothing more arrives in this direction: frames vanish, connections look alive."""
        self._cut.add((sender, receiver))

    def isolate(self, node: NodeId) -> None:
        """Cuts a node off in both directions."""
        for other in self._nodes:
            if other != node:
                self._cut |= {(node, other), (other, node)}

    def heal(self) -> None:
        """Every direction carries again. What was forwarded into the cut is reported as a closed connection."""
        cut, self._cut = self._cut, set()
        for sender, receiver in sorted(cut):
            self.reset(sender, receiver)

    def reset(self, a: NodeId, b: NodeId) -> None:
        """Closes the connections between two nodes; both hear of it."""
        for here, there in ((a, b), (b, a)):
            node = self._nodes.get(here)
            if node is not None and node.handlers is not None:
                node.handlers.closed(there)

    # --- transports --------------------------------------------------------------------------------------------------

    def join(self, node: MemoryTransport) -> None:
        """A node listens."""
        self._nodes[node.node_id] = node

    def leave(self, node: MemoryTransport) -> None:
        """A node is gone; its peers hear it as a closed connection."""
        if self._nodes.get(node.node_id) is not node:
            return
        del self._nodes[node.node_id]
        for other in sorted(self._nodes):
            if (node.node_id, other) not in self._cut:
                self._loop.call_soon(self._nodes[other].on_closed, node.node_id)

    def connected(self, sender: NodeId, receiver: NodeId) -> bool:
        """Whether `receiver` listens; a cut is not noticed."""
        return receiver in self._nodes

    def carry(self, sender: MemoryTransport, receiver: NodeId, channel: str, data: bytes) -> bool:
        """Takes whole frames; False if the receiver does not listen."""
        target = self._nodes.get(receiver)
        if target is None:
            return False
        name = (sender.node_id, receiver, channel)
        drawn = self._loop.time() + self._rng.uniform(*self.delay_s)
        at = max(self._free_at.get(name, 0.0) + TICK_S, drawn)
        self._free_at[name] = at
        self._loop.call_at(at, self._arrive, sender, target, data)
        return True

    def loses(self) -> bool:
        """Draws whether the next Raft message is lost."""
        return self.loss > 0 and self._rng.random() < self.loss

    def _arrive(self, sender: MemoryTransport, target: MemoryTransport, data: bytes) -> None:
        if (sender.node_id, target.node_id) in self._cut or self._nodes.get(target.node_id) is not target:
            self.lost += 1
            return
        refusal = target.refusal_of(sender.node_id)
        if refusal is None:
            target.receive(sender.node_id, data)
        else:
            self._loop.call_soon(sender.on_refused, target.node_id, refusal)


class MemoryTransport:
    """What a node has of a MemoryNetwork: `send`, `send_frame` and `connected` as of PeerTransport."""

    def __init__(self, network: MemoryNetwork, node_id: NodeId) -> None:
        self.node_id = node_id
        self.handlers: Handlers | None = None
        self.dropped = 0
        self._network = network
        self._membership: Membership | None = None

    async def start(self, handlers: Handlers) -> None:
        """Listens."""
        self.listen(handlers)

    def listen(self, handlers: Handlers) -> None:
        """The same for callers that cannot await."""
        self.handlers = handlers
        self._network.join(self)

    async def close(self) -> None:
        """Closes every connection."""
        self.drop()

    def drop(self) -> None:
        """The same at once, as when a process dies."""
        self._network.leave(self)
        self.handlers = None

    def set_members(self, membership: Membership, addresses: Addresses) -> None:
        """Those that left are not listened to any more; everybody else is, member or guest."""
        self._membership = membership

    def refusal_of(self, peer: NodeId) -> Refusal | None:
        """Why nothing of that node is taken; None if it is."""
        left = self._membership.removed.get(peer) if self._membership is not None else None
        return Refusal(f"node {peer} was removed", REMOVED, left.since) if left is not None else None

    def on_refused(self, peer: NodeId, refusal: Refusal) -> None:
        """What this node sent was not let in."""
        if self.handlers is not None:
            self.handlers.refused(peer, refusal)

    def send(self, messages: Iterable[Message]) -> None:
        """Sends Raft messages; what cannot be sent now is lost."""
        for message in messages:
            channel = BULK if isinstance(message, AppendEntries) else CONTROL
            if self._network.loses() or not self._carry(message.to_id, channel, b"".join(encode_message(message))):
                self.dropped += 1

    def send_frame(self, peer: NodeId, kind: Kind, header: list[Any], payload: bytes) -> bool:
        """Sends a forwarded request or its reply; False if the peer cannot be reached now."""
        return self._carry(peer, BULK, pack(kind, header, len(payload)) + payload)

    def connected(self, peer: NodeId) -> bool:
        """True if something sent now has a connection to travel on."""
        return self._network.connected(self.node_id, peer)

    def on_closed(self, peer: NodeId) -> None:
        """A connection from or to the peer closed."""
        if self.handlers is not None:
            self.handlers.closed(peer)

    def receive(self, peer: NodeId, data: bytes) -> None:
        """Frames from a peer. Raises WireError: between nodes of one process that is a defect."""
        if self.handlers is None:
            return
        buffer, frames = FrameBuffer(FRAME_MAX).feed(data)
        for start, stop in frames:
            kind, header, payload = unpack(buffer, start, stop)
            if kind in NODE_KINDS:
                self.handlers.frame(peer, kind, header, payload)
                continue
            message = decode_message(kind, header, payload, self._network.group_id)
            if message.from_id != peer or message.to_id != self.node_id:
                raise WireError(f"a message from {message.from_id} to {message.to_id} on node {peer}'s connection")
            self.handlers.message(message)

    def _carry(self, peer: NodeId, channel: str, data: bytes) -> bool:
        return self._network.carry(self, peer, channel, data)

"""Keeps requests of other nodes' clients that arrived before this node could handle them.

A request is kept for one of two reasons. This node's writes are not open yet, for milliseconds after its election. Or
this node has no connection to the sending node yet, so an answer would be lost. The kept requests are handled in the
order in which they came, a few in each turn. Requests that the same node forwards in the meantime wait behind them,
because they may belong to the same client.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from cluster.remoting.forward.forward_frame import header_bytes
from cluster.requests.table import SENDS
from raftmq_wire.codec import FLAG_ONEWAY, CodecError, decode_header

if TYPE_CHECKING:
    from cluster.flow.gate import Gate
    from cluster.flow.hold import Hold
    from cluster.remoting.forward.forward_frame import Forwarded
    from raftlog.types import NodeId

RelayedClient = tuple[tuple[str, int], str]
"""The address of a client behind another node, and the listener that it came to."""


class _Early(NamedTuple):
    forwarded: Forwarded
    frame: bytes
    hold: Hold

    @property
    def client(self) -> RelayedClient:
        return self.forwarded.client, self.forwarded.listener


class EarlyRequests:
    """The requests that wait on this node, in the order in which each node forwarded them."""

    def __init__(self, gate: Gate) -> None:
        """`gate` accounts for the memory of the requests."""
        self._gate = gate
        self._waiting: dict[NodeId, OrderedDict[int, _Early]] = {}
        """Node -> forward id -> request; only nodes with waiting requests."""
        self._clients: dict[NodeId, dict[RelayedClient, set[int]]] = {}
        """The same requests: node -> client -> forward ids."""

    def __len__(self) -> int:
        return sum(len(waiting) for waiting in self._waiting.values())

    def nodes(self) -> Collection[NodeId]:
        """Returns the nodes whose forwarded requests wait here."""
        return self._waiting.keys()

    def put(self, node: NodeId, forwarded: Forwarded, frame: bytes) -> bool:
        """Keeps a request for later. `forwarded`: the header of its FORWARD frame. Returns False if there is no room
        for it."""
        hold = self._gate.hold_early(len(frame))
        if hold is None:
            return False
        early = _Early(forwarded, frame, hold)
        self._remove(node, forwarded.forward_id)
        self._waiting.setdefault(node, OrderedDict())[forwarded.forward_id] = early
        self._clients.setdefault(node, {}).setdefault(early.client, set()).add(forwarded.forward_id)
        return True

    def gone(self, node: NodeId, forward_id: int) -> None:
        """Forgets a request whose client has disconnected, and the sends of that client that wait with it."""
        early = self._remove(node, forward_id)
        if early is not None:
            self.client_gone(node, early.client)

    def client_gone(self, node: NodeId, client: RelayedClient) -> None:
        """Forgets the sends of a client that has disconnected.

        The other node reports one send after the other, but all are forgotten at the first report. Otherwise, if the
        client had sent them again over another connection, a later send that was still here could be stored before an
        earlier one.
        """
        for forward_id in list(self._clients.get(node, {}).get(client, ())):
            if _is_awaited_send(self._waiting[node][forward_id].frame):
                self._remove(node, forward_id)

    def take(self, node: NodeId) -> tuple[Forwarded, bytes] | None:
        """Removes and returns the next request of this node; None if there is none."""
        early = self._remove(node, next(iter(self._waiting.get(node, ())), -1))
        return early and (early.forwarded, early.frame)

    def drop(self, node: NodeId) -> None:
        """Forgets the requests of a node whose connection closed; the node will forward them again."""
        for early in self._waiting.pop(node, {}).values():
            early.hold.ended()
        self._clients.pop(node, None)

    def _remove(self, node: NodeId, forward_id: int) -> _Early | None:
        waiting = self._waiting.get(node)
        early = waiting.pop(forward_id, None) if waiting is not None else None
        if waiting is None or early is None:
            return None
        early.hold.ended()
        clients = self._clients[node]
        clients[early.client].remove(forward_id)
        if not clients[early.client]:
            del clients[early.client]
        if not waiting:
            self.drop(node)
        return early


def _is_awaited_send(frame: bytes) -> bool:
    try:
        header = decode_header(frame[0], header_bytes(frame))
    except CodecError:  # this request is answered later, on its own
        return False
    return header.code in SENDS and not header.flag & FLAG_ONEWAY

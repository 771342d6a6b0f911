"""Defines the values that a transport between peers gets when it is made and started: the callbacks for frames, the
network for heartbeats, the levels and the limits of its waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from cluster.peer.allowed_peers import HostAndPort, Refusal
from cluster.peer.connections import HANDSHAKE_S
from cluster.peer.keyring import Keyring
from raftlog.format_versions import BASELINE
from raftlog.messages import Message
from raftlog.types import NodeId
from statemachine.levels import LEVEL

DIAL_S = 2.0
"""Seconds after which a dial is given up and repeated. Without this limit a dial into a partition would last minutes,
until the system's own timeout."""


class OtherGroups(Protocol):
    """The service of the channel `group` (`cluster.peer.group_links`)."""

    def why_full(self, group: int, node: NodeId) -> str:
        """Returns the reason why a connection of that node cannot be accepted now; "" if it can."""

    def accept(self, transport: asyncio.Transport, group: int, node: NodeId, key_id: bytes) -> asyncio.Protocol:
        """Takes over an accepted connection of that node of another group. Returns the protocol that handles the
        connection from now on. `key_id`: the id of the key that the node has proven, b"" if none."""

    def use(self, keyring: Keyring) -> None:
        """If the keyring demands a proof, closes the connections that have proven none of its keys."""


class FrameHandlers(NamedTuple):
    """Callbacks for received frames and lost connections, all called on the event loop."""

    message: Callable[[Message], None]
    closed: Callable[[NodeId], None]
    """Called when a control connection from or to the peer closed."""
    frame: Callable[[NodeId, int, list[Any], bytes], None]
    """Called for forwarded requests, fetches and the replies to both, and every other kind in NODE_KINDS: (peer, kind,
    header, payload). May raise WireError."""
    refused: Callable[[NodeId, Refusal], None] = lambda peer, refusal: None
    """Called when a peer refuses this node."""
    frames_lost: Callable[[NodeId], None] = lambda peer: None
    """Called when a bulk connection from or to the peer closed: frames that were sent over this connection, or answers
    to them, may be lost."""


class HeartbeatNet(NamedTuple):
    """A separate network for heartbeats, votes and acknowledgements: the control connections."""

    bind: HostAndPort | None = None
    """The address at which this node listens for control connections besides its peer port; None for the peer port
    alone."""
    addresses: Mapping[NodeId, HostAndPort] = MappingProxyType({})
    """The addresses at which this node dials peers for control connections. It dials peers that are not in this mapping
    at their peer port."""


class PeerLevels(NamedTuple):
    """The levels that nodes tell each other (`statemachine.levels`)."""

    own: int = LEVEL
    """The level of commands up to which this node can apply entries."""
    announced: dict[NodeId, int] | None = None
    """A mapping that the transport keeps up to date: peer -> the level that it announced, while it is connected. None
    if the caller does not need it."""
    of_cluster: Callable[[], int] = lambda: BASELINE
    """Returns the level of the cluster in the applied state."""


class PeerWaits(NamedTuple):
    """Limits how long this node waits for a peer, in seconds."""

    dial_s: float = DIAL_S
    handshake_s: float = HANDSHAKE_S


PEER_WAITS = PeerWaits()

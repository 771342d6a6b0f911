"""Limits the connections of a peer port, and closes those of peers that send implausible messages.

Any process that reaches the port can connect. A connection without a finished handshake holds only a few hundred bytes,
so limiting their number bounds the cost of strangers. When there are too many, the address with the most connections
loses its oldest: an address that floods the port does not keep others out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from cluster.config.local_layout import node_object
from cluster.runtime.alarms import Alarms
from cluster.runtime.findings import Code
from cluster.runtime.logs import Seldom
from raftlog.errors import ImplausibleMessageError
from raftlog.types import FIRST_GROUP, NodeId

if TYPE_CHECKING:
    from cluster.peer.connections import Inlet


logger = logging.getLogger(__name__)

STRANGERS_MAX = 64
"""The most connections whose handshake is not finished."""
CHANNEL_INLETS_MAX = 4
"""The most connections of one peer on one channel. An honest peer has one, and perhaps older ones whose loss this node
has not noticed."""


class ConnectionAdmission:
    """Chooses which connections to the peer port to close, and logs refusals. Event loop only."""

    def __init__(self) -> None:
        self.refused = 0
        """Connections that were refused or closed because of their messages."""
        self._told = Seldom(logger)

    def surplus_stranger(self, inlets: Iterable[Inlet]) -> Inlet | None:
        """Returns the connection to close when more than STRANGERS_MAX connections have not finished their handshake:
        the oldest one from the address that has the most of them. Returns None while there is room."""
        strangers = [inlet for inlet in inlets if inlet.peer is None]
        if len(strangers) <= STRANGERS_MAX:
            return None
        most, _ = Counter(inlet.remote for inlet in strangers).most_common(1)[0]
        return next(inlet for inlet in strangers if inlet.remote == most)

    def surplus_of_peer(self, inlets: Iterable[Inlet], newest: Inlet) -> Inlet | None:
        """Returns the oldest connection of the same peer and channel to close, if there are more than a peer can need;
        else None."""
        same = [inlet for inlet in inlets if (inlet.peer, inlet.channel) == (newest.peer, newest.channel)]
        return same[0] if len(same) > CHANNEL_INLETS_MAX else None

    def note_refused(self, remote: str, why: str, now_s: float) -> None:
        """Counts and logs that a connection from the address `remote` was refused, for the reason `why`. `now_s`: the
        time in seconds, by which repeated lines are limited."""
        self.refused += 1
        self._told.warn(f"a connection from {remote or 'an unknown address'} is refused", why, now_s)

    def note_refusal_by(self, peer: str, why: str, now_s: float) -> None:
        """Logs that the peer, a text such as "node 2/1", refuses this node for the reason `why`."""
        self._told.warn(f"{peer} refuses this node", why or "no reason", now_s)


# The rest of this file handles peers that send implausible messages (`raftlog.core.message_plausibility`): this node
# closes their connections and raises an alarm.
#
# Either the peer violates the protocol, or this node has lost entries that it acknowledged. Both need an operator;
# neither requires the node to stop.

ALARM = Code("implausible_peer", "warning", "raftmq links")
QUIET_S = 600.0
"""Seconds without an implausible message after which the alarm is cleared."""


class CutsOff(Protocol):
    """The part of PeerTransport that ends connections."""

    def cut_off(self, peer: NodeId, why: str) -> None:
        """Closes the connections of a peer that sent an implausible message; the peer may connect again. `why` goes to
        the log."""


class Implausible:
    """Closes the connections of peers that send implausible messages, and raises an alarm that is cleared after
    QUIET_S. Event loop only."""

    def __init__(self, transport: CutsOff, alarms: Alarms, group: int = FIRST_GROUP) -> None:
        """`group`: the group of brokers of this node and its peers."""
        self._transport = transport
        self._alarms = alarms
        self._group = group
        self._quiet: asyncio.TimerHandle | None = None
        self.count = 0

    def note(self, peer: NodeId, error: ImplausibleMessageError) -> None:
        """Closes the peer's connections and raises the alarm, because the core has refused a message of the peer with
        `error`."""
        self.count += 1
        about = node_object(self._group, peer)
        self._transport.cut_off(peer, str(error))
        self._alarms.raise_alarm(
            ALARM,
            f"{about} sent an impossible message, and its connections were closed: {error}. If this continues, one "
            f"of the two nodes has lost data or is faulty: raftmq inspect-consistency, and the output of {about}",
        )
        if self._quiet is not None:
            self._quiet.cancel()
        self._quiet = asyncio.get_running_loop().call_later(QUIET_S, self._alarms.clear, ALARM)

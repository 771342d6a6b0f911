"""Peers that send implausible messages (`raftlog.core.plausible`): closes their connections and raises an alarm.

Either the peer violates the protocol, or this node has lost entries that it acknowledged. Both need an operator;
neither requires the node to stop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from cluster.runtime.alarms import Alarms
from raftlog.errors import ImplausibleMessageError
from raftlog.types import NodeId

logger = logging.getLogger(__name__)

ALARM = "implausible_peer"
QUIET_S = 600.0
"""The alarm ends after this long without an implausible message."""


class Transport(Protocol):
    """The part of PeerTransport that ends connections."""

    def cut_off(self, peer: NodeId, why: str) -> None:
        """See PeerTransport."""


class Implausible:
    """Event loop only."""

    def __init__(self, transport: Transport, alarms: Alarms) -> None:
        self._transport = transport
        self._alarms = alarms
        self._quiet: asyncio.TimerHandle | None = None
        self.count = 0

    def note(self, peer: NodeId, error: ImplausibleMessageError) -> None:
        """A message of that peer was refused by the core."""
        self.count += 1
        self._transport.cut_off(peer, str(error))
        self._alarms.raise_alarm(
            ALARM,
            f"node {peer} sent an impossible message, and its connections were closed: {error}. If this continues, one "
            f"of the two nodes has lost data or is faulty: raftmq inspect-consistency, and the output of node {peer}",
        )
        if self._quiet is not None:
            self._quiet.cancel()
        self._quiet = asyncio.get_running_loop().call_later(QUIET_S, self._alarms.clear, ALARM)

"""An orderly stop: leadership goes to another node first, then every client is answered and sent away.

In this order, because each step needs the next one's state untouched:

1. A leader hands over to the follower that is furthest. What it had proposed is decided by then or goes on under the
   new leader; what only waited here is passed on to it.
2. New connections are refused; clients find another node.
3. Once the new leader takes writes, each client's further requests are answered "not here, try again" (code 14), those
   under way get their answers, long polls are answered empty, and the connection is closed from this side.

Nothing of this is a promise: every wait ends, and what comes after is what a crash leaves to the peers and clients. A
node that nobody can follow, or that is told twice to stop, skips what cannot be had.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from raftlog.core.successor import successor
from raftlog.errors import NotLeaderError
from raftlog.types import NOBODY, NodeId, Role

if TYPE_CHECKING:
    from cluster.node.own_port import OwnPort
    from cluster.remoting.server import RemotingConnection

logger = logging.getLogger(__name__)

HAND_OVER_S = 2.0
SETTLE_S = 0.5
"""How long the new leader is waited for until it takes writes."""
DRAIN_S = 3.0
"""How long requests under way may take to be answered."""
FAREWELL_S = 0.5
"""How long clients have to close their side; what they say meanwhile is answered with code 14."""
POLL_S = 0.002
HOLD = "stop"
"""Why it does not campaign: a node that stops would be no leader for long."""
REMARK = "this node is stopping; nothing was done, try again"


def _waits(connection: RemotingConnection) -> bool:
    """A client that left has sent what was unanswered to somebody else."""
    return connection.inflight_bytes > 0 and not connection.closed


async def retire(node: OwnPort) -> None:
    """The first part of `Node.close`. Ends in bounded time whatever happens; does nothing for a node that failed."""
    try:
        if node.failure is None:
            await Retirement(node).run()
    except Exception:
        logger.exception("not everything could be handed over before the stop")


class Retirement:
    """See the module. Lives on the node's loop."""

    def __init__(self, node: OwnPort) -> None:
        self._node = node
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """The three steps."""
        node = self._node
        led = node.raw.role is Role.LEADER
        begun = self._loop.time()
        node.raw.hold_campaigns(HOLD, True)
        if led:
            await self._hand_over()
        handed = self._loop.time()
        node.listeners.close()
        await self._until(self._is_led, SETTLE_S)
        connections = len(node.router.connections)
        await self._send_away()
        logger.info(
            "stopping: %s%d connections closed in %.0f ms",
            f"leadership {self._where_to()} after {1000 * (handed - begun):.0f} ms, " if led else "",
            connections,
            1000 * (self._loop.time() - handed),
        )

    def _where_to(self) -> str:
        leader = self._node.raw.leader_id
        if self._node.raw.role is Role.LEADER:
            return "was wanted by nobody"
        return f"went to node {leader}" if leader != NOBODY else "was given up"

    # --- 1: leadership -----------------------------------------------------------------------------------------------

    async def _hand_over(self) -> None:
        node, raw = self._node, self._node.raw
        end = self._loop.time() + HAND_OVER_S
        patience_s = node.config.raft.election_ticks * node.config.raft.tick_ms / 1000
        passed_over: set[NodeId] = set()
        while raw.role is Role.LEADER and self._loop.time() < end and not node.hurried:
            to = self._successor(passed_over)
            if to == NOBODY:
                return
            passed_over.add(to)
            try:
                node.transfer(to)
            except NotLeaderError:
                return
            except ValueError:
                continue  # not fit, as it said meanwhile
            await self._until(self._passed(to), patience_s)

    def _successor(self, passed_over: Collection[NodeId]) -> NodeId:
        status, connected = self._node.raw.status(), self._node.transport.connected
        return successor(
            status.peers, status.voters, lambda peer: connected(peer.node_id) and peer.node_id not in passed_over
        )

    def _passed(self, to: NodeId) -> Callable[[], bool]:
        node = self._node
        return lambda: node.raw.role is not Role.LEADER or not node.transport.connected(to)

    def _is_led(self) -> bool:
        """Somebody else leads, and takes writes: an entry of its own term is applied here."""
        node, raw = self._node, self._node.raw
        if raw.role is Role.LEADER:
            return True  # nobody took over: there is nothing to wait for
        return node.transport.connected(raw.leader_id) and node.state.applied.term == raw.term

    # --- 3: clients --------------------------------------------------------------------------------------------------

    async def _send_away(self) -> None:
        node = self._node
        connections = list(node.router.connections)
        for connection in connections:
            connection.leave(REMARK)
        await self._until(lambda: node.proposals.idle and not any(map(_waits, connections)), DRAIN_S)
        node.pulls.long_polls.release()
        for connection in connections:
            connection.say_goodbye()
        await self._until(lambda: all(connection.closed for connection in connections), FAREWELL_S)

    async def _until(self, reached: Callable[[], bool], limit_s: float) -> None:
        """Returns early when the node has failed, or was told again to stop."""
        node, end = self._node, self._loop.time() + limit_s
        while not (  # noqa: ASYNC110 - once in the life of a node, over conditions of many owners
            reached() or node.failure is not None or node.hurried or self._loop.time() >= end
        ):
            await asyncio.sleep(POLL_S)

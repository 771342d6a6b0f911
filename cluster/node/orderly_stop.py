"""Stops a node in order: it first transfers leadership, and then answers and redirects every client.

The order of the steps matters, because each needs state that the next one changes:

1. A leader transfers leadership to the follower that can take over soonest. Its proposals are decided by then, or
   continue under the new leader. Requests that waited on this node without a proposal are forwarded to the new leader.
2. New connections are refused, so that clients connect to another node.
3. Once the new leader accepts writes, new requests are answered "not here, try again" (code 14), requests in progress
   get their answers, long polls are answered empty, and this side closes the connections.

None of this is guaranteed: every wait is limited, and afterwards peers and clients recover as from a crash. A leader
without a possible successor, or a node that gets a second signal, skips the steps that are impossible.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from cluster.config.local_layout import node_object
from cluster.peer.reachability import STOPPING
from raftlog.errors import NotLeaderError
from raftlog.types import NOBODY, NodeId, Role

if TYPE_CHECKING:
    from cluster.broker.pulls.long_poll import LongPolls
    from cluster.peer.transport import PeerTransport
    from cluster.remoting.assembly import Remoting
    from cluster.remoting.connection.server import RemotingConnection
    from cluster.replication.proposals import Proposals
    from cluster.runtime.context import NodeContext
    from statemachine.broker_state import BrokerState

logger = logging.getLogger(__name__)

HAND_OVER_S = 2.0
SETTLE_S = 0.5
"""Seconds to wait until the new leader accepts writes."""
DRAIN_S = 3.0
"""Seconds to wait for the answers to requests in progress."""
FAREWELL_S = 0.5
"""Seconds for clients to close their side of the connections. Requests that they send meanwhile are answered with code
14."""
POLL_S = 0.002
REMARK = "this node is stopping; nothing was done, try again"


def _waits(connection: RemotingConnection) -> bool:
    """Returns True if a client is connected and has unanswered requests. A client that has disconnected has sent them
    to another node."""
    return connection.in_flight.requests > 0 and not connection.closed


class OrderlyStop:
    """Stops a node in order, in three steps. Event loop only."""

    def __init__(
        self,
        context: NodeContext,
        transport: PeerTransport,
        state: BrokerState,
        remoting: Remoting,
        proposals: Proposals,
        long_polls: LongPolls,
        *,
        failed: Callable[[], bool],
        hurried: Callable[[], bool],
    ) -> None:
        """Keeps the arguments. `failed` returns True if the node's storage has failed. `hurried` returns True after a
        second request to stop."""
        self._raw, self._config, self._succession = context.raw, context.config, context.succession
        self._transport, self._state = transport, state
        self._remoting, self._proposals, self._long_polls = remoting, proposals, long_polls
        self._failed, self._hurried = failed, hurried
        self._loop = context.loop

    async def retire(self) -> None:
        """Runs the three steps. Always ends in bounded time, and does nothing for a failed node."""
        try:
            if not self._failed():
                await self._run()
        except Exception:
            logger.exception("not everything could be transferred before the stop")

    async def _run(self) -> None:
        led = self._raw.role is Role.LEADER
        begun = self._loop.time()
        self._raw.hold_campaigns(STOPPING, True)
        if led:
            await self._hand_over()
        handed = self._loop.time()
        self._remoting.listeners.close()
        await self._until(self._is_led, SETTLE_S)
        connections = len(self._remoting.router.connections)
        await self._send_away()
        logger.info(
            "stopping: %s%d connections closed in %.0f ms",
            f"leadership {self._where_to()} after {1000 * (handed - begun):.0f} ms, " if led else "",
            connections,
            1000 * (self._loop.time() - handed),
        )

    def _where_to(self) -> str:
        leader = self._raw.leader_id
        if self._raw.role is Role.LEADER:
            return "was taken over by nobody"
        return f"went to {node_object(self._config.cluster.group, leader)}" if leader != NOBODY else "was given up"

    # --- 1: leadership -----------------------------------------------------------------------------------------------

    async def _hand_over(self) -> None:
        raw, timing = self._raw, self._config.raft
        end = self._loop.time() + HAND_OVER_S
        patience_s = timing.election_ticks * timing.tick_ms / 1000
        passed_over: set[NodeId] = set()
        while raw.role is Role.LEADER and self._loop.time() < end and not self._hurried():
            to = self._successor(passed_over)
            # No node could take over. The stop goes on; the others elect a leader as after a crash.
            if to == NOBODY:
                return
            passed_over.add(to)
            try:
                self._succession.transfer(to)
            except NotLeaderError:
                return
            except ValueError:
                continue  # it has reported meanwhile that it cannot lead
            await self._until(self._passed(to), patience_s)

    def _successor(self, passed_over: Collection[NodeId]) -> NodeId:
        connected = self._transport.connected
        return self._succession.choose(lambda peer: connected(peer.node_id) and peer.node_id not in passed_over)

    def _passed(self, to: NodeId) -> Callable[[], bool]:
        return lambda: self._raw.role is not Role.LEADER or not self._transport.connected(to)

    def _is_led(self) -> bool:
        """Returns True if another node leads and accepts writes: this node has applied an entry of that leader's
        term."""
        raw = self._raw
        if raw.role is Role.LEADER:
            return True  # no node took over, so there is nothing to wait for
        return self._transport.connected(raw.leader_id) and self._state.applied.term == raw.term

    # --- 3: clients --------------------------------------------------------------------------------------------------

    async def _send_away(self) -> None:
        # Requests that were accepted are answered before a connection closes. Otherwise clients could not know the
        # outcome.
        connections = list(self._remoting.router.connections)
        for connection in connections:
            connection.leave(REMARK)
        await self._until(lambda: self._proposals.idle and not any(map(_waits, connections)), DRAIN_S)
        await self._long_polls.release()
        for connection in connections:
            # Closes only the sending side, so that a client can read its last answers. What it still sends gets none.
            connection.say_goodbye()
        await self._until(lambda: all(connection.closed for connection in connections), FAREWELL_S)

    async def _until(self, reached: Callable[[], bool], limit_s: float) -> None:
        """Waits at most `limit_s` seconds until `reached` returns True. Returns early if the node has failed, or after
        a second request to stop."""
        end = self._loop.time() + limit_s
        while not (  # noqa: ASYNC110 - once in the life of a node, over conditions of many owners
            reached() or self._failed() or self._hurried() or self._loop.time() >= end
        ):
            await asyncio.sleep(POLL_S)

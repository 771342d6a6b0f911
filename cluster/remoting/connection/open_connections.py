"""Keeps the open connections of clients: limits their number, closes some in favour of others, and ends the sessions of
closed ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from cluster.flow.quota_limits import CONNECTIONS
from cluster.remoting.connection.stuck_clients import IdleClients, StuckClients
from statemachine.access.user_rows import Mode

if TYPE_CHECKING:
    from cluster.broker.groups.group_members import Members
    from cluster.broker.sends.closed_connections import ClosedConnections
    from cluster.broker.sends.send_outcomes import SendOutcomes
    from cluster.config.service_sections import LimitsSection
    from cluster.flow.minute_rates import MinuteRates
    from cluster.remoting.connection.connection_memory import ConnectionMemory
    from cluster.remoting.connection.server import RemotingConnection
    from cluster.replication.outcome import ReplyTo
    from cluster.replication.proposals import Proposals
    from statemachine.access.users import Access

logger = logging.getLogger(__name__)

ENDS_S: Final = 1.0
"""Seconds after which a connection above the quota of its user is closed. Its first request is answered by then."""


class OpenConnections:
    """All open connections of one node's clients. Event loop only."""

    def __init__(
        self,
        limits: LimitsSection,
        access: Access,
        proposals: Proposals,
        *,
        memory: ConnectionMemory,
        members: Members,
        parked: Callable[[RemotingConnection], bool],
        closings: ClosedConnections,
        outcomes: SendOutcomes,
        rates: MinuteRates,
    ) -> None:
        """`rates` decides how many connections a user or an address may open (CONNECTIONS). `parked` returns True if
        pulls of a connection wait. `closings` collects the connections that close with sends in flight, whose outcomes
        `outcomes` then remembers."""
        self._limits = limits
        self._proposals = proposals
        self.memory = memory
        self._members = members
        self._parked = parked
        self.closings = closings
        self._outcomes = outcomes
        self._rates = rates
        self.stuck = StuckClients(memory)
        self.idle = IdleClients(self._is_used, lambda: access.mode is Mode.ENFORCE)
        self.all: dict[RemotingConnection, None] = {}
        """The open connections, oldest first."""

    def tick(self, now_ms: int) -> None:
        """Closes connections that have been stuck or idle for too long. Called several times a second."""
        self.stuck.tick(now_ms)
        self.idle.tick(now_ms)

    def reload(self, limits: LimitsSection) -> None:
        """Uses `limits` from now on."""
        self._limits = limits
        self.memory.reload(limits)

    def full(self, opening: int = 0, address: str = "") -> str:
        """Returns the reason why another connection may not be accepted, given `opening` connections that are not open
        yet; "" if it may. If few places are left and `address` has few connections, an idle connection of the address
        with the most is closed. While users are enforced, a connection without a proven user is closed instead."""
        limit = self._limits.connections_max
        if address:
            is_free = self.idle.make_room(address, opening, limit, self._evict)
        else:
            is_free = len(self.all) + opening < limit
        if is_free:
            return ""
        return f"limits.connections_max = {self._limits.connections_max} is reached"

    def opened(self, connection: RemotingConnection) -> bool:
        """Counts the new connection. Returns False to refuse it, above limits.connections_max or the quota of its
        address. A refusal for a quota is not logged, because a client that connects again and again would fill the
        log."""
        if why := self.full():
            logger.warning("connection refused: %s", why)
            return False
        if self._rates.take(CONNECTIONS, 0, connection.peer_address[0]) is not None:
            return False
        self.all[connection] = None
        self.idle.opened(connection)
        return True

    def proven(self, connection: RemotingConnection, user: int) -> None:
        """Records the first user that has signed on the connection. If this user opens too many connections, this one
        is closed after ENDS_S; its earlier requests are answered, later ones are refused."""
        self.idle.proven(connection)
        over = self._rates.take(CONNECTIONS, user, connection.peer_address[0])
        if over is not None:
            connection.leave(over.remark)
            connection.end_in(ENDS_S)

    def closed(self, connection: RemotingConnection) -> None:
        """Forgets the connection, and ends its session in the log. If requests of the connection are in flight, its
        session ends later (`end_sessions`)."""
        self.all.pop(connection, None)
        self.idle.closed(connection)
        self.stuck.forget(connection)
        if connection.in_flight.requests:
            self.closings.add(connection)
        else:
            self._end_session(connection)

    def end_sessions(self, closed: Collection[ReplyTo]) -> None:
        """Remembers the outcomes that the clients of closed connections have not received, and ends their sessions."""
        self._outcomes.connections_closed(self._proposals.unanswered_of(closed))
        for connection in closed:
            self._end_session(connection)

    def drop(self) -> None:
        """Closes all connections. Their clients connect to another node and repeat unanswered requests there."""
        for connection in list(self.all):
            connection.abort()

    def _evict(self, connection: RemotingConnection) -> None:
        self.all.pop(connection, None)  # frees the place of the connection before its transport reports the end
        connection.abort()

    def _is_used(self, connection: RemotingConnection) -> bool:
        """Returns True if the connection is in use: a request of it is in progress, answers wait to be sent, a pull
        waits, or its client is a member of a group."""
        return (
            connection.in_flight.requests > 0
            or connection.unsent_bytes > 0
            or self._parked(connection)
            or self._members.has(connection)
        )

    def _end_session(self, connection: ReplyTo) -> None:
        session = connection.session
        if session is not None and not session.pending:
            self._proposals.end_session(session.producer_id)

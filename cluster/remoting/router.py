"""The entry point of every request: answered by this node, or forwarded to the leader."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from cluster.broker.refusal import Reason, Refused
from cluster.config.config import Config, TlsMode
from cluster.remoting.admission import Admission
from cluster.remoting.connection.connection_memory import ConnectionMemory, sizes, with_room
from cluster.remoting.connection.frame import Frame
from cluster.remoting.connection.remoting_request import RemotingRequest
from cluster.remoting.connection.reply_path import ReplyPath
from cluster.remoting.connection.server import Dispatch, RemotingConnection, unsupported
from cluster.remoting.connection.stuck_clients import IdleClients, StuckClients
from cluster.remoting.costly_requests import CostlyRequests
from cluster.remoting.forward.forwarded_path import ForwardedPath
from cluster.remoting.forward.forwarder import Forwarder
from cluster.remoting.forward.requesting_clients import name_committers, name_standing
from cluster.remoting.handlers.send import SendHandler
from cluster.remoting.handlers.send_reply import SendReplyWriter
from cluster.remoting.request import Handlers, Request
from cluster.replication.message_batch import Send
from cluster.replication.send_identity import Identity
from cluster.requests.table import IN_LINE, ROWS, SENDS, SUPERS_ALONE, VERBS
from cluster.requests.verb import Serves, Stated, Verb
from cluster.runtime.service_lifecycle import Part
from cluster.runtime.tls.acceptor import Acceptor, has_descriptors
from cluster.runtime.tls.port_security import Security
from raftmq_wire.codec import CodecError
from raftmq_wire.codes import ResponseCode
from statemachine.access.users import Mode

if TYPE_CHECKING:
    from cluster.broker.groups.group_members import Members
    from cluster.broker.sends.closed_connections import ClosedConnections
    from cluster.broker.sends.send_outcomes import SendOutcomes
    from cluster.config.config import LimitsSection
    from cluster.replication.outcome import ReplyTo
    from cluster.replication.pending_requests import PendingEntry
    from cluster.replication.proposals import Proposals
    from cluster.runtime.turns.work import Turns
    from statemachine.broker_state import BrokerState


logger = logging.getLogger(__name__)

REMARK_MAX = 1000
"""The most characters of a remark that repeats what a client sent."""


class Router(Dispatch):
    """Implements `server.Dispatch` for a node."""

    def __init__(
        self,
        config: Config,
        state: BrokerState,
        proposals: Proposals,
        *,
        known_topic: Callable[[str], bool],
        rooms: ConnectionMemory,
        closings: ClosedConnections,
        turns: Turns,
        fenced: Callable[[], bool],
        log_begins: Callable[[], int],
        refuse: Callable[[Request], None],
        sends: SendHandler,
        replies: SendReplyWriter,
        fates: SendOutcomes,
        forwarder: Forwarder,
        handlers: Handlers,
        members: Members,
        admission: Admission,
        parked: Callable[[RemotingConnection], bool],
        costly: Sequence[CostlyRequests],
    ) -> None:
        """`known_topic` returns True also for virtual topics (TBW102). `parked` returns True if pulls of a connection
        wait. `turns` continues the requests of one read in another turn when this one has no room. `fenced` returns
        True if this node's rows are known to be wrong. `log_begins` returns the position below which this node lacks
        log that others have (`cluster.repair`), 0 if it has all. `refuse` answers a code without a handler."""
        self.rooms = rooms
        self.turns = turns
        self.patience = StuckClients(self.rooms)
        self.follow = self.patience.follow  # type: ignore[method-assign]
        self.idle = IdleClients(self._is_used, lambda: state.access.mode is Mode.ENFORCE)
        self._limits = config.limits
        self._state = state
        self._proposals = proposals
        self._known_topic = known_topic
        self._large_answers = sizes(state, lambda: self._limits)
        self._costly = costly
        self._handlers = with_room(handlers, self._large_answers)
        for each in costly:
            self._handlers = each.dealt_out(self._handlers)
        self._over_tls_alone = frozenset(
            [verb.code for verb in ROWS if verb.is_for_administrators] if config.auth.admin_needs_tls else ()
        )
        """Codes that are refused on a connection without TLS."""
        self._fenced = fenced
        self._log_begins = log_begins
        self._refuse = refuse
        self.connections: dict[RemotingConnection, None] = {}
        """The open connections, oldest first."""
        self.closings = closings
        self._members = members
        self._admission = admission
        admission.proven.add(self._on_proven)
        admission.released.add(self.on_request)
        self._access = state.access
        self._parked = parked
        self._sends = sends
        self._replies = replies
        self._fates = fates
        self._forwarder = forwarder
        closings.listen(forwarder.clients_closed)
        closings.listen(self._on_closings)  # last: sessions end with it
        proposals.undecided.add(self._keep_behind)
        proposals.unproposed.add(self.reroute)

    def part(self) -> Part:
        """Returns the hooks through which the node calls the router."""
        return Part(
            name="clients",
            tick=self._tick,
            close=self.drop_clients,
            reload=lambda config: self.reload(config.limits),
        )

    def _tick(self, now_ms: int) -> None:
        self.patience.tick(now_ms)
        self.idle.tick(now_ms)
        for each in self._costly:
            each.tick(now_ms)

    def reload(self, limits: LimitsSection) -> None:
        """Takes other limits."""
        self._limits = limits
        self.rooms.reload(limits)
        self._sends.reload(limits)

    def full(self, opening: int = 0, address: str = "") -> str:
        """Returns the reason why no more connections may be accepted, with `opening` on their way; "" if they may. A
        client of an `address` that has few connections takes the place of an idle one of the address that has most;
        while users are enforced, that of another connection without a user."""
        limit = self._limits.connections_max
        if address:
            is_free = self.idle.make_room(address, opening, limit, self._evict)
        else:
            is_free = len(self.connections) + opening < limit
        if is_free:
            return ""
        return f"limits.connections_max = {self._limits.connections_max} is reached"

    def on_open(self, connection: RemotingConnection) -> bool:
        """Counts the connection; refuses it above limits.connections_max."""
        if why := self.full():
            logger.warning("connection refused: %s", why)
            return False
        self.connections[connection] = None
        self.idle.opened(connection)
        return True

    def _evict(self, connection: RemotingConnection) -> None:
        self.connections.pop(connection, None)  # its place is free before its transport reports the end
        connection.abort()

    def _on_proven(self, path: ReplyPath) -> None:
        if isinstance(path, RemotingConnection):
            self.idle.proven(path)

    def _is_used(self, connection: RemotingConnection) -> bool:
        """Returns True if a request of the connection is in progress, a pull of it waits, or its last heartbeat is
        fresh."""
        return (
            connection.in_flight.requests > 0
            or connection.unsent_bytes > 0
            or self._parked(connection)
            or self._members.has(connection)
        )

    def drop_clients(self) -> None:
        """Closes all connections: clients connect to another node and send unanswered requests again."""
        for connection in list(self.connections):
            connection.abort()

    def on_close(self, connection: RemotingConnection) -> None:
        """Forgets the connection, and ends its session in the log unless one of its sends is unanswered."""
        self.connections.pop(connection, None)
        self.idle.closed(connection)
        self.patience.forget(connection)
        if connection.in_flight.requests:
            self.closings.add(connection)
        else:
            self._end_session(connection)

    def _on_closings(self, closed: Collection[ReplyTo]) -> None:
        self._fates.connections_closed(self._proposals.unanswered_of(closed))
        for connection in closed:
            self._end_session(connection)

    def _end_session(self, connection: ReplyTo) -> None:
        session = connection.session
        if session is not None and not session.pending:
            self._proposals.end_session(session.producer_id)

    def on_request(self, frame: Frame) -> None:
        """Handles one request. A failure becomes the answer to this request and affects no other."""
        if self._over_tls_alone and not frame.path.secure and frame.header.code in self._over_tls_alone:
            why = "administrators' requests need TLS on this node (auth.admin_needs_tls)"
            self._replies.refuse(frame, Refused(Reason.NO_PERMISSION, why))
            return
        if self._access.judges:
            if not self._admission.admits(frame):
                return
        elif frame.header.code in SUPERS_ALONE and not self._admission.names(frame):
            return
        line = frame.path.line
        if line is not None and self._proposals.open:
            if line.waits and frame.header.code in IN_LINE:
                self._forwarder.pump()  # this node has just become the leader: requests held until then go first
                if line.waits and frame.header.code in SENDS:
                    self._forwarder.forward(frame)  # one before it is still in the hands of a former leader
                    return
            line.served(frame.header.code)
        self.as_leader(frame)

    def take_sends(self, connection: RemotingConnection, data: bytes, frames: list[tuple[int, int]], at: int) -> int:
        if self.closings.waiting:
            self.closings.look()
        proposals, line = self._proposals, connection.line
        if not proposals.open or proposals.refusing or (line is not None and line.waits):
            return at
        if self._access.judges:  # also while a request of the connection waits
            return self._admission.take_sends(self._sends.intake.take, connection, data, frames, at)
        return self._sends.intake.take(connection, data, frames, at)

    def on_too_long(self, frame: Frame, remark: str) -> None:
        """Refuses this request only; the connection goes on with the bytes after the body."""
        self._replies.refuse(frame, Refused(Reason.INVALID, remark))

    def on_oversized(self, frame: Frame, remark: str) -> None:
        """Refuses the request as a message that is too large, so that the client does not send it again."""
        self._replies.refuse(frame, Refused(Reason.MESSAGE_ILLEGAL, remark))

    def on_handed(self, frame: Frame) -> None:
        """Handles a request that was forwarded to this node, or held until it leads; it is judged once more."""
        if not self._access.judges or self._admission.admits_again(frame):
            self.as_leader(frame)

    def as_leader(self, frame: Frame) -> None:
        """Handles a request as the leader, including one that was forwarded or held."""
        if self.closings.waiting:
            self.closings.look()
        code = frame.header.code
        try:
            if code in SENDS and self._proposals.open:
                self._sends.on_send(frame)
            else:
                self._dispatch(frame, code)
        except CodecError as error:
            self._replies.refuse(frame, Refused(Reason.INVALID, str(error)[:REMARK_MAX]))
        except Exception as error:
            logger.exception("request code %d failed", code)
            remark = f"{type(error).__name__}: {error}"[:REMARK_MAX]
            self._replies.refuse(frame, Refused(Reason.ERROR, remark))

    def _dispatch(self, frame: Frame, code: int) -> None:
        if code in SENDS:
            self._forwarder.forward(frame)
            return
        verb = VERBS.get(code)
        if verb is None:
            self._handle(RemotingRequest.of(frame, self._proposals.figures.slow))
        elif verb.serves is Serves.PULLS:
            request = RemotingRequest.of(frame, self._proposals.figures.slow, reads_ext=False)
            if self._log_begins() or self._state.has_resets:
                request.may_come_back(frame)
            self._handle(request)
        elif verb.serves.is_leader and not self._proposals.open:
            self._forward(self._stating(frame, verb))
        else:
            self._answer(frame, verb)

    def _answer(self, frame: Frame, verb: Verb) -> None:
        """Answers here, unless this node's rows or its log cannot tell."""
        request, serves = RemotingRequest.of(frame, self._proposals.figures.slow), verb.serves
        if serves is Serves.OWN_ROWS:
            if self._fenced():
                request.reply(ResponseCode.SYSTEM_BUSY, "this node serves no messages: its rows are wrong; ask another")
                return
            if self._log_begins() and not self._proposals.open:
                self._forward(frame)
                return
        if verb.may_hand_over:
            request.may_come_back(frame)
        if (
            serves is Serves.IF_KNOWN
            and not self._proposals.open
            and not self._known_topic(request.ext.get("topic", ""))
        ):
            self._forwarder.forward(frame)
            return
        self._handle(request)

    def _stating(self, frame: Frame, verb: Verb) -> Frame:
        """Returns the frame with what this node states about its sender."""
        if verb.stated is Stated.CLIENTS:
            return name_committers(frame, self._members)
        return name_standing(frame, self._members) if verb.stated is Stated.STANDING else frame

    def _forward(self, frame: Frame) -> None:
        """Forwards a request, with memory reserved for its answer if that may be large."""
        size = self._large_answers.get(frame.header.code)
        if size is None:
            self._forwarder.forward(frame)
        elif frame.path.room_for(size(), lambda: self._forward(frame)):
            self._forwarder.forward(frame, promised=frame.path.room.share(size()))

    def _keep_behind(self, entry: PendingEntry, sends: list[Send]) -> None:
        """Lets the later requests of these sends' connections wait until the entry is decided, or its sends are given
        up. If it is lost, a send of it is stored only when its client sends it again: a later send that the next leader
        got meanwhile would have overtaken it."""
        paths = dict.fromkeys(send.connection for send in sends if isinstance(send.connection, ReplyPath))
        lines = [path.order_line() for path in paths if not path.forwarded]  # others stand in the line of their node
        if lines:
            entry.behind = self._forwarder.keep_behind(lines)

    def reroute(self, sends: list[Send]) -> None:
        """Forwards sends to the new leader that were queued when leadership was lost: none was proposed."""
        for send in sends:
            send.hold.answered()
            try:
                self._reroute(send)
            except Exception:
                logger.exception("a send could not be forwarded; its client will time out, the others are forwarded")

    def _reroute(self, send: Send) -> None:
        frame = send.origin
        assert isinstance(frame, Frame)
        if isinstance(frame.path, ForwardedPath) and not send.oneway:
            frame.path.hand_back()
            return
        if send.issued:
            frame.identity = Identity(send.producer_id, send.sequence, send.low_sequence)
        self._forwarder.forward(frame)

    def _handle(self, request: RemotingRequest) -> None:
        handler = self._handlers.get(request.code)
        if handler is None:
            # A stand-in's end is never reported: only connections of clients themselves are remembered.
            (unsupported if isinstance(request.connection, ForwardedPath) else self._refuse)(request)
        else:
            handler(request)


class Listeners:
    """The ports of a node that are open for clients."""

    def __init__(self, config: Config, router: Router, security: Callable[[str, TlsMode], Security]) -> None:
        """`security(name, mode)` returns the TLS settings of the listener with that name, whose own key sets the
        mode."""
        self._config = config
        self._router = router
        self._security = security
        self._servers: list[asyncio.Server | Acceptor] = []

    def part(self) -> Part:
        """Returns the hooks through which the node calls the listeners."""
        return Part(
            name="listeners",
            start=self.open,
            close=self.close,
            reload=self.reload,
        )

    async def open(self) -> None:
        """Opens the ports. Raises OSError if a port cannot be bound."""
        loop = asyncio.get_running_loop()
        for listener in self._config.listeners:
            connection = partial(self._connection, listener.name, loop)
            if has_descriptors(loop):
                security = self._security(listener.name, listener.tls)
                acceptor = Acceptor(loop, connection, self._router.full, security, self._router.idle.may_have_all)
                self._servers.append(acceptor)
                await acceptor.open(listener.bind, listener.port)
            else:
                self._servers.append(await loop.create_server(connection, listener.bind, listener.port))

    def reload(self, config: Config) -> None:
        """Takes another `limits.frame_bytes_max`, for connections that are opened from now on."""
        self._config = config

    def _connection(self, listener: str, loop: asyncio.AbstractEventLoop) -> RemotingConnection:
        return RemotingConnection(self._router, listener, self._config.limits.frame_bytes_max, loop)

    def close(self) -> None:
        """Closes the ports. New clients find another node; connected clients stay."""
        for server in self._servers:
            server.close()

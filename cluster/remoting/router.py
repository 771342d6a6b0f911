"""Receives every request and decides whether this node answers it or forwards it to the leader."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from cluster.broker.name_rules import AUTO_CREATE_NAMES
from cluster.broker.refusal import Reason, Refused
from cluster.config.config import Config
from cluster.config.node_sections import TlsMode
from cluster.remoting.admission import Admission
from cluster.remoting.connection.frame import Frame
from cluster.remoting.connection.open_connections import OpenConnections
from cluster.remoting.connection.remoting_request import RemotingRequest
from cluster.remoting.connection.reply_path import ReplyPath
from cluster.remoting.connection.server import Dispatch, RemotingConnection, unsupported
from cluster.remoting.forward.forwarded_path import ForwardedPath
from cluster.remoting.forward.forwarder import Forwarder
from cluster.remoting.forward.requesting_clients import name_committers, name_standing
from cluster.remoting.handler_table import HandlerTable
from cluster.remoting.handlers.send import SendHandler
from cluster.remoting.handlers.send_reply import SendReplyWriter
from cluster.replication.message_batch import Send
from cluster.replication.send_identity import Identity
from cluster.requests.table import IN_LINE, ROWS, SENDS, SUPERS_ALONE, VERBS
from cluster.requests.verb import Serves, Stated, Verb
from cluster.runtime.service_lifecycle import Closing, Part, Starting
from cluster.runtime.tls.acceptor import Acceptor, has_descriptors
from cluster.runtime.tls.port_security import Security
from raftlog.errors import ApplyStoppedError
from raftmq_wire.codec import FLAG_ONEWAY, CodecError
from raftmq_wire.codes import ResponseCode

if TYPE_CHECKING:
    from cluster.broker.groups.group_members import Members
    from cluster.broker.services import Services
    from cluster.config.service_sections import LimitsSection
    from cluster.replication.pending_requests import PendingEntry
    from cluster.replication.proposals import Proposals


logger = logging.getLogger(__name__)

REMARK_MAX = 1000
"""The most characters of a remark that repeats what a client sent."""


class Router(Dispatch):
    """Implements `server.Dispatch` for a node."""

    def __init__(
        self,
        services: Services,
        proposals: Proposals,
        *,
        clients: OpenConnections,
        table: HandlerTable,
        sends: SendHandler,
        replies: SendReplyWriter,
        forwarder: Forwarder,
        members: Members,
        admission: Admission,
        log_begins: Callable[[], int],
    ) -> None:
        """`table` answers all requests but sends. `log_begins` returns the position below which this node lacks log
        that others have (`cluster.repair`); 0 if it lacks nothing."""
        config, state = services.config, services.state
        self.clients = clients
        self.memory, self.closings, self.connections = clients.memory, clients.closings, clients.all
        self.on_open, self.on_close = clients.opened, clients.closed  # type: ignore[method-assign]
        self.follow = clients.stuck.follow  # type: ignore[method-assign]
        self.turns = services.turns
        self.table = table
        self._over_tls_alone = frozenset(
            [verb.code for verb in ROWS if verb.is_for_administrators] if config.auth.admin_needs_tls else ()
        )
        """The request codes that are refused on a connection without TLS."""
        self._state = state
        self._catch_up = services.catch_up
        self._proposals = proposals
        self._fenced = services.fenced
        self._log_begins = log_begins
        self._members = members
        self._admission = admission
        admission.proven.add(self._on_proven)
        admission.released.add(self.on_request)
        self._access = state.access
        self._sends = sends
        self._replies = replies
        self._forwarder = forwarder
        self.closings.listen(forwarder.clients_closed)
        # Called after the forwarder, because sessions end with the connection.
        self.closings.listen(clients.end_sessions)
        proposals.undecided.add(self._keep_behind)
        proposals.unproposed.add(self.reroute)

    def part(self) -> Part:
        """Returns the hooks through which the node calls the router."""
        return Part(
            name="clients",
            tick=self._tick,
            close=self.clients.drop,
            closes=Closing.CLIENTS,
            reload=lambda config: self.reload(config.limits),
        )

    def _tick(self, now_ms: int) -> None:
        self.clients.tick(now_ms)
        self.table.tick(now_ms)

    def reload(self, limits: LimitsSection) -> None:
        """Uses `limits` from now on."""
        self.clients.reload(limits)
        self.table.reload(limits)
        self._sends.reload(limits)

    def _on_proven(self, path: ReplyPath, user: int) -> None:
        if isinstance(path, RemotingConnection):
            self.clients.proven(path, user)

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
                # Requests that were held until this node became the leader are handled first.
                self._forwarder.hurry(line)
                if line.waits and frame.header.code in SENDS:
                    # An earlier send of the connection waits for its turn, or a former leader has it.
                    self._forwarder.forward(frame)
                    return
            line.served(frame.header.code)
        self.as_leader(frame)

    def take_sends(self, connection: RemotingConnection, data: bytes, frames: list[tuple[int, int]], at: int) -> int:
        if self.closings.waiting:
            self.closings.look()
        proposals, line = self._proposals, connection.line
        if not proposals.open or proposals.refusing or (line is not None and line.waits):
            return at
        if self._access.judges:  # applies even while a request of the connection waits
            return self._admission.take_sends(self._sends.intake.take, connection, data, frames, at)
        return self._sends.intake.take(connection, data, frames, at)

    def on_too_long(self, frame: Frame, remark: str) -> None:
        """Refuses this request only; the connection continues with the bytes after the body."""
        self._replies.refuse(frame, Refused(Reason.INVALID, remark))

    def on_oversized(self, frame: Frame, remark: str) -> None:
        """Refuses the request as a message that is too large, so that the client does not send it again."""
        self._replies.refuse(frame, Refused(Reason.MESSAGE_ILLEGAL, remark))

    def on_handed(self, frame: Frame) -> None:
        """Handles a request that was forwarded to this node, or held until it leads; it is judged once more."""
        if not self._access.judges or self._admission.admits_again(frame):
            self.as_leader(frame)

    def as_leader(self, frame: Frame) -> None:
        """Handles a request that was judged: answers it on this node, or forwards it to the leader. If it fails, the
        failure becomes the answer."""
        if self.closings.waiting:
            self.closings.look()
        code = frame.header.code
        try:
            self._catch_up()
            if code in SENDS and self._proposals.open:
                self._sends.on_send(frame)
            else:
                self._dispatch(frame, code)
        except CodecError as error:
            self._replies.refuse(frame, Refused(Reason.INVALID, str(error)[:REMARK_MAX]))
        except ApplyStoppedError as error:
            self._replies.refuse(frame, Refused(Reason.BUSY, str(error)))
        except Exception as error:
            logger.exception("request code %d failed", code)
            remark = f"{type(error).__name__}: {error}"[:REMARK_MAX]
            self._replies.refuse(frame, Refused(Reason.ERROR, remark))

    def _dispatch(self, frame: Frame, code: int) -> None:
        if code in SENDS:
            self._pass_on(frame)
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
        """Answers the request on this node, or forwards it if this node's rows or log are not complete enough."""
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
        if serves is Serves.IF_KNOWN and not self._proposals.open and not self._knows(request.ext.get("topic", "")):
            self._forwarder.forward(frame)
            return
        self._handle(request)

    def _knows(self, topic: str) -> bool:
        return topic in self._state.topics or topic in AUTO_CREATE_NAMES

    def _stating(self, frame: Frame, verb: Verb) -> Frame:
        """Returns the frame with ext fields that state what only this node knows about the sender, if the request's
        verb asks for them."""
        if verb.stated is Stated.CLIENTS:
            return name_committers(frame, self._members)
        return name_standing(frame, self._members) if verb.stated is Stated.STANDING else frame

    def _forward(self, frame: Frame) -> None:
        """Forwards a request to the leader. Reserves memory for its answer first if that may be large."""
        size = self.table.answer_bytes(frame.header.code)
        if size is None:
            self._forwarder.forward(frame)
        elif frame.path.room_for(size, lambda: self._forward(frame)):
            self._forwarder.forward(frame, promised=frame.path.room.share(size))

    def _keep_behind(self, entry: PendingEntry, sends: list[Send]) -> None:
        """Makes later requests of these sends' connections wait until the entry is decided, or its sends are given up.
        If the entry is lost, its sends are stored only when their clients repeat them. A later send that reached the
        next leader before that would overtake them."""
        paths = dict.fromkeys(send.connection for send in sends if isinstance(send.connection, ReplyPath))
        # Sends from other nodes wait in the order line of their own node.
        lines = [path.order_line() for path in paths if not path.forwarded]
        if lines:
            entry.behind = self._forwarder.keep_behind(lines)

    def reroute(self, sends: list[Send]) -> None:
        """Forwards the sends that were queued when leadership was lost to the new leader. None of them was proposed."""
        for send in sends:
            send.hold.answered()
            try:
                self._reroute(send)
            except Exception:
                logger.exception("a send could not be forwarded; its client will time out, the others are forwarded")

    def _reroute(self, send: Send) -> None:
        frame = send.origin
        assert isinstance(frame, Frame)
        if send.issued:
            frame.identity = Identity(send.producer_id, send.sequence, send.low_sequence)
        self._pass_on(frame)

    def _pass_on(self, frame: Frame) -> None:
        """Forwards a send that was not proposed here. A send that another node forwarded goes back to that node, which
        forwards it again."""
        if isinstance(frame.path, ForwardedPath) and not frame.header.flag & FLAG_ONEWAY:
            frame.path.hand_back()
        else:
            self._forwarder.forward(frame)

    def _handle(self, request: RemotingRequest) -> None:
        # A stand-in is made for a single request. So the refusals of a code are counted only on clients' own
        # connections.
        self.table.handle(request, unsupported if isinstance(request.connection, ForwardedPath) else None)


class Listeners:
    """Opens and closes the ports of a node for clients."""

    def __init__(self, config: Config, router: Router, security: Callable[[str, TlsMode], Security]) -> None:
        """`security(name, mode)` returns the TLS settings of the listener `name`. `mode` is the value of the listener's
        key `tls`, "" for none."""
        self._config = config
        self._router = router
        self._security = security
        self._servers: list[asyncio.Server | Acceptor] = []

    def part(self) -> Part:
        """Returns the hooks through which the node calls the listeners."""
        return Part(
            name="listeners",
            start=self.open,
            starts=Starting.CLIENTS,
            close=self.close,
            closes=Closing.WORK,
            reload=self.reload,
        )

    async def open(self) -> None:
        """Opens the ports. Raises OSError if a port cannot be bound."""
        loop, clients = asyncio.get_running_loop(), self._router.clients
        for listener in self._config.listeners:
            connection = partial(self._connection, listener.name, loop)
            if has_descriptors(loop):
                security = self._security(listener.name, listener.tls)
                acceptor = Acceptor(loop, connection, clients.full, security, clients.idle.may_have_all)
                self._servers.append(acceptor)
                await acceptor.open(listener.bind, listener.port)
            else:
                self._servers.append(await loop.create_server(connection, listener.bind, listener.port))

    def reload(self, config: Config) -> None:
        """Applies another `limits.frame_bytes_max` to connections that are opened from now on."""
        self._config = config

    def _connection(self, listener: str, loop: asyncio.AbstractEventLoop) -> RemotingConnection:
        return RemotingConnection(self._router, listener, self._config.limits.frame_bytes_max, loop)

    def close(self) -> None:
        """Closes the ports. New clients find another node; connected clients stay."""
        for server in self._servers:
            server.close()

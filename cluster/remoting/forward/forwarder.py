"""Forwards requests that only the leader can answer: a node that does not lead holds them, forwards them and delivers
the answers, once each.

The node that holds the client's connection stays responsible. It keeps the request until an answer arrives, and
forwards a send to the next leader when the present one is lost. It gives every send an identity, so that a send that is
forwarded twice is stored once. Sends and other writes are forwarded in the order of their connection (`reply_path`),
those without an identity only once. Any other request is forwarded to at most LEADERS_MAX leaders, because a request
that two leaders did not survive may have made them fail. A forwarded request is never forwarded again (one hop). A send
that two leaders have received is never answered as refused: the first may have stored it. At the deadline a forwarded
write is UNKNOWN, one that was never forwarded is refused (14), and a read of offsets is left unanswered: old clients
take any error there for "no offset".
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol

from cluster.broker.sends.send_outcomes import leave_session, settle
from cluster.config.local_layout import node_object
from cluster.flow.gate import GateRequest
from cluster.remoting.connection.frame import Frame
from cluster.remoting.connection.reply_path import OrderLine
from cluster.remoting.connection.server import raw_frame
from cluster.remoting.forward.early_requests import EarlyRequests
from cluster.remoting.forward.forward_frame import Forwarded, decode_forward, header_bytes
from cluster.remoting.forward.forwarded_path import WORKS_MAX, ForwardedPath
from cluster.remoting.forward.held_request import ForwardedRequest
from cluster.replication.send_identity import Identity
from cluster.requests.table import COSTLY, IN_LINE, KEPT, SENDS, SILENT, WRITES, name_of
from cluster.runtime.listeners import Signal
from cluster.runtime.peer_frames import Kind, WireError
from cluster.runtime.resource_budget import Room, Share
from cluster.runtime.service_lifecycle import Part
from raftlog.types import NOBODY, NodeId
from raftlog.work import FRAME_UNITS, charge
from raftmq_wire.codec import FLAG_ONEWAY, FLAG_RESPONSE, CodecError, decode_header, encode_frame, ext_of
from raftmq_wire.codes import UNKNOWN_REMARK, ResponseCode, is_unknown
from statemachine.levels import OWNERS_LEVEL

if TYPE_CHECKING:
    from cluster.broker.sends.closed_connections import ClosedConnections
    from cluster.config.config import Config
    from cluster.flow.gate import Gate, Over
    from cluster.replication.outcome import ReplyTo
    from cluster.replication.slow_requests import SlowRequests
    from cluster.runtime.context import NodeContext
    from cluster.runtime.peer_frames import PeerLinks
    from cluster.runtime.turns.work import WorkSteps


logger = logging.getLogger(__name__)

_HELD_PER_UNIT = 8
"""The number of held requests that are examined for one unit of work (`raftlog.work`)."""
_LOOKED_AT_MAX = 512
"""The most held requests that one step examines while none of them needs an action."""
_HELD, _LOST, _EARLY, _GONE = ("held requests",), ("lost requests",), ("early requests",), ("gone clients",)
"""The owners of the forwarder's own work. The work is cut into steps (`cluster.runtime.turns.work.Turns`), because a
change of leader concerns thousands of requests at once."""
_TOO_MUCH = f"{WORKS_MAX} requests of this client wait for their turn on the leader already; try again in a moment"

LocalRoute = Callable[[Frame], None]


class NamesSends(Protocol):
    """Assigns identities to sends (`cluster.remoting.handlers.send`)."""

    def name_held(self, frame: Frame) -> Identity | None:
        """Returns the identity for a send that this node takes over; None if the send needs none. Raises CodecError if
        the send's header is malformed."""

    def remember_held(self, frame: Frame, identity: Identity) -> None:
        """Keeps the identity of a send that got no final answer, so that its retry uses the same one."""


class Forwarder:
    """Forwards requests, on the node with the client's connection, and handles forwarded requests, on the leader."""

    def __init__(
        self,
        context: NodeContext,
        transport: PeerLinks,
        *,
        leader: Callable[[], NodeId],
        leads: Callable[[], bool],
        local: LocalRoute,
        names: NamesSends,
        room: Room,
        gate: Gate,
        closings: ClosedConnections,
        level: Callable[[], int],
        trusted: Callable[[], bool] = lambda: False,
        slow: SlowRequests | None = None,
    ) -> None:
        """`leads` returns True if this node leads and its writes are open. `local` handles a request as the leader.
        `room` is the memory for answers on their way to clients. `trusted` returns True if every peer has proven the
        cluster's secret, so that this node believes which user a peer states. `level` returns the level of the
        cluster."""
        self._room = room
        self.reload(context.config)
        self._clock = context.clock
        self._transport = transport
        self._leader = leader
        self._leads = leads
        self._raw = context.raw
        self._local = local
        self._names = names
        self._closings = closings
        self._own_id = context.config.node_id
        self._object_of = partial(node_object, context.config.cluster.group)
        self._held: dict[int, ForwardedRequest] = {}
        self._works: Counter[Hashable] = Counter()
        """Client behind another node -> pieces of work of its requests that wait here."""
        self._early = EarlyRequests(gate)
        self._open: dict[tuple[NodeId, int], ForwardedPath] = {}
        """(node, forward id) -> path of each unanswered costly request or send of another node's client. They end if
        the client disconnects."""
        self.client_gone: Signal[[ReplyTo]] = Signal()
        """Emitted with the path of each send of another node's client that has disconnected."""
        self._admitting = False
        """True while early requests are handled."""
        self._passing = self._again = False
        """`_passing`: True while held requests are being forwarded. `_again`: True if they must be examined again from
        the first."""
        self._level = level
        self._soon = context.loop.call_soon
        self._turns = context.turns
        self._trusted = trusted
        self._slow = slow
        """The log of slow requests, to which requests that were held for long are reported; None if there is none."""
        self._ids = transport.request_ids()
        self.gate = gate

    def part(self) -> Part:
        """Returns the hooks through which the node calls the forwarder."""
        return Part(
            name="forwarder",
            tick=lambda _: self.pump(),
            role=lambda _: self.pump(),
            opened=lambda: self._soon(self.pump),
            peer_closed=self.peer_closed,
            frames={Kind.FORWARD: self.on_frame, Kind.FORWARD_REPLY: self.on_frame},
            reload=self.reload,
        )

    def reload(self, config: Config) -> None:
        """Uses the deadlines of `config` for requests that come from now on."""
        self._deadline_ms, self._leader_wait_ms = config.send.deadline_ms, config.send.leader_wait_ms

    def _term(self) -> int:
        """Returns the newest term that this node knows."""
        return self._raw.term

    # --- the node that holds the connection --------------------------------------------------------------------------

    def forward(self, frame: Frame, promised: Share | None = None) -> None:
        """Takes over a request and forwards it as soon as there is a leader. Refuses it if there is no room for it.
        Raises CodecError if it is malformed.

        `promised` is the memory reserved for its answer; it is released when the request is answered or given up.
        """
        path, code, size = frame.path, frame.header.code, frame.size
        ask = GateRequest.FORWARDED_SEND if code in SENDS else GateRequest.FORWARDED
        over = self.gate.refusal(path.in_flight, size, frame.user, ask)
        if over is not None:
            if promised is not None:
                promised.hold(0)
                path.room_given_back()
            if frame.unsure is None:
                self._refuse(frame, over)
            else:
                frame.unsure(frame, over.remark)
            return
        if frame.identity is None and code in SENDS:
            frame.identity = self._names.name_held(frame)
        now_ms = self._clock.monotonic_ms()
        hold = self.gate.hold(path.in_flight, size, frame.user, ask)
        held = ForwardedRequest(frame, hold, now_ms, now_ms + self._deadline_ms)
        held.promised = promised
        held.tries = int(frame.unsure is not None)
        forward_id = next(self._ids)
        self._held[forward_id] = held
        if code in IN_LINE:
            held.line = path.order_line()
        self._pass_on(forward_id, held)

    def keep_behind(self, lines: list[OrderLine]) -> Callable[[], None]:
        """Makes later requests in these order lines wait; the returned function releases them."""
        number = next(self._ids)
        for line in lines:
            line.join(number)

        def go_on() -> None:
            for line in lines:
                line.leave(number)
            self._soon(self.pump)

        return go_on

    def pump(self) -> None:
        """Forwards the requests that the present leader has not received, because the leader or the connection to it
        changed, and answers those that are past their deadline; called on a timer, too.

        Each turn of the loop forwards as many requests as its share of work allows. The order is kept all the same:
        every request joins its order line at once, and later requests wait behind it.
        """
        self._admit_early()
        leader = self._leader()
        charge(1 + len(self._held) // _HELD_PER_UNIT)
        for forward_id, held in self._held.items():
            if held.line is not None and not held.is_with(leader) and not (held.one_try and held.spent):
                held.line.join(forward_id)
        self._again = True
        if not self._passing:
            self._passing = True
            self._turns.begin(_HELD, self._pass_on_all())

    def hurry(self, line: OrderLine) -> None:
        """Handles the requests that wait in this order line here, because this node has just become the leader. It is
        called for each later request, so it examines the held ones only if the first of the line can go and they are
        not being examined already."""
        first = self._held.get(line.first)
        if not self._passing and first is not None and not first.spent:
            self.pump()

    def _pass_on_all(self) -> WorkSteps:
        try:
            while self._again:
                self._again = False
                looked_at = 0
                for forward_id in self._numbers():
                    held = self._held.get(forward_id)
                    if held is None:
                        continue
                    if self._pass_on_or_end(forward_id, held):
                        yield
                        continue
                    looked_at += 1
                    if looked_at % _LOOKED_AT_MAX == 0:
                        charge(_LOOKED_AT_MAX // _HELD_PER_UNIT)
                        yield
        finally:
            self._passing = False

    def _numbers(self) -> Iterator[int]:
        """Yields the numbers of the held requests in order, including those that are added during the iteration: they
        may wait behind a request that was only just passed on."""
        last = 0
        while newer := list(takewhile(last.__lt__, reversed(self._held))):
            last = newer[0]
            yield from reversed(newer)

    def _admit_early(self) -> None:
        """Handles the early requests once writes are open, or once another node leads, if there is a connection for the
        answer."""
        if self._early and not self._admitting:
            self._admitting = True
            self._turns.begin(_EARLY, self._admit())

    def _admit(self) -> WorkSteps:
        try:
            for peer in list(self._early.nodes()):
                while self._transport.connected(peer) and (self._leads() or self._leader() != self._own_id):
                    early = self._early.take(peer)
                    if early is None:
                        break
                    charge(FRAME_UNITS)
                    try:
                        with _contained():
                            self._serve(peer, *early)
                    except WireError as error:
                        logger.warning("%s forwarded an unreadable request: %s", self._object_of(peer), error)
                    yield
        finally:
            self._admitting = False

    def clients_closed(self, closed: Collection[ReplyTo]) -> None:
        """Remembers the sends of closed connections, whose clients may send them again. Tells the leader which costly
        requests and sends have lost their clients."""
        charge(1 + len(self._held) // _HELD_PER_UNIT)
        gone = [forward_id for forward_id, held in self._held.items() if held.frame.path in closed]
        for forward_id in gone:
            self._remember(self._held[forward_id].frame)
        if gone:
            self._turns.begin(_GONE, self._tell_gone(gone))

    def _tell_gone(self, gone: list[int]) -> WorkSteps:
        for forward_id in gone:
            held = self._held.get(forward_id)
            if held is None:
                continue
            charge(FRAME_UNITS)
            if held.tries or not held.is_orphan:
                self._nobody_waits(forward_id, held)
            else:
                self._drop(forward_id)
            yield

    def _nobody_waits(self, forward_id: int, held: ForwardedRequest) -> None:
        """Tells the leader that nobody waits for the answer to a costly request, or a send, any more."""
        if held.ends_with_client and held.sent_to != NOBODY and self._level() >= OWNERS_LEVEL:
            self._transport.send_frame(held.sent_to, Kind.FORWARD, [forward_id], b"")

    def peer_closed(self, peer: NodeId) -> None:
        """Holds the requests again that this peer had received, which may be lost, and drops those that it forwarded,
        because it will forward them again.

        Nothing is forwarded to that peer in this call: its other connection may still be open, and the next attempt
        would be lost with it.
        """
        self._early.drop(peer)
        for name, path in [each for each in self._open.items() if each[0][0] == peer]:
            if path.is_send:
                del self._open[name]  # the client may still be connected to its node, which forwards the request again
            else:
                self._gone(name)
        charge(1 + len(self._held) // _HELD_PER_UNIT)
        lost = []
        for forward_id, held in self._held.items():
            if held.sent_to != peer:
                continue
            if held.spent:
                lost.append(forward_id)
            else:
                self._wait_again(forward_id, held)
        if lost:
            self._turns.begin(_LOST, self._answer_lost(peer, lost))
        if self._leader() != peer:
            self.pump()

    def _answer_lost(self, peer: NodeId, lost: list[int]) -> WorkSteps:
        """Answers the requests that this peer had received and that no other node may carry out."""
        for forward_id in lost:
            held = self._drop(forward_id)
            if held is None:
                continue  # another attempt of this request was answered meanwhile
            charge(FRAME_UNITS)
            if held.frame.header.code in WRITES:
                self._answer_unknown(held.frame, f"the connection to the leader ({self._object_of(peer)}) was lost")
            else:
                self._answer_expired(held)
            yield

    def _pass_on_or_end(self, forward_id: int, held: ForwardedRequest) -> bool:
        """Answers a held request that is past its deadline, or that has waited too long for a leader. Otherwise
        forwards it, or carries it out if this node leads, as soon as that is possible. Returns False if nothing was
        done."""
        now_ms = self._clock.monotonic_ms()
        wait_over = not held.was_sent and now_ms >= held.came_ms + self._leader_wait_ms
        if now_ms >= held.deadline_ms or (wait_over and not held.waits_for_leader):
            charge(FRAME_UNITS)
            self._nobody_waits(forward_id, held)
            self._drop(forward_id)
            self._answer_expired(held)
            return True
        tries = held.tries
        self._pass_on(forward_id, held)
        if held.tries == tries and forward_id in self._held:
            return False
        charge(FRAME_UNITS)
        return True

    def _pass_on(self, forward_id: int, held: ForwardedRequest) -> None:
        if held.is_orphan:
            # Its client has disconnected, so the request is not forwarded. A leader might begin the request after it
            # was told of its end (seed 961000021). It might store a send before the repetitions that the client sends
            # over another connection (seed 946000080).
            self._drop(forward_id)
            if self._closings.hears(held.frame.path):
                self._remember(held.frame)
            return
        if held.one_try and held.spent:
            return  # the node that has the request answers it, or the deadline passes
        leader, line = self._leader(), held.line
        if held.is_with(leader):
            if line is not None:
                line.leave(forward_id)  # that leader is connected again, and has the request
            return
        if line is not None:
            # Also applies to requests that a former leader has: no later request may go to the next leader before them.
            line.join(forward_id)
            if not line.may_go(forward_id):
                return
        if held.spent:
            return  # sends behind this one wait until it is returned or answered, or until its deadline
        if self._leads():
            if line is not None:
                line.sent(forward_id, held.frame.header.code)
            self._drop(forward_id)
            if held.tries and held.frame.header.code in SENDS:
                held.frame.may_be_stored(self._answer_unsure)
            self._local(held.frame)
            return
        if leader == NOBODY or not self._transport.connected(leader):
            return
        frame, path = held.frame, held.frame.path
        identity = list(frame.identity) if frame.identity else None
        client = [path.peer_address[0], path.peer_address[1], path.listener]
        header = [forward_id, *client, identity, self._term(), frame.user]
        payload = raw_frame(frame.serialize_type, frame.header_bytes, frame.body)
        if self._transport.send_frame(leader, Kind.FORWARD, header, payload):
            held.went_to(leader)
            if line is not None:
                line.sent(forward_id, frame.header.code)
            if held.oneway and frame.header.code not in KEPT:
                self._drop(forward_id)

    def _drop(self, forward_id: int) -> ForwardedRequest | None:
        held = self._held.pop(forward_id, None)
        if held is not None:
            held.hold.ended()
            self._look_at(held)
            if held.line is not None:
                held.line.leave(forward_id)
            if held.promised is not None:
                held.promised.hold(0)
                held.frame.path.room_given_back()
        return held

    def _look_at(self, held: ForwardedRequest) -> None:
        """Reports a request to the log of slow requests, if it leaves this node late."""
        slow = self._slow
        if slow is None or held.waits_for_leader:
            return
        now_ms = self._clock.monotonic_ms()
        took_ms = now_ms - held.came_ms
        if took_ms >= slow.bound_ms:
            header = held.frame.header
            ext = ext_of(header) if header.code not in SENDS else {}
            slow.passed_on(name_of(header.code), held.frame.path.peer_address, ext, took_ms, now_ms)

    def _wait_again(self, forward_id: int, held: ForwardedRequest) -> None:
        """Records that no leader has the request; it is tried again on the next timer or change of leader."""
        held.left_its_leader()
        if held.line is not None:
            held.line.join(forward_id)

    def _on_handed_back(self, forward_id: int, held: ForwardedRequest) -> None:
        """Takes back a request that the leader returned without having done anything with it."""
        if held.line is not None and held.line.overtaken(forward_id, held.frame.header.code):
            self._drop(forward_id)
            remark = "nothing was done: the leader changed, and a later request overtook it; try again"
            _answer(held.frame, ResponseCode.SERVICE_NOT_AVAILABLE, remark)
            return
        held.came_back()
        self._wait_again(forward_id, held)

    def _answer_expired(self, held: ForwardedRequest) -> None:
        code = held.frame.header.code
        if code in SILENT:
            return
        if held.tries and code in WRITES:
            self._answer_unknown(held.frame, f"the leader did not answer within {held.deadline_ms - held.came_ms} ms")
            return
        self._settle(held, stored=False)
        remark = "there is no leader now; nothing was done, try again"
        _answer(held.frame, ResponseCode.SERVICE_NOT_AVAILABLE, remark)

    def _answer_unknown(self, frame: Frame, why: str) -> None:
        if self._closings.hears(frame.path):
            self._remember(frame)
        remark = f"{UNKNOWN_REMARK} {why}; it may still be stored"
        _answer(frame, ResponseCode.SYSTEM_ERROR, remark)

    def _answer_unsure(self, frame: Frame, refusal: str) -> None:
        """Answers a send that an earlier leader had and that this leader refuses without having searched for it: it may
        have been stored, so the answer is UNKNOWN (seed 953000052)."""
        self._answer_unknown(frame, f"a leader before had it, and this one refuses it: {refusal}")

    # --- frames between nodes ----------------------------------------------------------------------------------------

    def on_frame(self, peer: NodeId, kind: int, header: list[Any], payload: bytes) -> None:
        """Handles a forwarded request, or the answer to one. Raises WireError if the frame is malformed."""
        with _contained():
            if kind == Kind.FORWARD:
                self._on_forward(peer, header, payload)
            else:
                self._on_reply(peer, header, payload)

    def _gone(self, name: tuple[NodeId, int]) -> None:
        """Ends a forwarded request whose client has disconnected, also one that came early and waits (seed
        831000032)."""
        path = self._open.pop(name, None)
        if path is None:
            self._early.gone(*name)
        elif path.is_send:
            self.client_gone(path)
            self._early.client_gone(name[0], (path.peer_address, path.listener))
        else:
            path.client_gone()

    def _on_forward(self, peer: NodeId, header: list[Any], frame: bytes) -> None:
        match header:
            case [int(gone)]:
                self._gone((peer, gone))
                return
        forwarded = decode_forward(header)
        if not self._transport.connected(peer):  # the request could not be returned to its node either
            self._early.put(peer, forwarded, frame)
            return
        self._admit_early()
        self._serve(peer, forwarded, frame, behind=peer in self._early.nodes())

    def _serve(self, peer: NodeId, forwarded: Forwarded, frame: bytes, *, behind: bool = False) -> None:
        """Handles a request that another node forwarded. `behind`: True if earlier requests of that node wait here."""
        forward_id, client, listener, identity, term, user = forwarded
        path = ForwardedPath(
            self._transport,
            peer,
            forward_id,
            client,
            listener,
            self._room,
            self._works,
            self.gate,
            self._open,
        )
        # The request is for the leader of the term that it names. If it arrives late, after a partition, it has been
        # forwarded to another leader meanwhile. A commit of an offset, which has no identity, would then be carried out
        # a second time over a newer one.
        if term != self._term() or self._leader() != self._own_id:
            path.hand_back()
            return
        open_now = self._leads() and not behind  # requests that arrived before writes were open are handled first
        if not open_now and self._early.put(peer, forwarded, frame):
            return
        header = header_bytes(frame)
        request = decode_header(frame[0], header)
        if not open_now and request.code not in SENDS:
            path.hand_back()
            return
        named = user if self._trusted() else 0
        passed_on = Frame(path, frame[0], request, header, frame[4 + len(header) :], len(frame) - 4, identity, named)
        if not open_now:
            # A later send of the same client may wait here already. If this send were given back, it would be stored
            # after the later one, and the client would not learn of it (seed 762000023).
            over = self.gate.refusal(path.in_flight, len(frame), named, GateRequest.EARLY)
            assert over is not None, "it did not fit"
            self._refuse(passed_on, over)
            return
        path.is_send = request.code in SENDS
        if (path.is_send or request.code in COSTLY) and not request.flag & FLAG_ONEWAY:
            self._open[peer, forward_id] = path  # its answer removes it from `_open`
        if self._works[path.owner] >= WORKS_MAX:
            self._refuse_busy(passed_on, _TOO_MUCH)
        else:
            self._local(passed_on)

    def _refuse(self, frame: Frame, over: Over) -> None:
        self.gate.refused(over)
        self._refuse_busy(frame, over.remark)

    def _refuse_busy(self, frame: Frame, why: str) -> None:
        _answer(frame, ResponseCode.SYSTEM_BUSY, why)

    def _on_reply(self, peer: NodeId, header: list[Any], frame: bytes) -> None:
        forward_id, answered = header
        if not answered:
            held = self._held.get(forward_id)
            if held is not None and held.sent_to == peer:
                self._on_handed_back(forward_id, held)
            return
        reply = decode_header(frame[4], header_bytes(frame, 4))
        held = self._held.get(forward_id)
        if held is None:
            return
        if reply.code != ResponseCode.SUCCESS and held.sent_to != peer:
            return  # the answer is only about its own attempt; another node has received the request, or will soon
        self._drop(forward_id)
        stored, unknown = reply.code == ResponseCode.SUCCESS, is_unknown(reply.code, reply.remark)
        refused = not (stored or unknown)
        if refused and held.tries > 1 and held.frame.header.code in SENDS and not held.oneway:
            self._answer_unsure(held.frame, reply.remark or "")
            return
        if held.frame.path.closed or held.oneway:
            if held.frame.path in self._closings.waiting:
                self._remember(held.frame)
            return
        if held.frame.identity is not None:
            if unknown:
                self._remember(held.frame)
            else:
                self._settle(held, stored=stored)
        held.frame.path.write(frame)

    # --- identities --------------------------------------------------------------------------------------------------

    def _settle(self, held: ForwardedRequest, *, stored: bool) -> None:
        """Settles the identity of a send that got a final answer. If a retry was refused, that says nothing about the
        first attempt, so the identity stays remembered for a retry."""
        frame = held.frame
        if frame.identity is None or settle(frame.path, frame.identity.producer_id, frame.identity.sequence):
            return
        if not stored and self._closings.hears(frame.path):
            self._remember(frame)

    def _remember(self, frame: Frame) -> None:
        """Remembers the identity of the send, so that its retry is recognised."""
        if frame.identity is None:
            return
        self._names.remember_held(frame, frame.identity)
        leave_session(frame.path, frame.identity.producer_id)


@contextmanager
def _contained() -> Iterator[None]:
    """Converts any exception that a malformed frame raises into a WireError."""
    try:
        yield
    except (CodecError, TypeError, ArithmeticError, ValueError, IndexError) as error:
        raise WireError(f"malformed forward frame: {error}") from error


def _answer(frame: Frame, code: int, remark: str) -> None:
    header = frame.header
    if not header.flag & FLAG_ONEWAY:
        frame.path.write(
            encode_frame(
                code,
                header.opaque,
                FLAG_RESPONSE,
                remark=remark,
                serialize_type=frame.serialize_type,
                language="JAVA",
                reader=header.language,
            )
        )

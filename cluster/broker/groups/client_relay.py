"""Sends requests to clients, whichever node holds their connection: RocketMQ's codes 39, 220, 307, 309 and 326 (ADR
0051).

A client that is connected to this node is asked directly. Otherwise this node asks the other nodes, one after another,
to pass the request on (`cluster.broker.groups.relay_frame`), because only the node that holds a connection knows the
client behind it. A peer that sends nothing for SILENCE_MS is skipped, although it may have passed the request on. So
**a request may reach clients twice**, and only requests that tolerate this may be relayed. Nothing is kept after the
deadline, and nothing is written to the log.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cluster.broker.groups.consumer_group import Member
from cluster.broker.groups.group_members import CLIENT_ID_MAX, Members, Role
from cluster.broker.groups.relay_frame import (
    GROUP_MAX,
    Relayed,
    RelayStatus,
    decode_relay,
    decode_reply,
    encode_relay,
    encode_reply,
    names_fit,
)
from cluster.broker.refusal import Reason, Refused
from cluster.broker.rights import Party
from cluster.broker.services import HANDED_OVER, ClientAnswer, ClientRequest
from cluster.runtime.figures.service_metrics import ServiceMetrics
from cluster.runtime.peer_frames import Kind
from cluster.runtime.service_lifecycle import Part
from raftlog.types import NOBODY, NodeId
from raftmq_wire.signature import unsigned
from statemachine.levels import OWNERS_LEVEL

if TYPE_CHECKING:
    from cluster.broker.groups.reply_notes import ReplyNotes
    from cluster.broker.rights import Rights
    from cluster.broker.services import Client, Services
    from cluster.runtime.peer_frames import PeerLinks
    from statemachine.access.rules import Need


ANSWER_MS = 10_000
"""Milliseconds to wait for a client's answer (as RocketMQ: Broker2Client's callClient)."""
SILENCE_MS = 1_000
"""Milliseconds that a peer may take to say whether the client is connected to it."""
IN_HAND_MAX = 1_000
"""The most unanswered requests of this node to clients of other nodes. Also the most unanswered requests to clients of
this node, its own and those that it passes on for other nodes together."""
KINDS = frozenset({Kind.RELAY, Kind.RELAY_REPLY})

_LOST = "the client, or the node that it is connected to, was lost before it answered"

RelayAnswered = Callable[[ClientAnswer | Refused], None]


class _AskedPeers:
    """A request of this node, and the peers that are asked to pass it on."""

    __slots__ = ("busy", "done", "handed_over", "own_too", "peer", "peers", "relayed", "stop_deadline", "stop_silence")

    def __init__(self, relayed: Relayed, peers: list[NodeId], done: RelayAnswered) -> None:
        self.relayed = relayed
        self.peers = peers
        """The peers that were not asked yet; the next one is last."""
        self.peer: NodeId = NOBODY
        self.own_too = False
        """True if this node looks for the client among its own clients after its peers were asked."""
        self.handed_over = False
        """True if `peer` has written the request to a client's connection: no other peer is asked."""
        self.busy = False
        """True if a peer refused the request because it had too many."""
        self.done = done
        self.stop_deadline: Callable[[], None] = _nothing
        self.stop_silence: Callable[[], None] = _nothing

    def hand_over(self, peer: NodeId) -> None:
        """Records that this peer has found the client and sent it the request."""
        self.handed_over = True
        self.peer = peer


class ClientRelay:
    """Sends this node's requests to clients of any node, and passes on the requests of other nodes to clients of this
    node. Event loop only."""

    def __init__(
        self,
        services: Services,
        members: Members,
        transport: PeerLinks,
        rights: Rights,
        notes: ReplyNotes,
    ) -> None:
        self._metrics = RelayMetrics()
        self._notes = notes
        self._rights = rights
        self._services = services
        self._members = members
        self._transport = transport
        self._asked: dict[int, _AskedPeers] = {}
        self._ids = transport.request_ids()
        self._calls = 0
        """The number of requests that were sent to clients of this node and are not answered yet."""

    @property
    def _bytes_max(self) -> int:
        return self._services.config.limits.frame_bytes_max

    def ask_client(
        self,
        role: Role,
        group: str | None,
        client_id: str | None,
        request: ClientRequest,
        done: RelayAnswered,
        timeout_ms: int = ANSWER_MS,
        *,
        user: int | None = None,
        need: Need | None = None,
        correlation_id: str | None = None,
        first: NodeId | None = None,
    ) -> None:
        """Sends the request to one client, without the signature of the user who asked for it. Calls `done` once,
        perhaps before this method returns.

        `group`: the client's group, None for any. `client_id`: None for any client of the group, each in turn. `user`:
        only a client of that user gets it, None for any user's. `need`: only a client whose user has that right gets
        it, None for any; the node that holds the connection checks this. Other clients are skipped as if they were not
        there. Below OWNERS_LEVEL, other nodes check neither `user` nor `need`.

        `correlation_id`: the id of the reply that is sent. A node that has noted which connection waits for this reply
        prefers that connection. `first`: the node to ask first; None for this node first, then the others.

        Refusals: NO_CONSUMER if no such client is connected to any node that can be asked, BUSY if too many requests
        are unanswered on this node or on the client's, INVALID for a request that is too long, ERROR if there was no
        answer within `timeout_ms` or the client disconnected.
        """
        request = request._replace(ext=unsigned(request.ext))
        done = self._counted(request, done)
        if not names_fit(group, client_id):
            longest = f"a group's name has at most {GROUP_MAX} characters, a client's {CLIENT_ID_MAX}"
            done(Refused(Reason.NO_CONSUMER, f"no {role} of such a name is connected: {longest}"))
            return  # a peer would close its connection if such a frame arrived
        size = _size(request.ext, request.body)
        if size > self._bytes_max:
            done(Refused(Reason.INVALID, f"a request of {size} bytes to a client; {self._bytes_max} are allowed"))
            return
        relayed = Relayed(next(self._ids), role, group, client_id, timeout_ms, request, user, need, correlation_id)
        peers = self._transport.connected_members()[::-1]
        other_first = first is not None and first in peers
        if not other_first and self._to_own(relayed, done):
            return
        if len(self._asked) >= IN_HAND_MAX:
            done(Refused(Reason.BUSY, f"{IN_HAND_MAX} requests to clients of other nodes are not answered yet"))
            return
        if self._services.state.level < OWNERS_LEVEL:
            relayed = relayed._replace(user=None, need=None, correlation_id=None)
        if first is not None and other_first:
            peers.remove(first)
            peers.append(first)
        asked = self._asked[relayed.relay_id] = _AskedPeers(relayed, peers, done)
        asked.own_too = other_first
        asked.stop_deadline = self._services.call_later(timeout_ms, lambda: self._too_late(asked))
        self._ask_next(asked)

    def _to_own(self, relayed: Relayed, done: RelayAnswered) -> bool:
        """Sends the request to a client of this node and returns True. Returns False if there is no such client."""
        client, timeout_ms = self._find(relayed), relayed.timeout_ms
        if client is None:
            return False
        self._call(client, relayed.request, timeout_ms, lambda answer: done(_outcome(answer, timeout_ms)))
        return True

    def _find(self, relayed: Relayed) -> Client | None:
        """Returns a connected client of this node to which the request may be sent; None if there is none."""
        client_id, correlation_id = relayed.client_id, relayed.correlation_id
        if client_id is not None and correlation_id is not None:
            note = self._notes.find(client_id, correlation_id)
            if note is not None and not note.connection.closed and note.user == relayed.user:
                return note.connection
        member = self._members.find(relayed.role, relayed.group, client_id, partial(self._may_get, relayed))
        return member.connection if member is not None else None

    def _may_get(self, relayed: Relayed, member: Member) -> bool:
        rights, user, need = self._rights, relayed.user, relayed.need
        if user is not None and not rights.is_user(member.user, user):
            return False
        return need is None or rights.is_allowed(Party(member.user, member.connection.peer_address[0]), [need])

    def _counted(self, request: ClientRequest, done: RelayAnswered) -> RelayAnswered:
        def counted(outcome: ClientAnswer | Refused) -> None:
            self._metrics.ended(request, outcome)
            done(outcome)

        return counted

    # --- the node that asks ------------------------------------------------------------------------------------------

    def _ask_next(self, asked: _AskedPeers) -> None:
        asked.stop_silence()
        header, payload = encode_relay(asked.relayed)
        while asked.peers:
            asked.peer = asked.peers.pop()
            if self._transport.send_frame(asked.peer, Kind.RELAY, header, payload):
                self._metrics.relayed.inc()
                asked.stop_silence = self._services.call_later(SILENCE_MS, lambda: self._ask_next(asked))
                return
        if asked.own_too and self._to_own(asked.relayed, lambda outcome: self._end(asked, outcome)):
            return
        if asked.busy:
            self._end(asked, Refused(Reason.BUSY, "the node that holds the client's connection is busy"))
            return
        role, group, client_id = asked.relayed.role, asked.relayed.group, asked.relayed.client_id
        who = f"{role} {client_id}" if client_id is not None else str(role)
        of = f" of group {group}" if group is not None else ""
        self._end(asked, Refused(Reason.NO_CONSUMER, f"no {who}{of} is connected"))

    def _too_late(self, asked: _AskedPeers) -> None:
        self._end(asked, _outcome(None, asked.relayed.timeout_ms))

    def _end(self, asked: _AskedPeers, outcome: ClientAnswer | Refused) -> None:
        asked.stop_silence()
        asked.stop_deadline()
        if self._asked.pop(asked.relayed.relay_id, None) is not None:
            asked.done(outcome)

    def part(self) -> Part:
        """Returns the hooks through which the node calls the relay."""
        return Part(
            name="relay",
            peer_closed=self.peer_closed,
            frames=dict.fromkeys(KINDS, self.on_frame),
            metrics=(self._metrics,),
        )

    def peer_closed(self, peer: NodeId) -> None:
        """Handles the loss of a connection to a peer: for each request that the peer has not answered, asks another
        peer, unless the client already has the request."""
        for asked in [asked for asked in self._asked.values() if asked.peer == peer]:
            if asked.handed_over:
                self._end(asked, Refused(Reason.ERROR, _LOST))
            else:
                self._ask_next(asked)

    def _on_reply(self, peer: NodeId, header: list[Any], payload: bytes) -> None:
        relay_id, status, answer = decode_reply(header, payload)
        asked = self._asked.get(relay_id)
        if asked is None:
            return
        match status:
            case RelayStatus.HANDED_OVER if asked.relayed.request.oneway:
                self._end(asked, HANDED_OVER)
            case RelayStatus.HANDED_OVER:  # no further peer is asked, even if this one was skipped before
                asked.stop_silence()
                asked.hand_over(peer)
            case RelayStatus.ANSWERED:
                self._end(asked, answer or HANDED_OVER)
            case RelayStatus.LOST:
                self._end(asked, Refused(Reason.ERROR, _LOST))
            case RelayStatus.ABSENT | RelayStatus.BUSY if asked.peer == peer and not asked.handed_over:
                asked.busy |= status is RelayStatus.BUSY
                self._ask_next(asked)

    # --- the node that holds the connection --------------------------------------------------------------------------

    def _on_relay(self, peer: NodeId, header: list[Any], payload: bytes) -> None:
        relayed = decode_relay(header, payload)
        relay_id, request = relayed.relay_id, relayed.request

        def say(status: RelayStatus, answer: ClientAnswer | None = None) -> None:
            self._metrics.taken(status)
            self._transport.send_frame(peer, Kind.RELAY_REPLY, *encode_reply(relay_id, status, answer))

        def answered(answer: ClientAnswer | Refused | None) -> None:
            if isinstance(answer, ClientAnswer) and _size(answer.ext, answer.body) <= self._bytes_max:
                say(RelayStatus.ANSWERED, answer)
            else:
                say(RelayStatus.LOST)

        client = self._find(relayed)
        if client is None:
            say(RelayStatus.ABSENT)
        elif self._calls >= IN_HAND_MAX:
            say(RelayStatus.BUSY)
        elif request.oneway:
            self._call(client, request, relayed.timeout_ms, _nothing)
            say(RelayStatus.HANDED_OVER)
        else:
            say(RelayStatus.HANDED_OVER)
            self._call(client, request, relayed.timeout_ms, answered)

    def _call(
        self,
        client: Client,
        request: ClientRequest,
        timeout_ms: int,
        done: Callable[[ClientAnswer | Refused | None], None],
    ) -> None:
        """Sends a request to a client of this node. Calls `done` with the client's answer, or with None if the client
        disconnects or does not answer in time. Calls it at once with HANDED_OVER for a oneway request, or with a
        Refused (BUSY) if too many requests are unanswered."""
        if request.oneway:
            client.call_oneway(request.code, request.ext, request.body)
            done(HANDED_OVER)
            return
        if self._calls >= IN_HAND_MAX:
            done(Refused(Reason.BUSY, f"{IN_HAND_MAX} requests to clients of this node are not answered yet"))
            return
        self._calls += 1

        def ended(answer: ClientAnswer | None) -> None:
            stop_timer()
            self._calls -= 1
            done(answer)

        give_up = client.call(request, ended)
        stop_timer = self._services.call_later(timeout_ms, give_up)

    # --- frames between nodes ----------------------------------------------------------------------------------------

    def on_frame(self, peer: NodeId, kind: int, header: list[Any], payload: bytes) -> None:
        """Handles a frame of one of KINDS: a peer's request or reply. Raises WireError if it is malformed."""
        if kind == Kind.RELAY:
            self._on_relay(peer, header, payload)
        else:
            self._on_reply(peer, header, payload)


def _nothing(*_: object) -> None:
    """Does nothing. Used where a request cannot be cancelled, or its result is not needed."""


def _outcome(answer: ClientAnswer | Refused | None, timeout_ms: int) -> ClientAnswer | Refused:
    if answer is not None:
        return answer
    return Refused(Reason.ERROR, f"the client disconnected, or gave no answer within {timeout_ms} ms")


def _size(ext: dict[str, str], body: bytes) -> int:
    """Returns the approximate bytes of a request or an answer, counting three bytes per character of a text."""
    return len(body) + sum(3 * (len(key) + len(value)) for key, value in ext.items())


_ANSWERED: Final = "answered"
_HANDED_OVER: Final = "handed_over"
_UNANSWERED: Final = "unanswered"
_REFUSED: Final = {Reason.NO_CONSUMER: "absent", Reason.BUSY: "busy", Reason.INVALID: "too_long"}
_TAKEN: Final = {
    RelayStatus.HANDED_OVER: _HANDED_OVER,
    RelayStatus.ABSENT: "absent",
    RelayStatus.BUSY: "busy",
}


class RelayMetrics(ServiceMetrics):
    """Metrics of the relay, updated per request."""

    def __init__(self) -> None:
        super().__init__()
        counter = self.counter
        self._asked = counter("raftmq_client_requests", "Requests of this node to clients", ["outcome"])
        self.relayed = counter("raftmq_client_requests_relayed", "Times that another node was asked to hand one over")
        self._taken = counter(
            "raftmq_client_requests_taken",
            "Requests to clients that other nodes asked this one to hand over",
            ["outcome"],
        )
        for outcome in (_ANSWERED, _HANDED_OVER, _UNANSWERED, *_REFUSED.values()):
            self._asked.labels(outcome)
        for outcome in _TAKEN.values():
            self._taken.labels(outcome)

    def ended(self, request: ClientRequest, outcome: ClientAnswer | Refused) -> None:
        """Counts a finished request of this node."""
        if isinstance(outcome, ClientAnswer):
            self._asked.labels(_HANDED_OVER if request.oneway else _ANSWERED).inc()
        else:
            self._asked.labels(_REFUSED.get(outcome.reason, _UNANSWERED)).inc()

    def taken(self, status: RelayStatus) -> None:
        """Counts this node's first reply to a peer's request. A later reply that carries the client's answer is not
        counted again."""
        if status in _TAKEN:
            self._taken.labels(_TAKEN[status]).inc()

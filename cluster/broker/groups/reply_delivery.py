"""Finds the client that waits for a reply (324, 325), and sends it the reply (326).

A reply names its requester by client id and correlation id, which any client could write. So all nodes are asked at
once who has noted a request with these ids (`cluster.broker.groups.reply_notes`):

- The notes name one user: the reply goes to the connection of the note. If that has closed, it goes to another
  connection of the same user and client id, on any node. It goes to nobody if another user's client of that id may have
  waited first and its note may be lost: the noted user may have read the ids in that client's request.
- There is no note, and exactly one user has a client of that id: the reply goes to that client, because the note may
  have been lost with a node. It goes to nobody if the client waits for other replies and no note of it can be lost.
- There is no note, but a connected node does not answer and may have one: the reply is refused as BUSY, and may be sent
  again.
- Otherwise it goes to nobody. If several users may have asked for it, the node has a finding.

So a client cannot get the reply of another user by using the same client id. Where denials are not enforced, the reply
goes to any client of the id instead of nobody. Below OWNERS_LEVEL it always does, because older nodes do not know the
frame that asks for notes.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cluster.broker.groups.client_relay import IN_HAND_MAX, SILENCE_MS
from cluster.broker.groups.group_members import CLIENT_ID_MAX, Members, Role
from cluster.broker.groups.relay_frame import CORRELATION_MAX
from cluster.broker.groups.requester_frames import (
    USERS_MAX,
    RequesterKnown,
    WhoWaits,
    decode_answer,
    decode_question,
    encode_answer,
    encode_question,
)
from cluster.broker.refusal import Reason, Refused
from cluster.config.local_layout import names_of
from cluster.runtime.peer_frames import Kind
from cluster.runtime.service_lifecycle import Part
from statemachine.levels import OWNERS_LEVEL

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.broker.groups.client_relay import ClientRelay, RelayAnswered
    from cluster.broker.groups.reply_notes import ReplyNotes
    from cluster.broker.groups.shared_ids import SharedIds
    from cluster.broker.rights import Party, Rights
    from cluster.broker.services import ClientRequest, Services
    from cluster.runtime.peer_frames import PeerLinks
    from raftlog.types import NodeId

WHAT: Final = "SEND_REPLY_MESSAGE"


class Reply(NamedTuple):
    """A reply that is being delivered."""

    client_id: str
    correlation_id: str
    ttl_ms: int
    """The most milliseconds that the requester waits for the reply."""
    replier: Party
    request: ClientRequest
    """The request 326 that brings the reply to the requester."""


class _AskedNodes:
    """The answers of all nodes to the question which client waits for the reply."""

    __slots__ = ("done", "known", "lost", "peers", "stop_silence")

    def __init__(self, own: NodeId, waits: RequesterKnown, done: Callable[[_AskedNodes], None]) -> None:
        self.known: dict[NodeId, RequesterKnown] = {own: waits}
        """Node -> its answer; this node's own is there from the beginning."""
        self.peers: set[NodeId] = set()
        """The peers that have not answered yet."""
        self.lost = False
        """True if a peer was lost before it answered."""
        self.done = done
        self.stop_silence: Callable[[], None] = lambda: None


class ReplyDelivery:
    """Delivers replies to requesters, whichever node holds their connections. Event loop only."""

    def __init__(
        self,
        services: Services,
        members: Members,
        notes: ReplyNotes,
        relay: ClientRelay,
        transport: PeerLinks,
        rights: Rights,
        shared: SharedIds,
    ) -> None:
        self._services = services
        self._members = members
        self._notes = notes
        self._relay = relay
        self._transport = transport
        self._rights = rights
        self._shared = shared
        self._asked: dict[int, _AskedNodes] = {}
        self._ids = transport.request_ids()
        self._gone_ms: dict[NodeId, int] = {}
        """Peer -> time of the loop's clock at which its connection was last lost, in milliseconds."""

    def deliver(self, reply: Reply, done: RelayAnswered) -> None:
        """Sends the reply to its requester. Calls `done` once, with the results of `ClientRelay.ask_client`.
        NO_CONSUMER also means that the requester cannot be told from another user's client."""
        fits = len(reply.client_id) <= CLIENT_ID_MAX and len(reply.correlation_id) <= CORRELATION_MAX
        if self._services.state.level < OWNERS_LEVEL or not fits:
            self._to_any(reply, done)
            return
        own = self._waits(reply.client_id, reply.correlation_id, reply.ttl_ms)
        if own.user is not None and not self._rights.judges:
            self._to_user(reply, own.user, self._services.node_id, done)  # rights are off: no user needs protection
            return
        if len(self._asked) >= IN_HAND_MAX:
            done(Refused(Reason.BUSY, f"{IN_HAND_MAX} questions about requesters are not answered yet"))
            return
        asked = _AskedNodes(self._services.node_id, own, lambda asked: self._decide(reply, asked, done))
        ask_id = next(self._ids)
        header = encode_question(WhoWaits(ask_id, reply.client_id, reply.correlation_id, reply.ttl_ms))
        peers = self._transport.connected_members()
        asked.peers = {peer for peer in peers if self._transport.send_frame(peer, Kind.WHO_WAITS, header, b"")}
        if not asked.peers:
            asked.done(asked)
            return
        self._asked[ask_id] = asked
        asked.stop_silence = self._services.call_later(SILENCE_MS, lambda: self._end(ask_id))

    def _waits(self, client_id: str, correlation_id: str, ttl_ms: int) -> RequesterKnown:
        """Returns what this node knows about the requester of a reply."""
        notes = self._notes
        note = notes.find(client_id, correlation_id)
        users = tuple(islice(self._members.producer_users(client_id).items(), USERS_MAX))
        waiting = tuple(user for user, _ in users if notes.waits(client_id, user))
        lacking = tuple(user for user, _ in users if notes.may_lack(ttl_ms, user))
        return RequesterKnown(note.user if note is not None else None, users, waiting, lacking, notes.age_ms)

    def _decide(self, reply: Reply, asked: _AskedNodes, done: RelayAnswered) -> None:
        known = asked.known.values()
        noted = {waits.user: node for node, waits in asked.known.items() if waits.user is not None}
        ages: dict[int, int] = {}
        for user, age_ms in (row for waits in known for row in waits.users):
            ages[user] = max(age_ms, ages.get(user, 0))
        users, lost_ms = ages.keys(), self._lost_ms(asked)
        lacking = {user for waits in known for user in waits.lacking}
        if lost_ms < reply.ttl_ms:  # a request that was noted before the loss may still wait
            lacking |= {user for user, age_ms in ages.items() if age_ms > lost_ms}
        if len(noted) == 1:
            ((user, node),) = noted.items()
            if not (lacking - noted.keys()):
                self._to_user(reply, user, node, done)
                return
            why = "a request of another user with the same client id may be forgotten"
        elif noted:
            why = "two users wait under the same client id and correlation id"
        elif users and asked.peers and self._rights.enforces:
            silent = names_of(self._services.config.cluster.group, asked.peers)
            done(Refused(Reason.BUSY, f"node {silent} does not say whether client {reply.client_id} waits for it"))
            return
        elif len(users) > 1:
            why = "nobody is known to wait for it, and several users have a client of this id"
        elif not users:
            done(Refused(Reason.NO_CONSUMER, f"no producer {reply.client_id} is connected"))
            return
        else:
            (user,) = users
            some_lost = user in lacking or lost_ms < reply.ttl_ms or not self._transport.reaches_all()
            if some_lost or not any(user in waits.waiting for waits in known):
                self._to_user(reply, user, None, done)
                return
            why = "the client waits for other replies only"
        self._to_nobody(reply, why, tuple(sorted({*users, *noted})), done)

    def _lost_ms(self, asked: _AskedNodes) -> int:
        """Returns the milliseconds since notes of waiting requesters were last lost; 0 if a node did not answer or was
        lost while it was asked. Notes are lost when a node starts or is lost. A node that has been down for long cannot
        have noted a recent request."""
        now_ms, gone = self._services.monotonic_ms(), self._gone_ms.items()
        ages_ms = [waits.age_ms for waits in asked.known.values()]
        ages_ms += [now_ms - gone_ms for peer, gone_ms in gone if peer not in asked.known]
        return 0 if asked.peers or asked.lost else min(ages_ms)

    def _to_nobody(self, reply: Reply, why: str, users: tuple[int, ...], done: RelayAnswered) -> None:
        if not self._rights.denies(reply.replier, f"a reply to client {reply.client_id}: {why}", WHAT):
            self._to_any(reply, done)
            return
        if len(users) > 1:
            self._shared.undelivered(reply.client_id, users)
        done(Refused(Reason.NO_CONSUMER, f"no producer {reply.client_id} waits for it"))

    def _to_user(self, reply: Reply, user: int, node: NodeId | None, done: RelayAnswered) -> None:
        correlation_id = reply.correlation_id if node is not None else None
        self._relay.ask_client(
            Role.PRODUCER,
            None,
            reply.client_id,
            reply.request,
            done,
            user=user,
            correlation_id=correlation_id,
            first=node,
        )

    def _to_any(self, reply: Reply, done: RelayAnswered) -> None:
        self._relay.ask_client(Role.PRODUCER, None, reply.client_id, reply.request, done)

    # --- frames between nodes ----------------------------------------------------------------------------------------

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(
            name="replies to requesters",
            peer_closed=self.peer_closed,
            frames={Kind.WHO_WAITS: self.on_frame, Kind.WAITS: self.on_frame},
        )

    def peer_closed(self, peer: NodeId) -> None:
        """Stops waiting for answers of a peer whose connection was lost."""
        self._gone_ms[peer] = self._services.monotonic_ms()
        for ask_id, asked in list(self._asked.items()):
            if peer in asked.peers:
                asked.lost = True
                asked.peers.discard(peer)
                if not asked.peers:
                    self._end(ask_id)

    def on_frame(self, peer: NodeId, kind: int, header: list[Any], payload: bytes) -> None:
        """Handles a frame WHO_WAITS (a question) or WAITS (an answer). Raises WireError if it is malformed."""
        if kind == Kind.WHO_WAITS:
            question = decode_question(header)
            waits = self._waits(question.client_id, question.correlation_id, question.ttl_ms)
            self._transport.send_frame(peer, Kind.WAITS, encode_answer(question.ask_id, waits), b"")
            return
        ask_id, waits = decode_answer(header)
        asked = self._asked.get(ask_id)
        if asked is not None and peer in asked.peers:
            asked.known[peer] = waits
            asked.peers.discard(peer)
            if not asked.peers:
                self._end(ask_id)

    def _end(self, ask_id: int) -> None:
        asked = self._asked.pop(ask_id, None)
        if asked is not None:
            asked.stop_silence()
            asked.done(asked)

"""Implements the channel `group`: connections between nodes of different groups of one cluster, each for both
directions.

A process of the registry (docs/adr/0112) is dialled in the same way, as a node of group REGISTRY_GROUP; it dials
nobody.

This channel carries neither Raft messages nor frames of nodes of this node's group: a node of another group is no peer,
and its id means nothing in this group. It carries the kinds of frames in GROUP_KINDS. The service that registered for a
kind handles its frames (`GroupLinks.takes`). docs/adr/0108-groups-share-one-truth-and-copy-it.md says who dials whom.

A node that dials any member of a group addresses its HELLO to node 0. The WELCOME of this channel also has the
acceptor's group, so the dialler learns which node it has reached. A node of an earlier release refuses the channel; it
is dialled again after REDIAL_REFUSED_S.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket as socket_module
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

from cluster.config.local_layout import REGISTRY_GROUP, node_object
from cluster.peer import handshake
from cluster.peer.allowed_peers import BELOW, HostAndPort
from cluster.peer.connections import GROUP, HANDSHAKE_S, HELLO_MAX, OTHER_SECRET, UNACKNOWLEDGED_MS, certified
from cluster.peer.keyring import Keyring
from cluster.peer.transport import PeerTransport
from cluster.peer.wire import pack, unpack
from cluster.runtime.framing import FrameBuffer, FrameTooLargeError, first_frame
from cluster.runtime.key_file import key_id
from cluster.runtime.listeners import Signal
from cluster.runtime.logs import Seldom
from cluster.runtime.peer_frames import GROUP_KINDS, REGISTRY_KINDS, Kind, WireError
from raftlog.types import FIRST_GROUP, NOBODY, NodeId
from raftlog.work import CALL_UNITS, FRAME_UNITS, METER

logger = logging.getLogger(__name__)

GROUP_FRAME_MAX = 1 << 20
"""The longest frame of this channel in bytes."""
ACCEPTED_MAX = 256
"""The most connections that nodes of other groups have dialled: 63 groups of three members, and some whose loss this
node has not noticed."""
OUT_BUFFER_MAX = 2 << 20
"""Bytes waiting for a slow node above which frames to it are dropped."""
FRAMES_PER_TURN = 4
"""The most frames that one turn of the loop handles of a connection. Handling a large map of the groups takes some 2
ms."""
QUIET_LOOKS = 5
"""Looks (`GroupLinks.tend`, one a second) without a byte after which a connection is closed. The other side sends every
second. Looks are counted instead of time, so a node that stood still blames nobody."""
REDIAL_MIN_S, REDIAL_MAX_S = 0.5, 2.0
REDIAL_REFUSED_S = 30.0
"""Seconds until a node that refuses this one is dialled again: that node has an earlier release or another secret."""
REDIAL_BELOW_S = 1.0
"""Seconds until a node is dialled again that refused because the level of its group does not allow other groups yet."""
_USER_TIMEOUT: int | None = getattr(socket_module, "TCP_USER_TIMEOUT", None)

OnGroupFrame = Callable[["GroupLink", list[Any], bytes], None]
"""(link, header, payload) of a received frame. The handler sends its answer on the link. May raise WireError, which
closes the link."""


class LinkTarget(NamedTuple):
    """A node of another group, or any member of that group, to which this node keeps a connection."""

    group: int
    node: NodeId
    """Id of the node in its group; NOBODY for any member of the group."""
    addresses: tuple[HostAndPort, ...]
    """The addresses to dial, one per attempt, in turn; at least one."""

    @property
    def what(self) -> str:
        """The name of the target in log lines."""
        return node_object(self.group, self.node) if self.group == REGISTRY_GROUP else f"group {self.group}"


class GroupLink(asyncio.Protocol):
    """One open connection to a node of another group, dialled or accepted. Event loop only."""

    def __init__(
        self, owner: GroupLinks, transport: asyncio.Transport, group: int, node: NodeId, key_id: bytes
    ) -> None:
        """`key_id`: the id of the key that both sides have proven; b"" if none."""
        self.group = group
        self.node = node
        self.key_id = key_id
        self.quiet = 0
        """Calls of `GroupLinks.tend` since the last byte arrived."""
        self._owner = owner
        self._transport = transport
        self._buffer = FrameBuffer(GROUP_FRAME_MAX)

    def send(self, kind: Kind, header: list[Any], payload: bytes = b"") -> bool:
        """Sends a frame; returns False if the connection has ended or the other side is too slow. The frame is lost
        then."""
        transport = self._transport
        if transport.is_closing() or transport.get_write_buffer_size() > OUT_BUFFER_MAX:
            return False
        METER.units += CALL_UNITS + (len(payload) >> 10)
        transport.writelines([pack(kind, header, len(payload)), payload])
        return True

    def abort(self) -> None:
        """Closes the connection."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Handles every complete frame in the received bytes, and keeps an incomplete one."""
        self.quiet = 0
        METER.units += CALL_UNITS + (len(data) >> 10)
        try:
            self._handle(*self._buffer.feed(data), 0)
        except (WireError, FrameTooLargeError) as error:
            self._on_bad(error)

    def _handle(self, buffer: bytes, frames: list[tuple[int, int]], at: int) -> None:
        """Handles up to FRAMES_PER_TURN frames of a read, from index `at` on. Handles the rest in the next turns of the
        loop, before anything more is read."""
        stops = min(len(frames), at + FRAMES_PER_TURN)
        METER.units += FRAME_UNITS * (stops - at)
        for start, stop in frames[at:stops]:
            kind, header, payload = unpack(buffer, start, stop)
            self._owner.on_frame(self, kind, header, payload)
        if self._transport.is_closing():
            return
        if stops < len(frames):
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on, buffer, frames, stops)
        elif at:
            self._transport.resume_reading()

    def _go_on(self, buffer: bytes, frames: list[tuple[int, int]], at: int) -> None:
        if self._transport.is_closing():
            return
        try:
            self._handle(buffer, frames, at)
        except WireError as error:
            self._on_bad(error)

    def _on_bad(self, error: Exception) -> None:
        logger.warning("a bad frame of %s, connection closed: %s", node_object(self.group, self.node), error)
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Reports the end of the connection to the owner."""
        self._owner.on_lost(self)


class _Dial(asyncio.Protocol):
    """The handshake of a connection that this node dials. If it succeeds, a GroupLink takes over the connection; if it
    fails, `done` has the reason."""

    def __init__(self, owner: GroupLinks, target: LinkTarget) -> None:
        self.done: asyncio.Future[GroupLink | str] = asyncio.get_running_loop().create_future()
        """Its result is the open link, or the reason why there is none."""
        self.is_refused = self.is_below = False
        """`is_refused`: the other node refused this one. `is_below`: it did so because the level of its group does not
        allow other groups yet, as in a new group."""
        self._owner = owner
        self._target = target
        self._early = b""
        """The bytes of an incomplete frame."""
        self._hello = self._challenge = b""
        self._key: bytes | None = None
        self._names: tuple[str, str] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends this node's HELLO."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is no subclass of asyncio.Transport
        socket = transport.get_extra_info("socket")
        if socket is not None and _USER_TIMEOUT is not None:
            socket.setsockopt(socket_module.IPPROTO_TCP, _USER_TIMEOUT, UNACKNOWLEDGED_MS)
        peers = self._owner.transport
        self._names = certified(self._transport)
        if self._names is not None and self._names[0] != peers.roster.membership.cluster_uuid:
            self._end("the certificate there is of another cluster")
            return
        frame = pack(Kind.HELLO, peers.introduction(NOBODY, GROUP))
        self._hello = frame[4:]
        self._transport.write(frame)

    def abort(self) -> None:
        """Closes the connection if it did not become a link."""
        self._end("given up")

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the handshake with a reason, unless it is already over."""
        self._end("it closed the connection")

    def data_received(self, data: bytes) -> None:
        """Handles the frames of the handshake. The bytes that follow the handshake go to the link."""
        self._early += data
        try:
            while not self.done.done() and (stop := first_frame(self._early, HELLO_MAX)):
                frame, self._early = self._early[4:stop], self._early[stop:]
                kind, header, _ = unpack(frame, 0, len(frame))
                if kind == Kind.WELCOME:
                    self._on_welcome(header, self._early)
                else:
                    self._on_frame(kind, header, frame)
        except (WireError, FrameTooLargeError) as error:
            self._end(f"what listens there answers with a bad frame: {error}")

    def _on_frame(self, kind: int, header: list[Any], frame: bytes) -> None:
        if kind == Kind.CHALLENGE and not self._challenge and self._transport is not None:
            self._key = self._owner.transport.keyring.key(header[1]) if len(header) >= 2 else None
            if self._key is None:
                self._refuse(OTHER_SECRET)
                return
            self._challenge = frame
            self._transport.write(pack(Kind.PROOF, [handshake.dialler_proof(self._key, self._hello, frame)]))
        elif kind == Kind.REFUSED:
            self.is_below = header[1:2] == [BELOW]
            self._refuse(f"it refuses this node: {header[0] if header else 'no reason'!s:.500}")
        else:
            raise WireError("a frame out of turn")

    def _on_welcome(self, header: list[Any], rest: bytes) -> None:
        if len(header) < 5:
            raise WireError("a welcome that names no group")
        peers, who = self._owner.transport, header[:4]
        if self._key is not None:
            expected = handshake.acceptor_proof(self._key, self._hello, self._challenge, who)
            if not handshake.fits(header[4], expected):
                self._refuse(OTHER_SECRET)
                return
        elif peers.keyring.demanded:
            self._refuse("it does not prove the secret of the cluster")
            return
        cluster, node, node_uuid, group = who
        if self._names is not None and self._names[1] != node_uuid:
            self._refuse("the certificate there is another node's")
            return
        # The same checks apply as to a node that dials this one: a node of this group, or of another cluster, is
        # refused.
        least = min(FIRST_GROUP, self._target.group)
        why = peers.roster.judge_group([cluster, group, node, node_uuid, NOBODY], least)
        if why is not None or group != self._target.group or self._target.node not in (NOBODY, node):
            self._end(f"node {node!s:.20} of group {group!s:.20} answers there")
            return
        assert self._transport is not None
        link = GroupLink(self._owner, self._transport, group, NodeId(node), key_id(self._key) if self._key else b"")
        self._transport.set_protocol(link)
        self.done.set_result(link)
        self._owner.on_open(link)
        if rest:
            link.data_received(rest)

    def _refuse(self, why: str) -> None:
        self.is_refused = True
        self._end(why)

    def _end(self, why: str) -> None:
        if not self.done.done():
            self.done.set_result(why)
            if self._transport is not None:
                self._transport.abort()


class _WantedLink:
    """The state of one target: the attempts to dial it, or its open link."""

    def __init__(self, target: LinkTarget) -> None:
        self.target = target
        self.attempts = 0
        self.delay_s = REDIAL_MIN_S
        self.due_s = 0.0
        """The time of the loop from which the target may be dialled again."""
        self.is_plain = False
        """True if the next attempt uses plain text: TLS has just failed with this target (`Dialling.dial`)."""
        self.task: asyncio.Task[None] | None = None
        self.link: GroupLink | None = None


class GroupLinks:
    """The connections of one node to nodes of other groups. Event loop only."""

    def __init__(
        self,
        transport: PeerTransport,
        leader_of: Callable[[int], int],
        *,
        accepted_max: int = ACCEPTED_MAX,
        quiet_looks: int = QUIET_LOOKS,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        """`leader_of` returns the node that leads a group as far as this node knows, 0 if it knows none. `handshake_s`:
        the seconds within which a dialled node must answer."""
        self.transport = transport
        self._accepted_max, self._quiet_looks, self._handshake_s = accepted_max, quiet_looks, handshake_s
        self.opened: Signal[[GroupLink]] = Signal()
        """Emitted with each connection whose handshake is complete, dialled or accepted."""
        self._leader_of = leader_of
        self._handlers: dict[int, OnGroupFrame] = {}
        self._wanted: dict[tuple[int, NodeId], _WantedLink] = {}
        self._dialled: dict[GroupLink, None] = {}
        self._accepted: dict[tuple[int, NodeId], GroupLink] = {}
        self._random = random.Random(transport.incarnation)
        self._told = Seldom(logger)
        self._closed = False
        self.refused: dict[int, str] = {}
        """Group -> the reason why a node of that group last refused this one. A group is removed when one of its nodes
        accepts this one or dials it."""
        transport.serve_groups(self)

    def takes(self, kind: Kind, handler: OnGroupFrame) -> None:
        """Registers `handler` for the frames of that kind. A frame of a kind without a handler ends the connection.
        Raises ValueError for a kind of another channel, or one that has a handler."""
        if kind not in GROUP_KINDS or kind in self._handlers:
            raise ValueError(f"kind {kind} is of another channel, or is taken")
        self._handlers[kind] = handler

    def all(self) -> list[GroupLink]:
        """Returns the open connections, dialled ones first."""
        return [*self._dialled, *self._accepted.values()]

    def to(self, group: int) -> list[GroupLink]:
        """Returns the open connections to members of that group."""
        return [link for link in self.all() if link.group == group]

    def reaches(self, group: int, node: NodeId) -> bool:
        """Returns True if the target with that group and node is connected."""
        state = self._wanted.get((group, node))
        return state is not None and state.link is not None

    def leader_link(self, group: int) -> GroupLink | None:
        """Returns a connection to the leader of that group; None if the leader is unknown or not connected."""
        leader = self._leader_of(group)
        return next((link for link in self.to(group) if link.node == leader), None)

    def send(self, group: int, kind: Kind, header: list[Any], payload: bytes = b"") -> bool:
        """Sends a frame to the leader of that group, else to any member with a connection. Returns False if none can be
        reached now."""
        leader = self.leader_link(group)
        links = [leader] if leader is not None else []
        return any(link.send(kind, header, payload) for link in [*links, *self.to(group)])

    def tend(self, targets: Iterable[LinkTarget]) -> None:
        """Closes silent connections and connections to former targets, and dials the targets that have no connection.
        Called once a second."""
        for link in self.all():
            link.quiet += 1
            if link.quiet > self._quiet_looks:
                logger.warning("%s is silent, connection closed", node_object(link.group, link.node))
                link.abort()
        wanted = {(target.group, target.node): target for target in targets}
        for key in self._wanted.keys() - wanted.keys():
            self._leave(self._wanted.pop(key))
        loop = asyncio.get_running_loop()
        for key, target in wanted.items():
            state = self._wanted.setdefault(key, _WantedLink(target))
            state.target = target
            if state.link is None and state.task is None and target.node != NOBODY:
                self._take_over(state)
            if state.link is None and state.task is None and loop.time() >= state.due_s and not self._closed:
                name = f"dial-group-{target.group}-{target.node}"
                state.task = loop.create_task(self._dial(state), name=name)

    def _take_over(self, state: _WantedLink) -> None:
        """Gives the target `state`, which names a node, the connection of the target "any member" of its group, if that
        connection leads to this node. A second connection to the node would soon end the first, and requests in flight
        on it would be lost."""
        target, now_s = state.target, asyncio.get_running_loop().time()
        for other in self._wanted.values():
            link = other.link
            if other.target.node == NOBODY and link is not None and (link.group, link.node) == target[:2]:
                state.link, other.link, other.due_s = link, None, now_s + REDIAL_MAX_S
                return

    def _leave(self, state: _WantedLink) -> None:
        if state.task is not None:
            state.task.cancel()
        if state.link is not None:
            state.link.abort()

    async def _dial(self, state: _WantedLink) -> None:
        target, made = state.target, list[_Dial]()
        host, port = target.addresses[state.attempts % len(target.addresses)]

        def make() -> _Dial:
            made.append(_Dial(self, target))
            return made[-1]

        try:
            async with asyncio.timeout(self._handshake_s):
                dial = await self.transport.dialling.dial(make, host, port, plain=state.is_plain)
                found = await dial.done
        except (OSError, ValueError) as error:  # a malformed host name raises ValueError
            found = str(error) or "no answer"
        finally:
            state.task = None
            for each in made:
                each.abort()
        if isinstance(found, GroupLink):
            state.delay_s, state.is_plain = REDIAL_MIN_S, False
            if self._wanted.get((target.group, target.node)) is not state:
                found.abort()  # the target was dropped in the turn of the loop in which the link opened
            elif found in self._dialled:
                state.link = found
            return
        state.attempts += 1
        state.is_plain = not state.is_plain
        is_refused = any(each.is_refused for each in made)
        wait_s = REDIAL_REFUSED_S if is_refused and state.attempts % len(target.addresses) == 0 else state.delay_s
        if is_refused:
            self.refused[target.group] = str(found)
        state.delay_s = min(REDIAL_MAX_S, state.delay_s * 2)
        if any(each.is_below for each in made):
            wait_s = state.delay_s = REDIAL_BELOW_S
        state.due_s = asyncio.get_running_loop().time() + wait_s * self._random.uniform(0.75, 1.25)
        told = self._told.warn if is_refused else logger.debug
        told(f"{target.what} is not reached at {host}:{port}", found)

    async def close(self) -> None:
        """Closes every connection."""
        self._closed = True
        tasks = [state.task for state in self._wanted.values() if state.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in self.all():
            link.abort()

    # --- called by the transport and the protocols -------------------------------------------------------------------

    def why_full(self, group: int, node: NodeId) -> str:
        """Returns the reason why no connection of that node is accepted now; "" if one is."""
        if self._closed:
            return "this node stops"
        is_new = (group, node) not in self._accepted
        return f"{self._accepted_max} nodes of other groups are connected" if is_new and self._is_full() else ""

    def _is_full(self) -> bool:
        return len(self._accepted) >= self._accepted_max

    def accept(self, transport: asyncio.Transport, group: int, node: NodeId, key_id: bytes) -> GroupLink:
        """Makes a link of an accepted connection. Closes an older connection from the same node: either it broke, or
        that node now dials another address."""
        link = GroupLink(self, transport, group, node, key_id)
        before = self._accepted.pop((group, node), None)
        if before is not None:
            before.abort()
        self._accepted[group, node] = link
        self.refused.pop(group, None)
        logger.info("%s has connected", node_object(group, node))
        self.opened(link)
        return link

    def on_open(self, link: GroupLink) -> None:
        """Registers the link, because a handshake that this node began has succeeded."""
        self._dialled[link] = None
        self.refused.pop(link.group, None)
        logger.info("connected to %s", node_object(link.group, link.node))
        self.opened(link)

    def on_lost(self, link: GroupLink) -> None:
        """Forgets the link, whose connection has closed; a target is dialled again after REDIAL_MIN_S."""
        self._dialled.pop(link, None)
        if self._accepted.get((link.group, link.node)) is link:
            del self._accepted[link.group, link.node]
        for state in self._wanted.values():
            if state.link is link:
                state.link = None
                state.due_s = asyncio.get_running_loop().time() + REDIAL_MIN_S

    def on_frame(self, link: GroupLink, kind: int, header: list[Any], payload: bytes) -> None:
        """Passes a frame to the handler of its kind. Raises WireError if the kind has no handler, or if the sender may
        not send it."""
        if kind not in REGISTRY_KINDS and link.group == REGISTRY_GROUP:
            raise WireError(f"a frame of kind {kind} of a process of the registry, which says {sorted(REGISTRY_KINDS)}")
        if kind == Kind.REGISTRY_STATE and link.group != REGISTRY_GROUP:
            raise WireError("a node that speaks as the registry")
        handler = self._handlers.get(kind)
        if handler is None:
            raise WireError(f"a frame of kind {kind} on the channel {GROUP}")
        handler(link, header, payload)

    def use(self, keyring: Keyring) -> None:
        """Ends connections that have proven none of the keys, if the keyring demands one; they are dialled again."""
        for link in self.all():
            if keyring.demanded and link.key_id not in keyring.ids:
                link.abort()

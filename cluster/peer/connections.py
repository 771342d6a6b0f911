"""Implements one TCP connection between two nodes: a Link dials and sends, an Inlet accepts and receives.

First comes the handshake (`handshake`), whose frames are at most HELLO_MAX bytes long and which must end within
HANDSHAKE_S. Until it is finished, no other data of the peer is processed, kept or answered. A node without a secret
sends its identity and continues at once.
"""

from __future__ import annotations

import asyncio
import logging
import socket as socket_module
import ssl
from typing import Any, Protocol, cast

from cluster.peer import handshake
from cluster.peer.allowed_peers import SECRET, Refusal, Roster
from cluster.peer.keyring import Keyring
from cluster.peer.wire import CONTROL_FRAME_MAX, FRAME_MAX, pack, unpack
from cluster.runtime.framing import FrameBuffer, FrameTooLargeError, first_frame
from cluster.runtime.key_file import key_id
from cluster.runtime.peer_frames import Kind, WireError
from cluster.runtime.tls.port_security import TLS_BEGINS, why_failed
from cluster.runtime.turns.stalled_loop import SilenceTimer
from raftlog.types import NodeId
from raftlog.work import CALL_UNITS, FRAME_UNITS, METER

_SCHEME = "raftmq://"


class Certified(Protocol):
    """A connection that may have a TLS certificate."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Returns the transport's value of that name, as asyncio's transports do; `default` if it has none. Used for
        "peercert"."""


def certified(transport: Certified) -> tuple[str, str] | None:
    """Returns (cluster uuid, node uuid) from the peer's certificate; ("", "") if the certificate names no node; None
    for plain text."""
    told = transport.get_extra_info("peercert")
    if told is None:
        return None
    for kind, name in told.get("subjectAltName", ()):
        if kind == "URI" and name.startswith(_SCHEME):
            cluster, _, node = name.removeprefix(_SCHEME).partition("/")
            return cluster, node
    return "", ""


def why_not_certified(transport: Certified, cluster: object, node_uuid: object) -> str:
    """Returns the reason why the certificate is not that of the node `node_uuid` of the cluster `cluster`; "" if it is.
    Returns "" for a connection in plain text too."""
    found = certified(transport)
    if found is None or found == (cluster, node_uuid):
        return ""
    if found == ("", ""):
        return "its certificate names no node: raftmq cert node makes one that does"
    return (
        f"its certificate is of node {found[1]:.36} in cluster {found[0]:.36}: raftmq cert node makes one for each node"
    )


logger = logging.getLogger(__name__)

CONTROL, BULK = "control", "bulk"
PROBE = "probe"
"""Name of the channel of connections that only ask which node listens here (`probe`). This node answers such a
connection and closes it."""
GROUP = "group"
"""Name of the channel between nodes of different groups (`group_links`)."""
HANDSHAKE_S = 5.0
UNANSWERED_S = 0.5
"""Seconds. A peer that does not ask for a proof within this time has no secret yet, or runs a release without
secrets."""
UNACKNOWLEDGED_MS = 5000
"""Milliseconds. A connection whose bytes stay unacknowledged this long is closed; the system's own timeout is longer
than most partitions."""
_USER_TIMEOUT: int | None = getattr(socket_module, "TCP_USER_TIMEOUT", None)
FRAMES_PER_TURN = 32
"""The most frames that one turn of the loop handles of a connection. The frames that arrived while a node stood still
are read at once, and may be thousands of small ones (simulator, seed 953500116). A forwarded send takes some 50 µs, and
an entry waits for several turns before it is acknowledged, so turns must be short."""
HELLO_MAX = 1024
"""The longest frame of a handshake, in bytes."""
OTHER_SECRET = "the two nodes do not have the same secret; the wrong one is on the node whose links all say so"
"""The text for a proof that does not fit. Neither side can know which of the two secrets is wrong, and both report the
same. If all links of one node report it, that node has the wrong secret."""
_UNPROVEN = "this cluster lets in only nodes that prove its secret: give this node the secret file (peer.secret_file)"
_WRONG_PROOF = "the proof is wrong: this node has another secret, or something between the nodes changes what they say"


class Owner(Protocol):
    """The owner of these connections (`cluster.peer.transport`)."""

    roster: Roster
    keyring: Keyring
    links: dict[tuple[NodeId, str], Link]
    dialled: dict[Link, None]
    inlets: dict[Inlet, None]
    challengers: set[NodeId]
    dial_errors: dict[NodeId, str]

    def introduction(self, peer: NodeId, channel: str) -> list[Any]:
        """Returns the header of this node's HELLO (wire.Kind.HELLO) to that peer on that channel."""

    def challenge(self, key: bytes) -> list[Any]:
        """Returns the header of a CHALLENGE (wire.Kind.CHALLENGE), which asks a peer to prove that it has this key."""

    def who(self) -> list[Any]:
        """Returns this node's identity: [cluster uuid, node id, node uuid]. Only peers that have proven theirs receive
        it."""

    def demands_proof_of(self, peer: NodeId) -> bool:
        """Returns True if this node sends nothing before the peer has proven that it has the secret."""

    def note_refused(self, remote: str, reason: str) -> None:
        """Called when a connection from the address `remote` is refused."""

    def on_link_open(self, link: Link) -> None:
        """Called when a handshake that this node began is finished and the peer has accepted this node."""

    def on_refused(self, peer: NodeId, header: list[Any], *, proven: bool) -> None:
        """Called when a peer refuses this node. `header` is that of its REFUSED frame: [reason, kind, index]."""

    def on_closed(self, peer: NodeId, channel: str) -> None:
        """Called when the connection to the peer that was used for a channel has closed."""

    def judge_level(self, header: list[Any], *, proven: bool) -> Refusal | None:
        """Returns the reason to refuse the sender of this HELLO, if the cluster has a level that one of the two nodes
        does not know; else None."""

    def judge_group(self, header: list[Any]) -> Refusal | None:
        """Returns the reason to refuse the sender of this HELLO on the channel `group`; else None."""

    def open_group(self, inlet: Inlet, header: list[Any]) -> asyncio.Protocol:
        """Called when a node of another group was accepted. Returns the protocol that handles its connection from now
        on."""

    def on_inlet(self, inlet: Inlet) -> None:
        """Called when a new connection was accepted."""

    def on_hello(self, peer: NodeId, channel: str, header: list[Any]) -> None:
        """Called when the peer's HELLO was accepted."""

    def on_inlet_open(self, inlet: Inlet) -> None:
        """Called when the peer's handshake is complete."""

    def on_frame(self, peer: NodeId, kind: int, header: list[Any], payload: bytes) -> None:
        """Called for each frame of an accepted peer. May raise WireError, which closes the connection."""

    def on_inlet_closed(self, inlet: Inlet) -> None:
        """Called when an accepted connection of a peer has closed."""


class Link(asyncio.Protocol):
    """One connection that this node dialled. It only sends; it receives only the handshake and perhaps a refusal."""

    def __init__(
        self, owner: Owner, peer: NodeId, channel: str, *, renews: bool = False, handshake_s: float = HANDSHAKE_S
    ) -> None:
        """`renews`: True if this link is to replace an open one, but only if the peer proves its identity.
        `handshake_s`: the seconds within which the peer must answer."""
        self.peer = peer
        self.channel = channel
        loop = asyncio.get_running_loop()
        self.lost = loop.create_future()
        self.opened = loop.create_future()
        self.key_id = b""
        """Id of the key that both sides have proven; b"" if none."""
        self.is_open = False
        """True once the handshake is finished, so the peer reads what is sent on this link."""
        self._outdated = False
        self._owner = owner
        self._renews, self._handshake_s = renews, handshake_s
        self._buffer = FrameBuffer(HELLO_MAX)
        self._hello = self._challenge = b""
        self._key: bytes | None = None
        self._timer: SilenceTimer | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends this node's HELLO."""
        # uvloop's transport is no subclass of asyncio.Transport.
        self.transport = transport = cast(asyncio.Transport, transport)
        socket = transport.get_extra_info("socket")
        if socket is not None and _USER_TIMEOUT is not None:
            socket.setsockopt(socket_module.IPPROTO_TCP, _USER_TIMEOUT, UNACKNOWLEDGED_MS)
        owner = self._owner
        owner.dialled[self] = None
        names = certified(transport)
        wrong = owner.roster.is_not(self.peer, [names[0], self.peer, names[1]]) if names is not None else ""
        if wrong:
            owner.dial_errors[self.peer] = f"the certificate there is another node's: {wrong}"
            transport.abort()
            return
        frame = pack(Kind.HELLO, owner.introduction(self.peer, self.channel))
        self._hello = frame[4:]
        transport.write(frame)
        if not owner.keyring.keys:
            self._open()
            return
        waits_s = self._handshake_s if owner.demands_proof_of(self.peer) else UNANSWERED_S
        self._timer = SilenceTimer(asyncio.get_running_loop(), waits_s, self._unanswered)

    def _unanswered(self) -> None:
        if self._owner.demands_proof_of(self.peer) or self._renews:
            self._owner.dial_errors[self.peer] = OTHER_SECRET
            self.abort()
        elif not self.is_open:
            self._open()

    def _open(self) -> None:
        self.is_open = True
        if self._timer is not None:
            self._timer.cancel()
        if not self.opened.done():
            self.opened.set_result(None)
        self._owner.on_link_open(self)

    def data_received(self, data: bytes) -> None:
        """Handles frames of the handshake, or a refusal; no other frames arrive here."""
        try:
            buffer, frames = self._buffer.feed(data)
            for start, stop in frames:
                kind, header, _ = unpack(buffer, start, stop)
                if kind == Kind.CHALLENGE:
                    self._on_challenge(header, buffer[start:stop])
                elif kind == Kind.WELCOME:
                    self._on_welcome(header)
                elif kind == Kind.REFUSED:
                    self._owner.on_refused(self.peer, header, proven=bool(self.key_id))
        except (WireError, FrameTooLargeError) as error:
            logger.warning("%s answered with a bad frame: %s", self._owner.roster.object_of(self.peer), error)
            self.abort()

    def _on_challenge(self, header: list[Any], frame: bytes) -> None:
        if self._challenge or len(header) < 2 or type(header[0]) is not bytes:
            raise WireError("a challenge out of turn")
        self._owner.challengers.add(self.peer)
        self._key = self._owner.keyring.key(header[1])
        if self._key is None:
            self._owner.dial_errors[self.peer] = OTHER_SECRET
        if self.is_open or self._key is None:
            raise WireError("a challenge that comes too late" if self.is_open else "a challenge for another key")
        self._challenge = frame
        assert self.transport is not None
        proof = handshake.dialler_proof(self._key, self._hello, frame)
        self.transport.write(pack(Kind.PROOF, [proof]))
        if self._timer is not None:
            self._timer.cancel()
        self._timer = SilenceTimer(asyncio.get_running_loop(), self._handshake_s, self.abort)

    def _on_welcome(self, header: list[Any]) -> None:
        if self._key is None or self.key_id or len(header) < 4:
            raise WireError("a welcome out of turn")
        who = header[:3]
        expected = handshake.acceptor_proof(self._key, self._hello, self._challenge, who)
        if not handshake.fits(header[3], expected):
            self._owner.dial_errors[self.peer] = OTHER_SECRET
            raise WireError("its proof is wrong: the two nodes have different secrets")
        self.key_id = key_id(self._key)
        wrong = self._owner.roster.is_not(self.peer, who)
        if wrong:
            self._owner.dial_errors[self.peer] = wrong
            logger.warning("%s: %s", self._owner.roster.object_of(self.peer), wrong)
            self.abort()
            return
        self._open()

    def outdate(self) -> None:
        """Marks this link as one to be replaced by a link with newer certificates."""
        self._outdated = True

    def is_outdated(self, newest: bytes) -> bool:
        """Returns True if another link should replace this one, because other certificates are in use or there is a
        newer key."""
        return self._outdated or (bool(newest) and self.key_id != newest)

    def abort(self) -> None:
        """Closes the connection; the transport's dialler connects again."""
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Reports the end of the link: the transport's dialler connects again. The driver is notified unless another
        connection has replaced this one."""
        # With TLS 1.3, the peer checks this node's certificate after this side has finished its handshake.
        if isinstance(exc, ssl.SSLError) and not self.is_open:
            self._owner.dial_errors[self.peer] = f"TLS: {why_failed(exc)}"
        if self._timer is not None:
            self._timer.cancel()
        self._owner.dialled.pop(self, None)
        was_used = self._owner.links.get((self.peer, self.channel)) is self
        if was_used:
            del self._owner.links[self.peer, self.channel]
        if not self.lost.done():
            self.lost.set_result(None)
        if was_used:
            self._owner.on_closed(self.peer, self.channel)


class Inlet(asyncio.Protocol):
    """One accepted connection: checks the peer's handshake, and then receives its messages."""

    def __init__(self, owner: Owner, handshake_s: float = HANDSHAKE_S) -> None:
        """`handshake_s`: the seconds within which the peer must complete its handshake."""
        self._owner, self._handshake_s = owner, handshake_s
        self._buffer = FrameBuffer(FRAME_MAX)
        self._early = b""
        """The bytes of an incomplete frame of the handshake."""
        self._header: list[Any] = []
        self._hello = self._challenge = b""
        self._key: bytes | None = None
        """The key that the peer has named and must now prove; None before its HELLO, or if it names no key that this
        node has."""
        self.peer: NodeId | None = None
        """Id of the peer once its handshake was accepted; None before."""
        self.key_id = b""
        """Id of the key that the peer has proven; b"" if none."""
        self.introduction: list[Any] = []
        """The header of the peer's HELLO once it was accepted; empty before."""
        self.incarnation: object = 0
        self._refused = False
        self._heir: asyncio.Protocol | None = None
        """The protocol that handles the connection if the peer is a node of another group; else None."""
        self.channel = ""
        self.reads = 0
        """The number of reads that returned data."""
        self.ping_interval_ms = 0
        """The interval of the peer's PINGs in milliseconds, as the peer reports it; 0 before the first PING."""
        self._timer: SilenceTimer | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts the time limit of the handshake, and reports the connection to the owner, which may close it if too
        many handshakes are unfinished."""
        # uvloop's transport is no subclass of asyncio.Transport.
        self.transport = transport = cast(asyncio.Transport, transport)
        self._timer = SilenceTimer(asyncio.get_running_loop(), self._handshake_s, self._no_hello)
        self._owner.on_inlet(self)

    def expect_pings(self, interval_ms: int) -> None:
        """Records the interval of the peer's PINGs in milliseconds."""
        self.ping_interval_ms = interval_ms

    @property
    def remote(self) -> str:
        """The address from which the peer has connected."""
        name = self.transport.get_extra_info("peername") if self.transport is not None else None
        return str(name[0]) if name else ""

    def _no_hello(self) -> None:
        if self.peer is None:
            self.abort()

    def abort(self) -> None:
        """Closes the connection."""
        if self.transport is not None:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Handles every complete frame in the received bytes, and keeps an incomplete one."""
        self.reads += 1
        try:
            peer = self.peer
            if peer is None:
                data = self._take_handshake(data)
                peer = self.peer
                if self._heir is not None and data:
                    self._heir.data_received(data)
            if peer is None or self._refused:
                return
            buffer, frames = self._buffer.feed(data)
            METER.units += CALL_UNITS + (len(data) >> 10)
            if len(frames) > FRAMES_PER_TURN:
                self._handle(peer, buffer, frames, 0)
                return
            METER.units += FRAME_UNITS * len(frames)
            for start, stop in frames:  # does what _handle does, without a call: most reads have one frame or two
                kind, header, payload = unpack(buffer, start, stop)
                self._owner.on_frame(peer, kind, header, payload)
        except (WireError, FrameTooLargeError) as error:
            if self.peer is None and data.startswith(TLS_BEGINS):
                self._owner.note_refused(self.remote, "it speaks TLS, and this node takes plain text (peer.tls)")
                self.abort()
                return
            self._on_bad(error)

    def _handle(self, peer: NodeId, buffer: bytes, frames: list[tuple[int, int]], at: int) -> None:
        """Handles the many frames of a read from index `at` on: FRAMES_PER_TURN in this turn of the loop, the others in
        the next ones, before anything more is read."""
        stops = min(len(frames), at + FRAMES_PER_TURN)
        METER.units += FRAME_UNITS * (stops - at)
        for start, stop in frames[at:stops]:
            kind, header, payload = unpack(buffer, start, stop)
            self._owner.on_frame(peer, kind, header, payload)
        if stops < len(frames):
            assert self.transport is not None
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on, peer, buffer, frames, stops)
        elif self.transport is not None:
            self.transport.resume_reading()

    def _go_on(self, peer: NodeId, buffer: bytes, frames: list[tuple[int, int]], at: int) -> None:
        if self.transport is None or self.transport.is_closing():
            return  # these frames are lost with the connection, as if they had not arrived
        try:
            self._handle(peer, buffer, frames, at)
        except WireError as error:
            self._on_bad(error)

    def _on_bad(self, error: Exception) -> None:
        logger.warning("a bad frame on the peer port from %s, connection closed: %s", self.remote, error)
        self.abort()

    def _take_handshake(self, data: bytes) -> bytes:
        """Handles the handshake's frames as they become complete. Returns the bytes that follow the handshake; b""
        while it is not over."""
        early = self._early + data
        while not self._is_over and (stop := first_frame(early, HELLO_MAX)):
            kind, header, _ = unpack(early, 4, stop)
            self._on_handshake(kind, header, early[4:stop])
            early = early[stop:]
        self._early = b"" if self._is_over else early
        return early if self._is_over else b""

    @property
    def _is_over(self) -> bool:
        """True once the handshake has ended: the peer was accepted or refused."""
        return self.peer is not None or self._refused or self._heir is not None

    def _on_handshake(self, kind: int, header: list[Any], frame: bytes) -> None:
        if self._key is not None:
            if kind != Kind.PROOF or not header:
                raise WireError("the second frame is no proof")
            self._on_proof(header[0])
            return
        if kind != Kind.HELLO or len(header) < 6:
            raise WireError("the first frame is no handshake")
        assert self.transport is not None
        wrong = why_not_certified(self.transport, header[0], header[3])
        if wrong:
            self._owner.note_refused(self.remote, wrong)
            self.refuse(Refusal(wrong))
            return
        keyring = self._owner.keyring
        self._key = keyring.pick(handshake.offered(header))
        if self._key is not None:
            self._header, self._hello = header, frame
            self._say(Kind.CHALLENGE, self._owner.challenge(self._key))
        elif keyring.demanded:
            self._owner.note_refused(self.remote, _UNPROVEN)
            self.refuse(Refusal(_UNPROVEN, SECRET))
        else:
            self._admit(header)

    def _on_proof(self, proof: object) -> None:
        assert self._key is not None
        if not handshake.fits(proof, handshake.dialler_proof(self._key, self._hello, self._challenge)):
            self._owner.note_refused(self.remote, _WRONG_PROOF)
            self.refuse(Refusal(_WRONG_PROOF, SECRET))
            return
        if self._header[5] == GROUP:
            self._admit_group(self._header)
            return
        who = self._owner.who()
        self._say(Kind.WELCOME, [*who, handshake.acceptor_proof(self._key, self._hello, self._challenge, who)])
        self.key_id = key_id(self._key)
        self._admit(self._header)

    def _say(self, kind: Kind, header: list[Any]) -> None:
        assert self.transport is not None
        frame = pack(kind, header)
        if kind == Kind.CHALLENGE:
            self._challenge = frame[4:]
        self.transport.write(frame)

    def _admit_group(self, header: list[Any]) -> None:
        """Accepts the node of another group that sent this HELLO, or refuses it. An accepted node never becomes a peer:
        the protocol from `Owner.open_group` handles its connection from now on, so its frames never reach Raft."""
        refusal = self._owner.judge_group(header)
        if refusal is not None:
            self._owner.note_refused(self.remote, refusal.reason)
            self.refuse(refusal)
            return
        who, proof = [*self._owner.who(), self._owner.roster.membership.group_id], b""
        if self._key is not None:
            proof = handshake.acceptor_proof(self._key, self._hello, self._challenge, who)
            self.key_id = key_id(self._key)
        self._say(Kind.WELCOME, [*who, proof])
        assert self.transport is not None
        assert self._timer is not None
        self._timer.cancel()
        self._owner.inlets.pop(self, None)
        self._heir = self._owner.open_group(self, header)
        self.transport.set_protocol(self._heir)

    def _admit(self, header: list[Any]) -> None:
        """Accepts the node that sent this HELLO, or refuses it."""
        if header[5] == GROUP:
            self._admit_group(header)
            return
        refusal = self._owner.roster.judge(header, (CONTROL, BULK, PROBE), itself=header[5] == PROBE)
        if refusal is None and header[5] != PROBE:
            refusal = self._owner.judge_level(header, proven=bool(self.key_id))
        if refusal is not None:
            self._owner.note_refused(self.remote, refusal.reason)
            self.refuse(refusal)
            return
        if header[5] == PROBE:
            self._end_probe()
            return
        self.peer = NodeId(header[2])
        self.introduction = header
        self.channel = header[5]
        self.incarnation = header[6] if len(header) > 6 else 0
        if self.channel == CONTROL:
            self._buffer = FrameBuffer(CONTROL_FRAME_MAX)
        self._owner.on_hello(self.peer, self.channel, header)
        self._owner.on_inlet_open(self)

    def _end_probe(self) -> None:
        """Answers a probe with this node's identity, without a proof if the two nodes share no key, and closes the
        connection."""
        self._refused = True
        if self._key is None:
            self._say(Kind.WELCOME, [*self._owner.who(), b""])
        assert self.transport is not None
        self.transport.close()

    def refuse(self, refusal: Refusal) -> None:
        """Sends the reason to the peer and ignores everything that the peer sends afterwards."""
        self._refused = True
        if self.transport is not None:
            self.transport.write(pack(Kind.REFUSED, [refusal.reason[:500], refusal.kind, refusal.since]))
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Reports the end of the connection to the owner, because a peer that closes its control connection may be
        dead."""
        self._owner.inlets.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        if self.peer is not None:
            self._owner.on_inlet_closed(self)

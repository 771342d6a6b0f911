"""The handshake of a guest on a peer port: a node that knows the cluster's secret and may therefore speak, though it is
no member."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import uuid
from typing import Any

from cluster.peer import handshake
from cluster.peer.connections import CONTROL
from cluster.peer.wire import pack, unpack
from cluster.runtime.key_file import KeyFileError, key_id
from cluster.runtime.peer_frames import Kind, WireError
from jepsen_like.client_kit.frames import HOST
from jepsen_like.fuzz.shot_connections import ShotLine, dial

ME = 901
"""The base of the guests' ids. Each node gets a guest of its own, whose id is ME plus the node's id."""
NONCE = bytes(handshake.NONCE_BYTES)
_LET_IN_S = 5.0


class PeerLine(ShotLine):
    """A connection between nodes, which collects the frames that arrive."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces = bytearray()
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()

    def data_received(self, data: bytes) -> None:
        """Collects frames, without their lengths."""
        self._pieces += data
        while len(self._pieces) >= 4 and len(self._pieces) >= (stop := 4 + int.from_bytes(self._pieces[:4], "big")):
            self.frames.put_nowait(bytes(self._pieces[4:stop]))
            del self._pieces[:stop]

    def connection_lost(self, exc: Exception | None) -> None:
        """Adds an empty frame, which marks the end."""
        self.frames.put_nowait(b"")
        super().connection_lost(exc)


class Greeting:
    """Introduces a guest to one node. The address that it names is a port of the guest, which accepts connections and
    sends nothing."""

    def __init__(self, cluster: str, to: int, key: bytes | None) -> None:
        """`cluster`: the cluster's uuid. `key`: the newest key of its secret; None if it has none."""
        self.me = ME + to
        self._to, self._key = to, key
        self.cluster = cluster
        self.uuid = str(uuid.UUID(int=self.me))
        self._server: asyncio.Server | None = None
        self._port = 0

    async def start(self) -> None:
        """Listens at the address that the guest names."""
        self._server = await asyncio.start_server(self._heard, HOST, 0)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _heard(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while await reader.read(1 << 16):
                pass
        writer.transport.abort()

    def close(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.close()

    @property
    def hello(self) -> list[Any]:
        """The fields of the guest's HELLO frame."""
        plain = [self.cluster, 1, self.me, self.uuid, self._to, CONTROL, 5, HOST, self._port]
        return plain if self._key is None else handshake.with_keys(plain, NONCE, [key_id(self._key)])

    async def dial(self, port: int, context: ssl.SSLContext | None = None) -> ShotLine | None:
        """Returns a connection on which the guest may speak, over TLS with a context; None if it was refused. Raises
        OSError."""
        line = await dial(port, PeerLine, context)
        assert isinstance(line, PeerLine)
        try:
            if await asyncio.wait_for(self._shake(line), _LET_IN_S):
                return line
        except (TimeoutError, WireError, KeyFileError):
            pass
        line.abort()
        return None

    async def _shake(self, line: PeerLine) -> bool:
        assert line.transport is not None
        frame = pack(Kind.HELLO, self.hello)
        line.transport.write(frame)
        if self._key is None:
            return True
        challenge = await line.frames.get()
        if not challenge or unpack(challenge, 0, len(challenge))[0] != Kind.CHALLENGE:
            return False
        line.transport.write(pack(Kind.PROOF, [handshake.dialler_proof(self._key, frame[4:], challenge)]))
        welcome = await line.frames.get()
        return bool(welcome) and unpack(welcome, 0, len(welcome))[0] == Kind.WELCOME

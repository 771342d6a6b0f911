"""Almost valid TLS, before and after the handshake, to all ports of a node; and honest connections in between.

A shot says what to do and the seed of everything random in it, so that it can be repeated. The bytes differ each time,
because TLS requires it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cluster.config.local_layout import NodeRecord
from jepsen_like.client_kit.frames import HOST, request
from jepsen_like.fuzz.guard import Ways
from jepsen_like.fuzz.shot import Port, Shot
from jepsen_like.fuzz.shot_connections import ANSWER_S, ShotDefect
from raftmq.local.tls.certificates import new_ca, new_node, read_ca, write_pair

INSIDE = "TLS inside"
HANDLERS = ("TLS hello", "TLS record", "TLS end", INSIDE)
CLOSE_S = 0.2
"""Seconds to wait for a node's answer to bytes that were not TLS."""
HONEST_TRIES = 3
"""Connections in a row that a node must drop after their handshakes, until this counts as a defect."""
_PORTS = ("broker", "http", "peer")
_ASKS = {
    "broker": request(106, {}, opaque=1)[1],
    "http": b"GET /v1/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "peer": b"\x00\x00\x00\x04\x00\x0a\x00\x00",
}
_UUID = "00000000-0000-4000-8000-00000000000{}"


def make_files(folder: Path) -> dict[str, str]:
    """Makes a CA and a certificate for all nodes; returns the environment of a node that accepts TLS and plain text.
    The certificate names no node of the cluster, so links between nodes use plain text.
    """
    ca = new_ca()
    write_pair(ca, folder, "ca")
    write_pair(new_node(ca, _UUID.format(1), _UUID.format(2), [HOST, "localhost"]), folder, "node")
    files = {"CERT_FILE": "node.crt", "KEY_FILE": "node.key", "CA_FILE": "ca.crt"}
    paths = {f"RAFTMQ_TLS__{key}": str(folder / name) for key, name in files.items()}
    return {"RAFTMQ_TLS__MODE": "permissive", **paths}


def context_of(folder: Path, stem: str = "node") -> ssl.SSLContext:
    """Returns the SSL context of a client that trusts the CA in `folder` and presents the certificate `stem` from
    there. The peer port asks clients for a certificate.
    """
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.load_cert_chain(str(folder / f"{stem}.crt"), str(folder / f"{stem}.key"))
    return context


class Pki(NamedTuple):
    """The files of `make_files`, as a client of the nodes uses them."""

    folder: Path
    context: ssl.SSLContext
    """The SSL context of a client that presents a certificate."""

    def guest(self, cluster: str, uuid: str) -> ssl.SSLContext:
        """Makes a certificate for a guest on the peer ports; returns its SSL context."""
        write_pair(new_node(read_ca(self.folder), cluster, uuid, [HOST]), self.folder, uuid, replace=True)
        return context_of(self.folder, uuid)


class Plans:
    """Draws the actions of TLS shots."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def draw(self, handler: str = "") -> Shot:
        """Draws a shot of this handler; if it is empty, of any in HANDLERS."""
        rng = self._rng
        plan = {"port": rng.choice(_PORTS), "seed": rng.randrange(1 << 32)}
        handler = handler or rng.choices(HANDLERS, (8, 8, 2, 1))[0]
        return Shot(Port.TLS, handler, json.dumps(plan).encode(), is_proven=handler != "TLS hello")


class TlsConnection:
    """One connection over TLS, whose ciphertext is available before it is sent."""

    def __init__(self, context: ssl.SSLContext, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")
        self.reader, self.writer = reader, writer

    def hello(self) -> bytes:
        """Returns the first bytes of a handshake."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
        return self._out.read()

    async def shake(self) -> None:
        """Completes the handshake. Raises OSError."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self.writer.write(self._out.read())
                await self._take()
                continue
            self.writer.write(self._out.read())
            return

    async def _take(self) -> None:
        data = await self.reader.read(1 << 16)
        if not data:
            raise ConnectionResetError("closed during the handshake")
        self._in.write(data)

    def sealed(self, data: bytes) -> bytes:
        """Returns the TLS records that carry the data."""
        self._tls.write(data)
        return self._out.read()

    async def answer(self) -> bytes:
        """Returns the first bytes of the answer. Raises OSError."""
        while True:
            try:
                return self._tls.read(1 << 16)
            except ssl.SSLWantReadError:
                await self._take()


def spoiled(rng: random.Random, data: bytes) -> bytes:
    """Returns the TLS records in `data` with one fault, drawn by `rng`."""
    fate = rng.randrange(9)
    at = rng.randrange(len(data))
    if fate == 0:
        return data[: at + 1]
    if fate == 1:
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if fate == 2:
        return data[:at] + rng.randbytes(rng.choice((1, 2, 16, 300))) + data[at:]
    if fate == 3:  # another length of the record
        return data[:3] + rng.choice((0, 1, 0x4000, 0x4101, 0xFFFF)).to_bytes(2, "big") + data[5:]
    if fate == 4:  # another kind of record, or a version that does not exist
        return bytes([rng.choice((0x14, 0x15, 0x16, 0x17, 0x18, 0xFF))]) + data[1:2] + rng.randbytes(1) + data[3:]
    if fate == 5:  # another length of the message inside
        return data[:6] + rng.choice((b"\0\0\0", b"\xff\xff\xff", b"\0\x7f\xff", rng.randbytes(3))) + data[9:]
    if fate == 6:
        return data * rng.choice((2, 3, 40))
    if fate == 7:  # records in plain text: alerts, a change of the cipher, empty ones
        return b"\x15\x03\x03\x00\x02\x01\x00" * rng.choice((1, 40)) + b"\x14\x03\x03\x00\x01\x01" * 40 + data
    return data[:1] + rng.randbytes(rng.choice((4, 200, 20_000)))


class TlsLane:
    """Sends shots over TLS to the ports of a node, each on a connection of its own."""

    def __init__(self, node: NodeRecord, context: ssl.SSLContext) -> None:
        self._ports = {"broker": node.broker_port, "http": node.admin_port, "peer": node.peer_port}
        self._context = context
        self.ways = Ways(context)
        self.ways.next()

    async def fire(self, shots: Sequence[Shot]) -> list[Shot]:
        """Sends the shots and returns them. Raises ShotDefect if the node does not answer an honest request or if a
        shot takes longer than ANSWER_S, and OSError if the node does not listen.
        """
        reached = []
        for shot in shots:
            try:
                async with asyncio.timeout(ANSWER_S):
                    await self._play(shot)
            except TimeoutError:
                raise ShotDefect(f"{shot.handler} was not over in {ANSWER_S:.0f} s", [shot]) from None
            reached.append(shot)
        return reached

    fire_raw = fire

    async def _play(self, shot: Shot) -> None:
        plan = json.loads(shot.data)
        rng, port = random.Random(plan["seed"]), plan["port"]
        if shot.handler == INSIDE:
            await self._honest(shot, port)
            return
        ask = _ASKS[port]
        async with self._line(port) as line:
            if shot.handler == "TLS hello":
                await self._send(rng, line, spoiled(rng, line.hello()))
                return
            with contextlib.suppress(OSError):  # a connection that waits too long for its handshake is closed
                await line.shake()
                if shot.handler == "TLS record":
                    await self._send(rng, line, spoiled(rng, line.sealed(ask * rng.choice((1, 1, 9)))))
                else:
                    line.writer.write(line.sealed(ask * rng.choice((1, 400))))
                    if rng.random() < 0.5:
                        line.writer.write_eof()

    @contextlib.asynccontextmanager
    async def _line(self, port: str) -> AsyncIterator[TlsConnection]:
        reader, writer = await asyncio.open_connection(HOST, self._ports[port])
        try:
            yield TlsConnection(self._context, reader, writer)
        finally:
            writer.transport.abort()

    async def _honest(self, shot: Shot, port: str) -> None:
        """Sends an honest request, on another connection if the node drops the first ones. A client cannot tell a drop
        after the handshake from the end of a handshake that took the node too long, which is no defect.
        """
        what = f"an honest request over TLS to the port {port}"
        for _ in range(HONEST_TRIES):
            async with self._line(port) as line:
                try:
                    await line.shake()
                except OSError:
                    return  # a connection that waits too long for its handshake is closed
                line.writer.write(line.sealed(_ASKS[port]))
                if port == "peer":
                    return  # nothing is answered to these bytes
                try:
                    if await line.answer():
                        return
                except ssl.SSLError as error:
                    raise ShotDefect(f"{what} was answered with what breaks TLS: {error}", [shot]) from None
                except OSError:
                    continue
            raise ShotDefect(f"{what} got no answer", [shot])
        raise ShotDefect(f"{what} got no answer: the node dropped {HONEST_TRIES} connections", [shot])

    async def _send(self, rng: random.Random, line: TlsConnection, data: bytes) -> None:
        step = rng.choice((1, 7, len(data), len(data)))
        with contextlib.suppress(OSError):
            for at in range(0, len(data), max(step, len(data) // 200)):
                if line.writer.is_closing():
                    return
                line.writer.write(data[at : at + max(step, len(data) // 200)])
                if step < len(data):
                    await asyncio.sleep(0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await line.reader.read(1 << 16)

    def close(self) -> None:
        """Does nothing: each connection has ended with its shot."""

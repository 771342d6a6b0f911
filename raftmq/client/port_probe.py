"""Finds out whether a server that hung up speaks TLS or plain text, so that an error can say which.

A port for TLS closes a plain-text connection without a word, and the reverse; a node that stops does the same. So the
probe opens a second connection, which begins as the other kind of client would, and looks at the answer.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

from raftmq_wire.codec import encode_frame
from raftmq_wire.codes import RequestCode

PROBE_S = 0.5
_TLS_RECORDS = (b"\x16\x03", b"\x15\x03")
"""The first bytes of a handshake or alert record (RFC 8446, 5.1)."""

Probe = Callable[[str, int, bool], Awaitable[str]]
"""Takes host, port, and True if this client speaks TLS. Returns what the server speaks instead, worded to follow its
address in a sentence; "" if it does not speak the other kind either."""

TLS_ALONE = "takes TLS alone, and this client speaks plain text"
PLAIN_ALONE = "speaks plain text, and this client speaks TLS"
_HINTS = {
    TLS_ALONE: "Name the CA of the servers' certificates: connect(..., tls=Tls(ca=FILE)), or RAFTMQ_TLS_CA=FILE.",
    PLAIN_ALONE: "Connect without tls=, RAFTMQ_TLS and RAFTMQ_TLS_CA, or have the servers speak TLS (tls.mode).",
}


def hint_for(why: str) -> str:
    """Returns the advice for an error text that contains a result of the probe; "" for any other text."""
    return next((hint for kind, hint in _HINTS.items() if kind in why), "")


async def probe_port(host: str, port: int, speaks_tls: bool) -> str:
    """Greets the server as the other kind of client would, and judges the first bytes of its answer; returns as a
    `Probe` does. The greeting says nothing about this client or its user."""
    try:
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(_plain_greeting() if speaks_tls else _client_hello())
                if not speaks_tls:
                    return TLS_ALONE if await reader.readexactly(2) in _TLS_RECORDS else ""
                length = int.from_bytes(await reader.readexactly(4), "big")
                return PLAIN_ALONE if 0 < length < 1 << 24 else ""
            finally:
                writer.transport.abort()
    except (OSError, EOFError, TimeoutError):
        return ""


def _client_hello() -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # only the first bytes of the answer count
    hello = ssl.MemoryBIO()
    try:
        context.wrap_bio(ssl.MemoryBIO(), hello).do_handshake()
    except ssl.SSLWantReadError:
        return hello.read()
    raise AssertionError("a handshake needs the server")


def _plain_greeting() -> bytes:
    return encode_frame(RequestCode.GET_BROKER_CLUSTER_INFO, 1, 0)

"""The security of one listening port: its mode, its newest context, and texts for its errors."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import NamedTuple

from cluster.config.node_sections import TlsMode
from cluster.runtime.tls.transport import TlsTransport

HELLO = 0x16
"""The first byte of TLS, the type of its handshake records. No frame's length may begin with it."""
TLS_BEGINS = bytes((HELLO, 3))
"""First bytes of a TLS handshake. Read as the length of a frame they would mean 353 MiB."""


def no_context() -> ssl.SSLContext:
    """Raises AssertionError. It is the `context` of a port without TLS, and is never called."""
    raise AssertionError("a port without TLS asked for a context")


class Security(NamedTuple):
    """The settings by which an acceptor treats connections; immutable. `context` returns the newest context for each
    connection."""

    name: str = ""
    """The port's name, for the log."""
    mode: TlsMode = "disabled"
    context: Callable[[], ssl.SSLContext] = no_context
    accepted: Callable[[TlsTransport], None] = lambda connection: None
    """Called for each connection whose handshake is complete, before its protocol is made; it may abort the
    connection."""
    refusal: bytes = b""
    """The answer to plain text if only TLS is accepted; b"" to close without an answer."""


PLAIN = Security()
"""No TLS: the acceptor does not wait for the first byte."""


def why_failed(error: Exception) -> str:
    """Returns the reason of a failed handshake for people, in one line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        reason = error.reason.lower().replace("_", " ")
        if "alert" in reason:
            return f"it refuses this node's certificate or version: {reason}"
        return reason
    return " ".join(str(error).split())[:200] or type(error).__name__

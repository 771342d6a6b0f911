"""Recognises clients of other protocols that connect to a remoting port by mistake, and answers them in their own
protocol.

The first four bytes of each such protocol, read as the length of a frame, exceed every limit (TLS: 353 MiB, see
`cluster.runtime.tls.port_security`), so they are recognised where an oversized frame is refused.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cluster.runtime.tls.port_security import TLS_BEGINS

_PORT = "this port speaks the remoting protocol of RocketMQ"
_GOAWAY, _SETTINGS = 7, 4
_PROTOCOL_ERROR = 1


class Guest(NamedTuple):
    """A protocol that is not served at this port."""

    says: str
    """The description of the client in the node's log."""
    answer: bytes
    """The answer in the client's protocol; b"" if such clients show no answer."""


def _frame(kind: int, payload: bytes) -> bytes:
    """Returns an HTTP/2 frame of stream 0 without flags (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes((kind, 0, 0, 0, 0, 0)) + payload


def _go_away(text: str) -> bytes:
    """Returns a SETTINGS frame, which has to come first, and a GOAWAY frame with a text (RFC 9113, 3.4 and 6.8)."""
    return _frame(_SETTINGS, b"") + _frame(_GOAWAY, bytes(4) + _PROTOCOL_ERROR.to_bytes(4, "big") + text.encode())


def _bad_request(text: str) -> bytes:
    body = f"{text}\n".encode()
    head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close"
    return head.encode() + b"\r\n\r\n" + body


_TLS: Final = Guest("it speaks TLS, and this listener takes plain text (tls.mode is disabled)", b"")
_HTTP_2: Final = Guest(
    f"it speaks gRPC (HTTP/2), and {_PORT}",
    _go_away(f"{_PORT}; gRPC clients of RocketMQ 5 are not served: take a client of the remoting protocol"),
)
_HTTP_1: Final = Guest(
    f"it speaks HTTP, and {_PORT}", _bad_request(f"{_PORT}; the HTTP API and the dashboard are at admin.port")
)
_BEGINS: Final[dict[bytes, Guest]] = {
    TLS_BEGINS: _TLS,
    b"PRI ": _HTTP_2,
    **dict.fromkeys((b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN"), _HTTP_1),
}


def guest_of(begun: bytes) -> Guest | None:
    """Returns the protocol that begins with these bytes, at least four; None if they begin no protocol that is known
    here."""
    return _BEGINS.get(begun[:4]) or _BEGINS.get(begun[:2])

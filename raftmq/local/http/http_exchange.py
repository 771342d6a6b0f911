"""Sends one request to an HTTP API, with the proof that belongs to its address."""

from __future__ import annotations

import contextlib
import http.client
from typing import NamedTuple

from raftmq.local.http.answers import loaded, read_answer
from raftmq.local.http.credentials import proofs_for, tls_of
from raftmq.local.http.https import connection_to
from raftmq.local.http.list_pages import whole_answer

_REFUSED_PASS = "bad_pass"


class HttpAnswer(NamedTuple):
    """The answer to a request, whatever its status."""

    status: int
    body: bytes


def connected(address: str, timeout_s: float) -> http.client.HTTPConnection:
    """Returns a connection to "host:port", over TLS if it was asked for. Raises OSError."""
    return connection_to(address, tls_of(address), timeout_s)


def exchanged(
    connection: http.client.HTTPConnection, address: str, method: str, path: str, body: bytes | None = None
) -> HttpAnswer:
    """Sends a request on a connection to that address, and returns the answer. Raises OSError, HTTPException.

    A request whose pass is refused has changed nothing, so it is sent again with the next proof.
    """
    kind = {"Content-Type": "application/json"} if body is not None else {}
    refused: HttpAnswer | None = None
    for proof in proofs_for(address, method, path, body or b""):
        connection.request(method, path, body, {**kind, **proof})
        response = connection.getresponse()
        reply = HttpAnswer(response.status, read_answer(response))
        if not (proof and _is_refused_pass(reply)):
            return refused if refused is not None and reply.status in (401, 403) else reply
        refused = reply
    raise AssertionError("the last proof is none, and no node refuses it as a pass")


def exchange(
    address: str, method: str, path: str, body: bytes | None = None, *, timeout_s: float, is_page: bool = False
) -> HttpAnswer:
    """Connects to "host:port", sends a request and returns the answer. Raises OSError, HTTPException; and
    UnfollowedPageError for one page of a longer list, unless the caller says with `is_page` that it wants one page."""
    connection = connected(address, timeout_s)
    try:
        reply = exchanged(connection, address, method, path, body)
    finally:
        connection.close()
    if method == "GET" and not is_page and b'"next"' in reply.body:
        with contextlib.suppress(ValueError):  # the answer is no JSON, and so no list
            whole_answer(path, loaded(reply.body))
    return reply


def _is_refused_pass(reply: HttpAnswer) -> bool:
    if reply.status != 400:
        return False
    try:
        return bool(loaded(reply.body)["error"]["code"] == _REFUSED_PASS)
    except (ValueError, LookupError, TypeError):
        return False

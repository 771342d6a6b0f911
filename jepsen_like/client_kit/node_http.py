"""Requests to the HTTP API of a node that this process started: with the operator's proof, and over TLS if the node
uses it."""

from __future__ import annotations

import asyncio
import http.client

from cluster.config.local_layout import NodeRecord
from jepsen_like.client_kit.frames import ANSWER_S, CLOSED, SILENT, Answer
from raftmq.local.http.credentials import address_of
from raftmq.local.http.http_exchange import exchange


async def ask_node(node: NodeRecord, method: str, path: str, body: bytes = b"", timeout_s: float = ANSWER_S) -> Answer:
    """Sends one HTTP request on its own connection. `code` of the answer is the HTTP status. Returns SILENT if no
    answer came within `timeout_s`, CLOSED if the request failed.
    """

    def ask() -> Answer:
        try:
            reply = exchange(address_of(node), method, path, body or None, timeout_s=timeout_s)
        except TimeoutError:
            return SILENT
        except (OSError, http.client.HTTPException):
            return CLOSED
        return Answer(reply.status, {}, "", reply.body)

    return await asyncio.to_thread(ask)

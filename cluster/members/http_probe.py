"""Asks who answers at the address of an HTTP API."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from cluster.config.config import split_address
from cluster.peer.probe import PROBE_S, why_another, why_unreachable
from cluster.runtime.bounded_read import TooLongError, read_at_most
from raftlog.types import NodeId

ANSWER_BYTES_MAX: Final = 256 << 10
_REQUEST: Final = b"GET /v1/status HTTP/1.0\r\nAccept: application/json\r\n\r\n"
"""Without Host, as no browser sends it: under its new name a node would refuse it (`cluster.admin.sites`)."""


class _Who(msgspec.Struct):
    """The part of `GET /v1/status` that says who answers."""

    node: int
    cluster_id: str
    uuid: str = ""
    """"" of an earlier release: then the id and the cluster decide."""


async def probe_http(node: NodeId, node_uuid: str, cluster_uuid: str, address: str) -> str:
    """Why that node's HTTP API was not found at "host:port"; "" if it answers there."""
    try:
        async with asyncio.timeout(PROBE_S):
            answer = await _ask(*split_address(address))
    except TimeoutError:
        return f"no answer within {PROBE_S:g} s"
    except OSError as error:
        return why_unreachable(error)
    except (ValueError, TooLongError) as error:
        return str(error)
    return _judge(answer, node, node_uuid, cluster_uuid)


async def _ask(host: str, port: int) -> bytes:
    """Raises TooLongError if more comes than can be an answer, OSError."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_REQUEST)
        return b"".join(await read_at_most(reader, ANSWER_BYTES_MAX))
    finally:
        writer.transport.abort()


def _judge(answer: bytes, node: NodeId, node_uuid: str, cluster_uuid: str) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].split(b" ")
    if not status[0].startswith(b"HTTP/1."):
        return "what listens there does not speak HTTP"
    try:
        who = msgspec.json.decode(body, type=_Who)
    except (msgspec.DecodeError, ValueError):
        return f"what answers there is no node (HTTP status {status[1][:3].decode('latin-1') if status[1:] else '?'})"
    return why_another([who.cluster_id, who.node, who.uuid or node_uuid], [cluster_uuid, node, node_uuid])

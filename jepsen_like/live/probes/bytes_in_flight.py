"""The bytes in flight of live nodes, read from their metrics: when there are no requests, all of them must be 0."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable
from typing import Final

from cluster.config.local_layout import NodeRecord
from jepsen_like.client_kit.node_http import ask_node

GIVEN_BACK_S: Final = 20.0
"""Seconds after the last request within which a node gives back all bytes that it counted, including
`send.deadline_ms`."""
ASKED_S: Final = 5.0
OK: Final = 200
_FIGURE: Final = re.compile(r'^(raftmq_(?:client_)?inflight_bytes)(?:\{broker_group="\d+"\})? (\S+)$', re.MULTILINE)


def counted(metrics: str) -> dict[str, int]:
    """Reads Prometheus's text; returns metric -> bytes in flight. Raises ValueError if it does not have both
    metrics."""
    found = {name: int(float(value)) for name, value in _FIGURE.findall(metrics)}
    if len(found) != 2:
        raise ValueError(f"{len(found)} of the 2 metrics of bytes in flight are there")
    return found


async def wait_given_back(nodes: Iterable[NodeRecord], patience_s: float = GIVEN_BACK_S) -> list[str]:
    """Waits until each node counts no bytes; returns a line for each node that still does at the end. A node that does
    not answer is skipped."""
    left, deadline = [], time.monotonic() + patience_s
    for node in nodes:
        while (answer := await ask_node(node, "GET", "/metrics", timeout_s=ASKED_S)).code == OK:
            held = counted(answer.body.decode())
            if not any(held.values()):
                break
            if time.monotonic() >= deadline:
                left.append(f"node {node.id} counts {held} although nothing is under way")
                break
            await asyncio.sleep(0.1)
    return left

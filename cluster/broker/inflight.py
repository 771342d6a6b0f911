"""Limits the bytes of unanswered requests of a connection and of the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.config.config import LimitsSection
    from cluster.replication.outcome import ReplyTo


def over_limit(limits: LimitsSection, path: ReplyTo, size: int, node_bytes: int) -> str:
    """Why a request of `size` bytes must not be held now, as a remark for the client; "" if it may be.

    `node_bytes`: what the caller holds for all connections together.
    """
    if path.inflight_bytes + size > limits.connection_inflight_bytes_max:
        name, value, have = "connection", limits.connection_inflight_bytes_max, path.inflight_bytes
    elif node_bytes + size > limits.node_inflight_bytes_max:
        name, value, have = "node", limits.node_inflight_bytes_max, node_bytes
    else:
        return ""
    return (
        f"this {name} has {have} bytes in flight; with {size} more it passes limits.{name}_inflight_bytes_max = {value}"
    )

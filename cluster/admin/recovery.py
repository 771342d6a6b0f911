"""/v1/recovery: what the node's last start found and did, how long it took, and why that is safe."""

from __future__ import annotations

from typing import Literal

import msgspec

from cluster.admin.call import Call
from cluster.state.recovery_views import RecoveryStatus


class RecoveryView(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /v1/recovery`."""

    schema: Literal[1] = 1
    consistency: Literal["local"] = "local"
    node: int
    applied_index: int
    uptime_ms: int
    recovery: RecoveryStatus


async def get_recovery(call: Call) -> RecoveryView:
    """The last start: stages, bytes scanned, entries replayed, findings, actions, alarms, and what is synced."""
    status = call.port.status()
    return RecoveryView(
        node=status.node, applied_index=status.applied_index, uptime_ms=status.uptime_ms, recovery=status.recovery
    )

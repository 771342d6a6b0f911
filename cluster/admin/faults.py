"""/v1/failpoints: injects faults into this node. Only with `[failpoints] enabled = true`."""

from __future__ import annotations

import msgspec

from cluster.admin.call import Call
from cluster.admin.errors import ApiError
from cluster.runtime.failpoints import FailpointError, FailpointSet, PointState


class FailpointRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`PUT /v1/failpoints`: {"name": "append.fdatasync", "action": "hold"}."""

    name: str
    action: str


class FailpointsView(msgspec.Struct, frozen=True, kw_only=True):
    """All points of this node."""

    node: int
    failpoints: list[PointState]


async def list_failpoints(call: Call) -> FailpointsView:
    """Every failpoint, its action, and how often it took effect."""
    points = _enabled(call)
    return FailpointsView(node=call.port.config.node.id, failpoints=points.states())


async def set_failpoint(call: Call) -> FailpointsView:
    """Changes one failpoint and releases the calls that it held."""
    points, wanted = _enabled(call), call.body
    try:
        points.set(wanted.name, wanted.action)
    except FailpointError as error:
        raise ApiError("bad_field", error.message, error.hint) from None
    return FailpointsView(node=call.port.config.node.id, failpoints=points.states())


def _enabled(call: Call) -> FailpointSet:
    if not call.port.failpoints.enabled:
        raise ApiError(
            "failpoints_off",
            "failpoints are off on this node",
            "for tests only: restart it with [failpoints] enabled = true, or RAFTMQ_FAILPOINTS__ENABLED=true",
        )
    return call.port.failpoints

"""A scrub of the tier by the leader, from its beginning to its end."""

from __future__ import annotations

import math
import time
from typing import Any

from raftmq.local.http.admin_http import AdminApi

_POLL_S = 0.3


def scrubbed(api: AdminApi, wishes: dict[str, bool], timeout_s: float = math.inf) -> dict[str, Any] | None:
    """Runs the leader's scrub and returns its result (GET /v1/tier/scrub); None if it has not ended in time, or another
    node leads now. `wishes`: the body of the POST. Raises LocalError."""
    deadline = time.monotonic() + timeout_s
    begun = view = api.post("/v1/tier/scrub", wishes)
    while view["running"] and _same(begun, view) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        view = api.local("/v1/tier/scrub")
    return view if _same(begun, view) and not view["running"] else None


def _same(begun: dict[str, Any], view: dict[str, Any]) -> bool:
    return bool((begun["node"], begun["number"]) == (view["node"], view["number"]))

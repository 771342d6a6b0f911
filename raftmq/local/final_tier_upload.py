"""Uploads the part of the log that is not yet in the tier before a cluster stops, for as long as the operator
allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.asked_nodes import ask_each
from raftmq_wire.errors import ExitCode, LocalError

POLL_S = 0.1


class Rest(NamedTuple):
    """The part of the log that has not reached the tier."""

    size: int | None
    """The size in bytes; None if no node could say."""
    why: str

    def error(self, grace_s: float) -> LocalError:
        """Returns the error to raise when the nodes are stopped although this rest is missing in the tier."""
        what = "an unknown part of the log" if self.size is None else f"{self.size} bytes of the log"
        return LocalError(
            f"the nodes are stopped, and {what} are not in the tier",
            f"{self.why} within {grace_s:g} s; nothing is lost: the nodes have it, and the next leader uploads it",
            f"raftmq up --detach && raftmq down --grace {max(60, 2 * grace_s):g}",
            ExitCode.LEFT,
        )


def bring_rest(
    addresses: Sequence[str], grace_s: float | None, told: Callable[[str], None] = lambda text: None
) -> tuple[Rest | None, float]:
    """Asks the leader to seal the log, and waits until all of it is verified in the tier. Returns (the rest that is
    left, or None if nothing is left; seconds allowed).

    Does nothing and returns (None, 0.0) if no node answers, no tier is configured, or the allowed time is 0. `grace_s`:
    the allowed time; None for the configured one.
    """
    views = _views(addresses)
    tiered = next((view for view in views if view["url"]), None)
    if tiered is None:
        return None, 0.0
    allowed_s = tiered["stop_grace_ms"] / 1000 if grace_s is None else grace_s
    if not allowed_s:
        return None, 0.0
    until_s = time.monotonic() + allowed_s
    told(f"uploading what is not in the tier yet, for at most {allowed_s:.0f} s")
    try:
        position = int(AdminApi(addresses).post("/v1/tier/seal", {})["position"])
    except LocalError as error:
        return Rest(_pending(views), f"the leader did not close the last segment: {error.why}"), allowed_s
    while True:
        views = _views(addresses)
        leader = next((view for view in views if view["node"] == view["leader"]), None)
        late = time.monotonic() >= until_s
        arrived = leader if leader is not None and leader["verified_to"] >= position else None
        if arrived and (late or not arrived["copying_state"]):  # a copy only speeds up restores: not reported
            return None, allowed_s
        if late:
            why = "there is no leader" if leader is None else leader["failing"] or "the upload did not end"
            return Rest(_pending(views), why), allowed_s
        time.sleep(POLL_S)


def _views(addresses: Sequence[str]) -> list[dict[str, Any]]:
    return [view for _, view in ask_each(addresses, "/v1/tier")[0]]


def _pending(views: Sequence[dict[str, Any]]) -> int | None:
    """Returns the largest number of bytes that any node reports as waiting for upload; None if no node answered."""
    return max((view["sealed_end"] - view["verified_to"] for view in views), default=None)

"""Measures the return of a restarted node: when it serves, how much it scanned, and that no queue has fewer rows than
before."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from jepsen_like.live.subjects.raftmq_subject import RaftMQSubject

POLL_S = 0.02


class QueueEnds(NamedTuple):
    """The ends of the queues of one node. When they were read, the node had applied at least the entry `above` and at
    most the entry `below`.
    """

    node: int
    above: int
    below: int
    ends: tuple[int, ...]


class Restart(NamedTuple):
    """The measurements of one restart, and the node's own report of it."""

    node: int
    log_bytes: int
    serving_s: float
    """Seconds from the start of the process until the node reports good health."""
    account: dict[str, Any]
    """The answer of `GET /v1/recovery`."""

    @property
    def scanned(self) -> int:
        """The bytes of the log that the node read to open it."""
        return int(self.account["bytes_scanned"])

    def to_json(self) -> dict[str, Any]:
        """Returns the restart as JSON, for verdict.json."""
        return {
            "node": self.node,
            "log_bytes": self.log_bytes,
            "serving_ms": round(1000 * self.serving_s),
            "bytes_scanned": self.scanned,
            "bytes_zeroed": self.account["bytes_zeroed"],
            "entries_replayed": self.account["entries_replayed"],
            "stages_ms": self.account["stages_ms"],
        }


def read_rows(subject: RaftMQSubject, node: int) -> QueueEnds:
    """Asks a node for the ends of its queues. The node reads the applied index in its answer before the ends; the
    status, with the index `below`, is asked for after them. Raises OSError if the node does not answer.
    """
    shown = subject.request(node, "GET", f"/v1/topics/{subject.topic}", timeout_s=10.0)
    after = subject.request(node, "GET", "/v1/status", timeout_s=10.0)
    ends = tuple(queue["max_offset"] for queue in shown["queues"])
    return QueueEnds(node, shown["applied_index"], after["applied_index"], ends)


def shrunk(before: QueueEnds, after: QueueEnds) -> str | None:
    """Returns a description of the loss if the later reading is of at least the same entries and has fewer rows in a
    queue; else None.
    """
    if after.above < before.below or all(now >= then for now, then in zip(after.ends, before.ends, strict=True)):
        return None
    return (
        f"node {after.node} has queues to {after.ends} with entry {after.above} applied; node {before.node} had them "
        f"to {before.ends} with at most entry {before.below}"
    )


def wait_serving(subject: RaftMQSubject, node: int, started: float, timeout_s: float) -> float | None:
    """Returns the seconds from `started` (monotonic) until the node reports good health; None if it does not in
    time."""
    while time.monotonic() - started < timeout_s:
        try:
            subject.request(node, "GET", "/v1/health", timeout_s=1.0)
        except OSError:  # not listening yet, or 503
            time.sleep(POLL_S)
            continue
        return time.monotonic() - started
    return None

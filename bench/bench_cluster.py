"""`make bench`: measures a cluster of three nodes on this machine, with fdatasync on a majority before every
acknowledgement.

Prints a table; with JSON=1 in the environment only {"rows":[...]}. CPU is user and system time of all nodes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent))

from load import Result
from tables import show
from three_nodes import load, three_nodes

SECONDS = float(os.environ.get("SECONDS_PER_ROW", "4"))
ROWS = [(1024, 1, 1), (1024, 1, 64), (1024, 1, 512), (1024, 100, 4), (1024, 100, 16)]
"""The loads to measure: (body bytes, messages per request, requests in flight)."""


def cpu_seconds(pids: list[int]) -> float:
    """Returns the user and system time of the processes so far, in seconds."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def percentile(latencies: list[float], share: float) -> float:
    """Returns the value at the share `share` (0 to 1) of an ascending list; 0.0 if the list is empty."""
    return latencies[min(len(latencies) - 1, int(len(latencies) * share))] if latencies else 0.0


def row(size: int, batch: int, in_flight: int, result: Result, cpu: float) -> dict[str, float]:
    """Returns the line of the report for one load. `cpu`: the CPU seconds of all nodes during the load."""
    return {
        "size": size,
        "batch": batch,
        "in_flight": in_flight,
        "messages_per_second": round(result.messages / result.seconds),
        "p50_ms": round(percentile(result.latencies_ms, 0.5), 2),
        "p99_ms": round(percentile(result.latencies_ms, 0.99), 2),
        "cpu_us_per_message": round(cpu * 1e6 / max(1, result.messages), 1),
    }


def measure(port: int, pids: list[int]) -> list[dict[str, float]]:
    """Measures all rows, after one warm-up, and returns them. `pids`: the processes whose CPU time counts."""
    load(port, 16, 1.0)
    rows = []
    for size, batch, in_flight in ROWS:
        before = cpu_seconds(pids)
        result = load(port, in_flight, SECONDS, size=size, batch=batch)
        rows.append(row(size, batch, in_flight, result, cpu_seconds(pids) - before))
    return rows


def main() -> None:
    """Starts a cluster in a temporary directory, measures it, and ends it."""
    with three_nodes() as (cluster, leader):
        rows = measure(leader.broker_port, [node.pid for node in cluster.nodes])
    show(rows, "three nodes, fdatasync on a majority before each ack")


if __name__ == "__main__":
    main()

"""`python bench/bench_settings.py`: measures the effect of single settings, each compared with the defaults, in
alternating rounds.

Each setting gets three local nodes and the loads of `make bench` with single sends of 1 KiB. Prints medians of ROUNDS
(3) rounds: messages per second, p50, and CPU of all nodes per message, and their ratios to the medians of the defaults.
Each load takes SECONDS_PER_ROW (3). ONLY=name,name in the environment measures only these settings, beside the
defaults; JSON=1 prints {"rows": [...]} alone.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from bench_cluster import cpu_seconds, row
from rich.table import Table
from tables import console
from three_nodes import load, three_nodes

ROUNDS = int(os.environ.get("ROUNDS", "3"))
SECONDS = float(os.environ.get("SECONDS_PER_ROW", "3"))
IN_FLIGHT = (1, 64, 512)
DEFAULTS = "defaults"
SETTINGS: dict[str, dict[str, str]] = {
    DEFAULTS: {},
    "without the native kernel": {"RAFTMQ_KERNEL": "python"},
    "index.enabled = false": {"RAFTMQ_INDEX__ENABLED": "false"},
    "limits.batches_inflight_max = 1": {"RAFTMQ_LIMITS__BATCHES_INFLIGHT_MAX": "1"},
    "limits.batches_inflight_max = 2": {"RAFTMQ_LIMITS__BATCHES_INFLIGHT_MAX": "2"},
    "limits.batches_inflight_max = 16": {"RAFTMQ_LIMITS__BATCHES_INFLIGHT_MAX": "16"},
    "limits.batch_messages_max = 256": {"RAFTMQ_LIMITS__BATCH_MESSAGES_MAX": "256"},
}
"""Setting's name -> environment variables of the nodes."""
FIGURES = ("messages_per_second", "p50_ms", "cpu_us_per_message")


def measure(environment: dict[str, str]) -> dict[int, dict[str, float]]:
    """Measures one cluster with that environment; returns requests in flight -> figures."""
    os.environ.update(environment)
    try:
        with three_nodes() as (cluster, leader):
            return loaded(leader.broker_port, [node.pid for node in cluster.nodes])
    finally:
        for name in environment:
            del os.environ[name]


def loaded(port: int, pids: list[int]) -> dict[int, dict[str, float]]:
    """Runs every load, after a warm-up; returns requests in flight -> figures."""
    load(port, 64, 1.5)
    rows = {}
    for in_flight in IN_FLIGHT:
        before = cpu_seconds(pids)
        result = load(port, in_flight, SECONDS)
        rows[in_flight] = row(1024, 1, in_flight, result, cpu_seconds(pids) - before)
    return rows


def main() -> None:
    """Measures the settings in turns, the order reversed in each second round."""
    only = os.environ.get("ONLY", "").split(",")
    names = [name for name in SETTINGS if only == [""] or name in only or name == DEFAULTS]
    found: dict[str, list[dict[int, dict[str, float]]]] = {name: [] for name in names}
    for number in range(ROUNDS):
        for name in names if number % 2 == 0 else reversed(names):
            print(f"round {number + 1} of {ROUNDS}: {name}", file=sys.stderr)
            found[name].append(measure(SETTINGS[name]))
    rows = [
        {"setting": name, "in_flight": in_flight}
        | {figure: statistics.median(one[in_flight][figure] for one in found[name]) for figure in FIGURES}
        for in_flight in IN_FLIGHT
        for name in names
    ]
    if os.environ.get("JSON"):
        print(json.dumps({"rows": rows}))
        return
    table = Table("setting", "in flight", *FIGURES, *[f"{figure}, ratio" for figure in FIGURES])
    for one in rows:
        base = next(row for row in rows if row["in_flight"] == one["in_flight"])
        ratios = [f"{one[figure] / base[figure]:.2f}" for figure in FIGURES]
        table.add_row(one["setting"], str(one["in_flight"]), *[f"{one[figure]:,}" for figure in FIGURES], *ratios)
    console().print(table)


if __name__ == "__main__":
    main()

"""`python bench/bench_soak.py`: measures what a node holds during a long run at full load: memory, handles, tasks.

It runs three local nodes with retention.bytes_max = BYTES_MAX (4294967296) for MINUTES (30), with 512 requests of 1 KiB
in flight. Every 10 seconds it takes a sample of each node: resident memory without the pages of files (the part of the
log in the page cache is not counted), open files, threads, asyncio tasks, bytes of the data directory. One connection
at a time sends, each for 30 seconds. The first sixth of the run is left out, because caches and buffers have filled up
by its end. The next 20 % of the run are the early part, the last 20 % the late part; the command prints the median of
each and their ratio. With JSON=1 in the environment it prints {"rows": [...], "acked": ..., "per_second": {...}} alone.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parent))

from prometheus_client.parser import text_string_to_metric_families
from rich.progress import track
from rich.table import Table
from tables import console
from three_nodes import load, three_nodes

from cluster.config.local_layout import NodeRecord

MINUTES = float(os.environ.get("MINUTES", "30"))
BYTES_MAX = os.environ.get("BYTES_MAX", str(4 << 30))
EVERY_S = 10.0
SLICE_S = 30.0
"""Seconds for which one connection sends; then its rate is recorded, and the next connection begins."""
IN_FLIGHT = 512
FIGURES = ("anonymous MiB", "open files", "threads", "tasks", "data GiB")

Sample = dict[str, float]


def sample(node: NodeRecord) -> Sample:
    """Reads the memory, open files, threads, tasks and bytes on disk that the node holds now."""
    process = psutil.Process(node.pid)
    memory = process.memory_info()
    with urllib.request.urlopen(f"http://127.0.0.1:{node.admin_port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    tasks = next(family.samples[0].value for family in families if family.name == "raftmq_loop_tasks")
    return {
        "anonymous MiB": (memory.rss - memory.shared) / (1 << 20),
        "open files": process.num_fds(),
        "threads": process.num_threads(),
        "tasks": tasks,
        "data GiB": disk_bytes(node.home) / (1 << 30),
    }


def disk_bytes(home: Path) -> int:
    """Returns the bytes on disk of all files below `home`. Files and folders that the node removes during the count are
    skipped."""
    total = 0
    for folder, _, names in os.walk(home):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.lstat(Path(folder) / name).st_blocks * 512
    return total


class Sampler(threading.Thread):
    """A thread that takes samples until `ended` is set."""

    def __init__(self, nodes: list[NodeRecord]) -> None:
        super().__init__(daemon=True)
        self._nodes = nodes
        self.ended = threading.Event()
        self.taken: dict[int, list[Sample]] = {node.id: [] for node in nodes}
        self.failed: Exception | None = None

    def run(self) -> None:
        """Takes a sample of each node every EVERY_S."""
        try:
            while not self.ended.wait(EVERY_S):
                for node in self._nodes:
                    self.taken[node.id].append(sample(node))
        except (OSError, psutil.Error, StopIteration) as error:
            self.failed = error


def rows_of(taken: dict[int, list[Sample]]) -> list[dict[str, Any]]:
    """Returns a row per node and figure: early median, late median, ratio."""
    rows = []
    for node, samples in taken.items():
        first, part = len(samples) // 6, max(len(samples) // 5, 1)
        for figure in FIGURES:
            early = median([one[figure] for one in samples[first : first + part]])
            late = median([one[figure] for one in samples[-part:]])
            ratio = round(late / early, 3) if early else 1.0
            rows.append(
                {"node": node, "figure": figure, "early": round(early, 2), "late": round(late, 2), "ratio": ratio}
            )
    return rows


def main() -> None:
    """Runs the load and the sampler, and prints the results."""
    quiet = bool(os.environ.get("JSON"))
    os.environ["RAFTMQ_RETENTION__BYTES_MAX"] = BYTES_MAX
    with three_nodes() as (cluster, leader):
        sampler = Sampler(cluster.nodes)
        sampler.start()
        ends, rates, acked = time.monotonic() + MINUTES * 60, [], 0
        for _ in track(range(round(MINUTES * 60 / SLICE_S)), "slices of 30 s", disable=quiet):
            if time.monotonic() > ends or sampler.failed is not None:
                break
            result = load(leader.broker_port, IN_FLIGHT, SLICE_S)
            acked += result.messages
            rates.append(result.messages / result.seconds)
        sampler.ended.set()
        sampler.join(60)
    if sampler.failed is not None:
        raise SystemExit(f"a sample could not be taken: {sampler.failed}")
    report(rows_of(sampler.taken), rates, acked, quiet=quiet)


def report(rows: list[dict[str, Any]], rates: list[float], acked: int, *, quiet: bool) -> None:
    """Prints the rows, the number of acknowledged messages, and the median rates of the early and the late part."""
    part = max(len(rates) // 5, 1)
    early, late = median(rates[len(rates) // 6 :][:part]), median(rates[-part:])
    if quiet:
        print(json.dumps({"rows": rows, "acked": acked, "per_second": {"early": round(early), "late": round(late)}}))
        return
    table = Table("node", "figure", "early", "late", "ratio", title=f"{acked:,} messages in {MINUTES:g} minutes")
    for row in rows:
        table.add_row(*[str(row[name]) for name in ("node", "figure", "early", "late", "ratio")])
    console().print(table)
    print(f"messages per second: {early:,.0f} early, {late:,.0f} late")


if __name__ == "__main__":
    main()

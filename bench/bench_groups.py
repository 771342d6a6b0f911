"""`make bench-groups`: measures the CPU cost and the throughput of further groups of brokers on this machine.

In each round clusters of one, two and four groups of three nodes start, one after the other, so that idle clusters are
not part of the figures. Each gets IN_FLIGHT (512) sends of 1 KiB in flight at every group's leader, from a process for
each group. A row has the CPU time of all nodes for a message, and the messages of all groups for a CPU second of the
busiest node: what a machine with a core for each process would do. The last rows have a quarter of the sends in flight
at each of four groups. Rows "in turn" load one group after the other while the rest idles, and count the CPU of all
processes for the whole time. In the other rows, groups that share few cores compete for them and their caches; on a
machine with a core for each process they would not. Figures are the medians of ROUNDS (3) of SECONDS (6) each; ratios
are against one group in the same round. With JSON=1 in the environment {"rows": [...]} alone.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import psutil

sys.path.insert(0, str(Path(__file__).parent))

from bench_cluster import cpu_seconds
from load import Result
from tables import show
from three_nodes import load

import raftmq
from cluster.config.local_layout import groups_of
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port

ROUNDS = int(os.environ.get("ROUNDS") or "3")
SECONDS = float(os.environ.get("SECONDS") or "6")
IN_FLIGHT = int(os.environ.get("IN_FLIGHT") or "512")
WARM_UP_S = 2.0
MOST = 4
TOPIC = "bench"
MIB = 1 << 20


class Figures:
    """The throughput of a cluster (messages per second) and its CPU time (microseconds per message), in one round."""

    def __init__(self, results: list[Result], cpu_s: list[float], *, in_turn: bool) -> None:
        """`results`: the result of each group's load. `cpu_s`: the CPU seconds of each process. `in_turn`: True if the
        loads ran one after the other."""
        self.messages = sum(result.messages for result in results)
        rates = [result.messages / result.seconds for result in results]
        self.per_second = sum(rates) / len(rates) if in_turn else sum(rates)
        self.cpu_us = sum(cpu_s) * 1e6 / max(1, self.messages)
        self.per_busiest_cpu_s = self.messages / max(cpu_s)


class Groups:
    """A local cluster of `groups` groups of three nodes."""

    def __init__(self, folder: Path, groups: int) -> None:
        self.cluster = LocalCluster(folder / f"{groups}")
        begun_s = time.monotonic()
        self.cluster.up(3, base_port=free_base_port(12 * groups), groups=groups)
        self.ready_s = time.monotonic() - begun_s
        with raftmq.connect(self.cluster.servers) as mq:
            mq.admin.create_topic(TOPIC, queues=4)

    def processes(self) -> list[psutil.Process]:
        """Returns the nodes' processes, the same order at each call."""
        return [psutil.Process(node.pid) for node in self.cluster.nodes]

    def leaders(self) -> list[int]:
        """Returns the broker port of each group's leader."""
        nodes = {node.key: node.broker_port for node in self.cluster.nodes}
        views = {view.group: view.leader for view in self.cluster.views()}
        return [nodes[group, views[group] or 0] for group in groups_of(self.cluster.nodes)]

    def measure(self, pool: ProcessPoolExecutor, in_flight: int, seconds: float, *, in_turn: bool = False) -> Figures:
        """Runs a load on each group, at the same time or `in_turn`."""
        pids = [each.pid for each in self.processes()]
        before = [cpu_seconds([pid]) for pid in pids]
        results: list[Result] = []
        for ports in ([port] for port in self.leaders()) if in_turn else [self.leaders()]:
            asked = [pool.submit(load, port, in_flight, seconds, topic=TOPIC) for port in ports]
            results += [each.result() for each in asked]
        used = [cpu_seconds([pid]) - then for pid, then in zip(pids, before, strict=True)]
        return Figures(results, used, in_turn=in_turn)


def rows_of(figures: dict[str, list[Figures]]) -> list[dict[str, object]]:
    """Returns a row for each load: medians of its rounds. A ratio compares it with the first load (one group) in the
    same round."""
    first = next(iter(figures.values()))
    return [
        {
            "load": name,
            "messages_per_second": round(median(each.per_second for each in found)),
            "cpu_us_per_message": round(median(each.cpu_us for each in found), 1),
            "cpu_ratio": round(median(a.cpu_us / b.cpu_us for a, b in zip(found, first, strict=True)), 2),
            "messages_per_busiest_cpu_second": round(median(each.per_busiest_cpu_s for each in found)),
            "busiest_ratio": round(
                median(a.per_busiest_cpu_s / b.per_busiest_cpu_s for a, b in zip(found, first, strict=True)), 2
            ),
        }
        for name, found in figures.items()
    ]


def main() -> None:
    """Starts the clusters in a temporary directory, measures them in turns, and ends them."""
    figures: dict[str, list[Figures]] = {}
    with tempfile.TemporaryDirectory(prefix="raftmq-bench-") as folder, ExitStack() as ending:
        pool = ending.enter_context(ProcessPoolExecutor(MOST, mp_context=get_context("spawn")))
        loads = [
            (1, IN_FLIGHT, False),
            (2, IN_FLIGHT, False),
            (2, IN_FLIGHT, True),
            (MOST, IN_FLIGHT, False),
            (MOST, IN_FLIGHT, True),
            (MOST, IN_FLIGHT // MOST, False),
        ]
        for number in range(ROUNDS):
            for count, of_count in groupby(loads, key=lambda load: load[0]):
                groups = Groups(Path(folder) / f"{number}", count)
                try:
                    groups.measure(pool, IN_FLIGHT, WARM_UP_S)
                    for _, in_flight, in_turn in of_count:
                        name = f"{count} x {in_flight}{' in turn' if in_turn else ''}"
                        found = groups.measure(pool, in_flight, SECONDS, in_turn=in_turn)
                        figures.setdefault(name, []).append(found)
                    sizes = [round(each.memory_info().rss / MIB) for each in groups.processes()]
                finally:
                    groups.cluster.down()
                told = f"{count} groups were ready in {groups.ready_s:.1f} s; MiB of each process: {sizes}"
                print(told, file=sys.stderr)
    show(rows_of(figures), "groups x sends in flight at each; medians")


if __name__ == "__main__":
    main()

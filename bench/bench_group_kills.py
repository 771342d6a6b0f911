"""`python bench/bench_group_kills.py`: measures what users of a group of brokers notice when another loses its leader.

In clusters of two and of four groups of three nodes, an open loop sends to each group, SHARE (0.3) of what all take
together. The leader of each group is killed in turn, at a random moment, and started again after the window of WINDOW
(10) seconds. A row has the sends of the *other* groups that failed or stayed unknown, and their p99 beside that of a
window without a kill: medians of ROUNDS (3). The loops run at a real-time priority, since clients are other machines.
With JSON=1 in the environment {"rows": [...]} alone.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from bench_groups import Groups
from tables import show

from cluster.config.local_layout import groups_of
from jepsen_like.live.stories.open_load import OpenLoad
from raftmq.local.http.admin_http import AdminApi

ROUNDS = int(os.environ.get("ROUNDS") or "3")
WINDOW = float(os.environ.get("WINDOW") or "10")
SHARE = float(os.environ.get("SHARE") or "0.3")
COUNTS = [int(count) for count in (os.environ.get("GROUPS") or "2,4").split(",")]
Runs = dict[int, dict[str, Any]]
"""Group -> what its loop measured."""


class Window:
    """Windows of load on a cluster of several groups, each on a topic of its own."""

    def __init__(self, groups: Groups, rate: float) -> None:
        """`rate`: messages a second of each group."""
        self._cluster, self._rate = groups.cluster, rate
        self.groups = groups_of(self._cluster.nodes)
        api = AdminApi([f"127.0.0.1:{node.admin_port}" for node in self._cluster.first_nodes])
        for group in self.groups:
            api.post("/v1/topics", {"name": f"only-{group}", "queues": 4, "groups": [group]})

    def measure(self, killed: int | None, after_s: float) -> Runs:
        """Runs a loop on each group; the leader of `killed` ends after so many seconds, and comes back at the end."""
        with ExitStack() as ends:
            loads = {group: ends.enter_context(self._load(group)) for group in self.groups}
            time.sleep(after_s)
            gone = [view.leader_name for view in self._cluster.views() if view.group == killed]
            for leader in gone:
                self._cluster.kill(leader or 0)
            runs: Runs = {group: load.report()["runs"][0] for group, load in loads.items()}
        for leader in gone:
            self._cluster.restart(leader or 0)
        self._settle()
        return runs

    def _load(self, group: int) -> OpenLoad:
        ports = [node.broker_port for node in self._cluster.of_group(group)]
        servers = ";".join(f"127.0.0.1:{port}" for port in ports)
        return OpenLoad(servers, f"only-{group}", ["--rate", f"{self._rate:.0f}"], WINDOW, connections=2)

    def _settle(self) -> None:
        while not all(view.ready for view in self._cluster.views()):
            time.sleep(0.1)
        time.sleep(2.0)


@contextmanager
def windows(count: int) -> Iterator[Window]:
    """Yields a cluster of so many groups, whose loops send SHARE of what it takes."""
    with tempfile.TemporaryDirectory(prefix="raftmq-bench-") as folder, ExitStack() as ends:
        groups = Groups(Path(folder), count)
        ends.callback(groups.cluster.down)
        pool = ends.enter_context(ProcessPoolExecutor(count, mp_context=get_context("spawn")))
        groups.measure(pool, 512, 2.0)
        most = groups.measure(pool, 512, 4.0).per_second
        print(f"{count} groups take {most:,.0f} messages/s", file=sys.stderr)
        yield Window(groups, SHARE * most / count)


def row(count: int, killed: int, quiet: list[Runs], runs: list[Runs]) -> dict[str, Any]:
    """Returns the row of the kills of one group's leader. `quiet`, `runs`: a window of each round."""
    others = [[run for group, run in each.items() if group != killed] for each in runs]
    failed = [sum(sum(run["refused"].values()) + run["unknown"] for run in each) for each in others]
    before = [max(run["p99_ms"] for group, run in each.items() if group != killed) for each in quiet]
    own = [sum(each[killed]["refused"].values()) + each[killed]["unknown"] for each in runs]
    return {
        "groups": count,
        "leader killed of": killed,
        "others failed": sum(failed),
        "others p99 ms": round(median(max(run["p99_ms"] for run in each) for each in others), 1),
        "without a kill": round(median(before), 1),
        "own failed": sum(own),
        "own p99 ms": round(median(each[killed]["p99_ms"] for each in runs), 1),
    }


def main() -> None:
    """Measures clusters of each number of groups, one after the other."""
    chance, rows = random.Random(), list[dict[str, Any]]()
    for count in COUNTS:
        with windows(count) as window:
            quiet = list[Runs]()
            runs: dict[int, list[Runs]] = {group: [] for group in window.groups}
            for _ in range(ROUNDS):
                quiet.append(window.measure(None, 0.0))
                for group, found in runs.items():
                    found.append(window.measure(group, chance.uniform(1.0, WINDOW / 2)))
        rows += [row(count, group, quiet, found) for group, found in runs.items()]
    show(rows, "what the other groups notice of a killed leader")


if __name__ == "__main__":
    main()

"""`make bench-group-kills`: measures how the loss of one group's leader affects users of the other groups of brokers.

A cluster of BROKER_GROUPS (2) groups of three nodes; each group has a client process of its own, whose sends of 1 KiB
arrive by a schedule, whether earlier ones were answered or not. Their rate is 0.3 of the rate that the group alone
reached in a closed loop of 3 s, divided by the number of groups, and at most RATE_MAX (2000) a second, so the machine
idles most of the time. In each of ROUNDS (3) rounds, the leader of each group in turn is killed with -9 after SECONDS
(10), and started again after another SECONDS.

A row has, for the other groups, the sends that failed or whose outcome is unknown, and the latencies of the sends that
were due in the seconds before and after the kill. With several other groups it has the worst of each figure. "pause s"
is the longest time in which the killed leader's group acknowledged nothing; "late" the share of all sends that the
clients themselves sent late. "kept" is "yes" if no send to another group failed, and if the p99 of these sends was at
most twice the p99 before the kill, or at most 50 ms. The last rows are medians. With JSON=1 in the environment {"rows":
[...]} alone.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from tables import show

import raftmq
from cluster.config.local_layout import NodeName, groups_of
from raftmq.commands.bench_open import BenchTarget, Shape, arrive, closed, precise_loop
from raftmq.commands.open_arrivals import percentile
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.credentials import address_of
from raftmq.local.process import free_base_port
from raftmq.local.waiting import until
from raftmq_wire.errors import LocalError

GROUPS = int(os.environ.get("BROKER_GROUPS") or "2")
ROUNDS = int(os.environ.get("ROUNDS") or "3")
SECONDS = float(os.environ.get("SECONDS") or "10")
RATE_MAX = float(os.environ.get("RATE_MAX") or "2000")
SHARE = 0.3
"""The rate of all groups together, as a share of the rate that the machine can take."""
CLOSED_S, BEGIN_S, PATIENCE_S = 3.0, 2.0, 60.0
"""Seconds of the closed loop; seconds until all clients send; and the most seconds that the cluster has to recover
between two kills."""
FACTOR_MAX, LEAST_MS = 2.0, 50.0
"""The p99 of the other groups after a kill may be FACTOR_MAX times their p99 before it, or LEAST_MS milliseconds."""
TOPIC = "bench"
Point = tuple[float, float]
"""The moment at which a send was answered (perf_counter), and its latency in milliseconds."""


class Sends(NamedTuple):
    """The sends to one group: the acknowledged ones, and the numbers of those that were not acknowledged (`failed`,
    also if their outcome is unknown), that were sent late, and that were due in all."""

    stored: list[Point]
    failed: int
    late: int
    scheduled: int

    def due(self, since_s: float, end_s: float) -> list[float]:
        """Returns the latencies in milliseconds, ascending, of the acknowledged sends that were due from `since_s` to
        `end_s`."""
        return sorted(took for at_s, took in self.stored if since_s <= at_s - took / 1000 < end_s)

    def longest_pause(self, since_s: float, end_s: float) -> float:
        """Returns the longest time in seconds without an acknowledgement between `since_s` and `end_s`."""
        inside = sorted(at_s for at_s, _ in self.stored if since_s < at_s < end_s)
        return max(later - earlier for earlier, later in itertools.pairwise([since_s, *inside, end_s]))


def send(target: BenchTarget, rate: float, seconds: float) -> Sends:
    """Sends `rate` messages a second by a schedule, for `seconds`. Runs in a process of its own."""
    shape = Shape(seconds=seconds, connections=1)
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        (run,) = runner.run(arrive(target, shape, rate))
    stored = [(run.begun_s + at_s, took) for at_s, took in run.stored]
    return Sends(stored, len(run.scheduled) - len(stored), len(run.late), len(run.scheduled))


def capacity(target: BenchTarget) -> float:
    """Returns the messages per second that a group takes in a closed loop. Runs in a process of its own."""
    return closed(target, Shape(), CLOSED_S)


def begin() -> None:
    """Occupies a client process for BEGIN_S. Called once per client at the same time, it makes the pool start all
    processes and import their modules before the measurement."""
    time.sleep(BEGIN_S)


class Groups:
    """The cluster, and a client process for each group. `close` ends both."""

    def __init__(self, folder: Path) -> None:
        self.cluster = LocalCluster(folder / "data")
        self._pool = ProcessPoolExecutor(GROUPS, mp_context=get_context("spawn"))
        self.cluster.up(3, free_base_port(12 * GROUPS), groups=GROUPS)
        self.numbers = groups_of(self.cluster.nodes)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self.cluster.down()

    def prepare(self) -> dict[int, float]:
        """Makes the topic, waits until each node has it, and returns the rate of the sends to each group."""
        with raftmq.connect(self.cluster.servers) as mq:
            mq.admin.create_topic(TOPIC, queues=4)
        self._demand("the topic is at each node", self._has_topic)
        for begun in [self._pool.submit(begin) for _ in self.numbers]:
            begun.result()
        rates = {}
        for group in self.numbers:
            took = self._pool.submit(capacity, self._target(group)).result()
            rates[group] = min(RATE_MAX, SHARE * took / GROUPS)
            print(f"group {group} alone takes {took:,.0f}/s, and gets {rates[group]:,.0f}/s", file=sys.stderr)
        return rates

    def _has_topic(self) -> bool:
        try:
            for node in self.cluster.nodes:
                AdminApi([address_of(node)]).page(f"/v1/topics/{TOPIC}")
        except LocalError:
            return False
        return True

    def _is_well(self) -> bool:
        """Returns True if each node of each group has all that its leader has."""
        views = self.cluster.views()
        return all(view.ready and not any(view.lag_of(each.record.id) for each in view.nodes) for view in views)

    def _demand(self, what: str, done: Any) -> None:
        if not until(done, PATIENCE_S, 0.05):
            raise SystemExit(f"not within {PATIENCE_S:.0f} s: {what}")

    def _leader(self, group: int) -> NodeName:
        found = until(lambda: self.cluster.view(group).leader_name, PATIENCE_S, 0.05)
        if found is None:
            raise SystemExit(f"group {group} has no leader")
        return found

    def _target(self, group: int) -> BenchTarget:
        """Returns the ports of a group, its leader's first."""
        leader = self._leader(group)
        nodes = sorted(self.cluster.of_group(group), key=lambda node: node.name != leader)
        return BenchTarget(tuple(f"127.0.0.1:{node.broker_port}" for node in nodes), TOPIC)

    def kill(self, group: int, rates: dict[int, float]) -> dict[str, Any]:
        """Measures before and after the leader of `group` is killed, and starts it again. Returns the figures of the
        other groups."""
        self._demand("all nodes are caught up", self._is_well)
        seconds = BEGIN_S + 2 * SECONDS + BEGIN_S
        asked = {each: self._pool.submit(send, self._target(each), rates[each], seconds) for each in self.numbers}
        time.sleep(BEGIN_S + SECONDS)
        victim = self._leader(group)
        killed_s = time.perf_counter()
        self.cluster.kill(victim)
        time.sleep(max(0.0, killed_s + SECONDS - time.perf_counter()))
        self.cluster.restart(victim)
        found = {each: future.result() for each, future in asked.items()}
        others = [sends for each, sends in found.items() if each != group]
        before, after = (
            [sends.due(since_s, since_s + SECONDS) for sends in others] for since_s in (killed_s - SECONDS, killed_s)
        )
        figures: dict[str, Any] = {"failed": sum(sends.failed for sends in others)}
        for name, latencies in (("calm", before), ("killed", after)):
            if not all(latencies):
                raise SystemExit("the machine is too busy: a client began too late, or got no answer")
            for share in (0.5, 0.99):
                worst = max(percentile(each, share) for each in latencies)
                figures[f"p{share * 100:.0f} {name}"] = round(worst, 2)
        figures["pause s"] = round(found[group].longest_pause(killed_s, killed_s + SECONDS), 2)
        late, scheduled = (sum(getattr(each, name) for each in found.values()) for name in ("late", "scheduled"))
        return figures | {"late": round(late / scheduled, 4), "load": round(os.getloadavg()[0], 1)}


def is_kept(figures: dict[str, Any]) -> bool:
    """Returns True if killing the leader of one group hardly affected the other groups."""
    return not figures["failed"] and figures["p99 killed"] <= max(FACTOR_MAX * figures["p99 calm"], LEAST_MS)


def row(name: str, group: int, figures: dict[str, Any]) -> dict[str, Any]:
    return {"round": name, "killed": f"group {group}", **figures, "kept": "yes" if is_kept(figures) else "no"}


def main() -> None:
    """Starts the cluster in a temporary directory, measures, and ends it."""
    rows = []
    found: dict[int, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="raftmq-bench-") as folder:
        groups = Groups(Path(folder))
        try:
            rates = groups.prepare()
            for number in range(1, ROUNDS + 1):
                for group in groups.numbers:
                    figures = groups.kill(group, rates)
                    found.setdefault(group, []).append(figures)
                    rows.append(row(str(number), group, figures))
                    print(rows[-1], file=sys.stderr)
        finally:
            groups.close()
    for group, all_figures in found.items():
        medians = {name: median(figures[name] for figures in all_figures) for name in all_figures[0]}
        rows.append(row("median", group, medians))
    show(rows, f"{GROUPS} groups, the leader of one killed: latencies of the others in ms")


if __name__ == "__main__":
    main()

"""`python bench/bench_restart.py`: measures how long a restart takes, depending on the size of the log.

Three local nodes are filled with GIB (1 8) gibibytes of messages of 1 KiB each, one size after the other. At each size
all of them are killed with SIGKILL, in the middle of a load, ROUNDS (5) times; their files are dropped from the page
cache, and they are started again. The output is medians and ranges of the seconds from the first start to the first
acknowledged send, and until all three have caught up; then the same for one follower alone, while the others go on; and
the ratio of each to the first size. JSON=1 prints {"rows": [...]} alone.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from bench_pulls import drop_pages
from tables import show
from three_nodes import leader_of, load, three_nodes

import raftmq
from raftmq.local.cluster import LocalCluster

SIZES_GIB = [float(size) for size in os.environ.get("GIB", "1 8").split()]
ROUNDS = int(os.environ.get("ROUNDS", "5"))
STORED_BYTES, IN_FLIGHT = 1200, 512
DYING_S = 2.0
"""Seconds of the load during which the nodes are killed."""

Row = dict[str, Any]


def fill(cluster: LocalCluster, sent: int, gib: float) -> int:
    """Sends messages, of which `sent` are stored already, until the log has `gib` GiB; returns their number."""
    while sent * STORED_BYTES < gib * (1 << 30):
        sent += load(leader_of(cluster).broker_port, IN_FLIGHT, 5.0).messages
    return sent


def dying(cluster: LocalCluster, victims: list[int]) -> int:
    """Kills the nodes while a load runs; returns the number of messages that were acknowledged."""
    sent: list[int] = []

    def beside() -> None:
        try:
            sent.append(load(leader_of(cluster).broker_port, IN_FLIGHT, DYING_S).messages)
        except (OSError, SystemExit, EOFError):
            sent.append(0)  # its connection ends with the leader

    thread = threading.Thread(target=beside)
    thread.start()
    time.sleep(DYING_S / 2)
    for strike in [cluster.aim(node) for node in victims]:
        strike()
    thread.join()
    return sent[0]


def first_send_s(cluster: LocalCluster, begun: float) -> float:
    """Returns the seconds until a client's first send was acknowledged."""
    with raftmq.connect(cluster.servers) as mq, mq.producer() as producer:
        while True:
            try:
                producer.send("bench", b"the first")
                return time.perf_counter() - begun
            except raftmq.RaftMQError:
                time.sleep(0.01)


def restarts(cluster: LocalCluster) -> tuple[dict[str, list[float]], int]:
    """Restarts the nodes in all rounds; returns (case -> seconds of each round, messages sent meanwhile)."""
    took: dict[str, list[float]] = {"all: first ack": [], "all: caught up": [], "a follower: caught up": []}
    sent = 0
    for _ in range(ROUNDS):
        everyone = [node.id for node in cluster.nodes]
        sent += dying(cluster, everyone)
        drop_pages(cluster.data)
        begun = time.perf_counter()
        first: list[float] = []
        sender = threading.Thread(target=lambda at=begun, to=first: to.append(first_send_s(cluster, at)))
        for node in everyone:
            cluster.start(node)
        sender.start()
        cluster.wait_ready()
        took["all: caught up"].append(time.perf_counter() - begun)
        sender.join()
        took["all: first ack"] += first
        follower = next(node for node in everyone if node != cluster.wait_leader())
        sent += dying(cluster, [follower])
        home = next(node.home for node in cluster.nodes if node.id == follower)
        drop_pages(home)
        begun = time.perf_counter()
        cluster.restart(follower)
        cluster.wait_ready()
        took["a follower: caught up"].append(time.perf_counter() - begun)
    return took, sent


def main() -> None:
    """Fills and restarts the nodes, and prints the report."""
    rows: list[Row] = []
    with three_nodes() as (cluster, _):
        sent, firsts = 0, dict[str, float]()
        for gib in SIZES_GIB:
            print(f"measuring {gib:g} GiB", file=sys.stderr)
            sent = fill(cluster, sent, gib)
            took, more = restarts(cluster)
            sent += more
            for case, seconds in took.items():
                found = median(seconds)
                rows.append(
                    {
                        "GiB of log": gib,
                        "case": case,
                        "median s": round(found, 2),
                        "s": f"{min(seconds):.2f} to {max(seconds):.2f}",
                        "beside the first size": round(found / firsts.setdefault(case, found), 2),
                    }
                )
    show(rows, f"restarts after kill -9, {ROUNDS} rounds, page cache empty")


if __name__ == "__main__":
    main()

"""CPU of the nodes per message: staged, committed and copied, against plain batch sends of the same bodies.

Rounds alternate within one run on one local cluster, so that both meet the same machine. The clients' own CPU is not
counted. `python bench/bench_staged.py [--messages N] [--rounds N] [--body BYTES]`
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))

from bench_cluster import cpu_seconds

import raftmq
from raftmq.client.message import encode_properties
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port

BATCH = 1000
LIMIT_S = 300


def main() -> None:
    """Prints one line per round, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--body", type=int, default=100)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = LocalCluster(Path(folder) / "data")
        cluster.up(3, free_base_port(12))
        try:
            run(cluster, asked.messages, asked.rounds, b"x" * asked.body)
        finally:
            cluster.down()


def run(cluster: LocalCluster, messages: int, rounds: int, body: bytes) -> None:
    """Alternating rounds; the first one is not counted."""
    pids = [node.pid for node in cluster.nodes if node.pid is not None]
    shares = []
    with raftmq.connect(cluster.servers) as mq:
        mq.admin.create_topic("bench", 4)
        for number in range(rounds + 1):
            costs = []
            for way in (plain, staged):
                before, end = cpu_seconds(pids), stored(mq) + messages
                way(mq, number, messages, body)
                wait_for(mq, end)
                costs.append((cpu_seconds(pids) - before) / messages * 1e6)
            if number:
                shares.append(costs[1] / costs[0])
                print(f"round {number}: plain {costs[0]:.1f} us, staged {costs[1]:.1f} us, {shares[-1]:.2f}x")
    print(f"median: {median(shares):.2f}x")


def plain(mq: raftmq.Client, number: int, messages: int, body: bytes) -> None:
    """Batches that are acknowledged one after the other."""
    for at in range(messages // BATCH):
        mq.send_batch("bench", [body] * BATCH, queue_id=at % 4)


def staged(mq: raftmq.Client, number: int, messages: int, body: bytes) -> None:
    """The same as one attempt at a write."""
    writes = mq.staged_writes()
    attempt = writes.open("bench", number)
    assert attempt is not None
    for at in range(messages // BATCH):
        keys = (f"{attempt:08X}{at:012X}{item:012X}" for item in range(BATCH))
        items = [(body, encode_properties(key, None, None, None).encode()) for key in keys]
        writes.stage(attempt, at + 1, "bench", at % 4, items, time.time_ns() // 1_000_000)
    writes.commit("bench", number, [(attempt, messages)])


def stored(mq: raftmq.Client) -> int:
    """Messages of the topic that can be seen."""
    return sum(queue.max_offset for queue in mq.admin.describe_topic("bench").queues)


def wait_for(mq: raftmq.Client, count: int) -> None:
    """Until so many can be seen."""
    end = time.monotonic() + LIMIT_S
    while stored(mq) < count:
        assert time.monotonic() < end, "the copies do not come"
        time.sleep(0.1)


if __name__ == "__main__":
    main()

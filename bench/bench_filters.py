"""What filters cost the node that serves a pull: CPU per message that it examines, when it selects none of them.

    python bench/bench_filters.py [--messages 50000] [--bytes 1024] [--json]

Three local nodes, one client, one queue; the leader serves. Each message has a tag, a key and two properties. `*`
selects all messages: its figure is the price of sending them instead.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

import raftmq
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port

TOPIC = "filtered"
FILTERS: dict[str, dict[str, str]] = {
    "*": {},
    "tag": {"tags": "nobody"},
    "SQL92, 1 term": {"filter": "price > 1000000"},
    "SQL92, 5 terms": {
        "filter": "price BETWEEN 0 AND 1000000 AND TAGS = 'some' AND region IN ('eu', 'us') AND color IS NOT NULL"
    },
}


def fill(mq: raftmq.Client, count: int, size: int) -> None:
    """`count` messages of `size` bytes."""
    mq.admin.create_topic(TOPIC, queues=1)
    with mq.producer() as producer:
        sent = [
            producer.send_soon(
                TOPIC, b"x" * size, key=f"k{n}", tag="some", properties={"price": str(n), "region": "eu"}
            )
            for n in range(count)
        ]
    for each in sent:
        each.result()


def read(mq: raftmq.Client, leader: psutil.Process, count: int, wanted: dict[str, str]) -> dict[str, Any]:
    """Pulls the whole queue."""
    cpu, begun, offset, pulls = cpu_s(leader), time.perf_counter(), 0, 0
    while offset < count:
        offset, pulls = mq.pull(TOPIC, 0, offset, **wanted).next_offset, pulls + 1
    seconds, cpu = time.perf_counter() - begun, cpu_s(leader) - cpu
    return {
        "messages_per_second": round(count / seconds),
        "leader_cpu_us_per_message": round(cpu / count * 1e6, 1),
        "pulls": pulls,
    }


def cpu_s(process: psutil.Process) -> float:
    """Of all its threads."""
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    """Prints a row per filter, or with --json one object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--bytes", type=int, default=1024, help="of a body (default 1024)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="raftmq-bench-") as place:
        cluster = LocalCluster(Path(place) / "data")
        cluster.up(3, free_base_port(12))
        try:
            with raftmq.connect(cluster.servers) as mq:
                fill(mq, options.messages, options.bytes)
                pids = {node.id: node.pid for node in cluster.nodes}
                leader = psutil.Process(pids[cluster.wait_leader()])
                told = {name: read(mq, leader, options.messages, wanted) for name, wanted in FILTERS.items()}
        finally:
            cluster.down()
    if options.json:
        sys.stdout.write(json.dumps(told) + "\n")
        return
    for name, row in told.items():
        sys.stdout.write(f"{name:<16}" + "  ".join(f"{key} {value}" for key, value in row.items()) + "\n")


if __name__ == "__main__":
    main()

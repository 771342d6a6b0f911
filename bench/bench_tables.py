"""Measures how fresh a table that follows a topic is, and counts its rows after kills.

    python bench/bench_tables.py [--rate 5000] [--seconds 600] [--spark] [--kills 20] [--leader-kills 3] [--seed N]

Three local nodes, a topic of four queues, and a producer that sends `--rate` messages of 100 bytes a second. Meanwhile
`raftmq table run`, or with --spark `raftmq spark table`, keeps a table with a commit every second. It is killed with
SIGKILL `--kills` times, at random moments, and started again at once. So is the cluster's leader, `--leader-kills`
times.

The freshness of a message is the time from the moment at which it was stored (`store_ms`) to the moment at which the
commit with it became visible (the time of the commit's file in the Delta log). It is counted from the first commit on:
a program that keeps a table runs for weeks, and takes "first commit, s" to start, for Spark's JVM and session most of
it. A start after a kill counts.

At the end the table is completed and its small files are merged. Then each reader must find every message of the
cluster exactly once, and all acknowledged messages must be there. The exit code is 1 if this fails. JSON=1 in the
environment prints {"rows": [...]} alone.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from urllib.parse import unquote

sys.path.insert(0, str(Path(__file__).parent))

import duckdb
import numpy as np
import polars
import pyarrow.parquet as pq
from deltalake import DeltaTable
from tables import show

import raftmq
from raftmq.client.message import SendResult
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port

TOPIC = "lake"
QUEUES = 4
BODY_BYTES = 100
TICK_S = 0.02
SMALL_BYTES = 16 << 20
COUNTED = "count(*), sum(queue_offset), sum(queue_offset * queue_id), min(store_ms), max(store_ms), sum(born_ms)"
"""SQL for the figures that all readers must find alike."""


class Sender(threading.Thread):
    """Sends at a steady rate, however fast the answers come."""

    def __init__(self, servers: str, rate: float) -> None:
        super().__init__(daemon=True)
        self._servers = servers
        self._rate = rate
        self._over = threading.Event()
        self.acknowledged: list[tuple[int, int]] = []
        """(queue, offset) of each message, in the order of the answers."""
        self.failed = 0

    def run(self) -> None:
        """Sends until `end`."""
        bodies = random.Random(1)
        sent, begun_s = 0, time.monotonic()
        with raftmq.connect(self._servers) as mq, mq.producer() as producer:
            while not self._over.wait(TICK_S):
                for number in range(sent, int((time.monotonic() - begun_s) * self._rate)):
                    future = producer.send_soon(TOPIC, bodies.randbytes(BODY_BYTES), queue_id=number % QUEUES)
                    future.add_done_callback(self._answered)
                    sent = number + 1

    def end(self) -> None:
        """Stops sending, and waits until every send is answered."""
        self._over.set()
        self.join()

    def _answered(self, future: Future[SendResult]) -> None:
        if future.exception() is not None:
            self.failed += 1
        else:
            self.acknowledged.append((future.result().queue_id, future.result().queue_offset))


class Keeper:
    """The process that keeps the table."""

    def __init__(self, servers: str, folder: Path, log: Path, *, spark: bool) -> None:
        kind = ["spark", "table"] if spark else ["table", "run"]
        self.words = [sys.executable, "-m", "raftmq", *kind, TOPIC, "--to", str(folder), "--servers", servers]
        self._log = log
        self._running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the process."""
        with self._log.open("a") as out:
            self._running = subprocess.Popen([*self.words, "--every", "1s"], stdout=out, stderr=out)

    def kill(self) -> None:
        """Kills the process, which must still run."""
        assert self._running is not None
        if self._running.poll() is not None:
            raise SystemExit(f"it ended by itself:\n{self._log.read_text()[-2000:]}")
        self._running.kill()
        self._running.wait()


def strikes(args: argparse.Namespace, keeper: Keeper, cluster: LocalCluster) -> list[tuple[float, Callable[[], None]]]:
    """Returns the kills at random times: (second of the run, function that does it), in the order of time."""
    chance = random.Random(args.seed)

    def again() -> None:
        keeper.kill()
        keeper.start()

    def leaderless() -> None:
        leader = next(node.name for node in cluster.nodes if node.id == cluster.wait_leader())
        cluster.kill(leader)
        cluster.restart(leader)

    acts = [again] * args.kills + [leaderless] * args.leader_kills
    return sorted([(chance.uniform(0.03, 0.97) * args.seconds, act) for act in acts], key=lambda each: each[0])


Array = np.ndarray[Any, Any]


def stored_and_visible_ms(folder: Path) -> tuple[Array, Array]:
    """Returns for each row the times in ms since the epoch at which it was stored, and visible in the table."""
    stored: list[Array] = []
    visible: list[Array] = []
    for commit in sorted((folder / "_delta_log").glob("*.json")):
        for line in commit.read_text().splitlines():
            added = json.loads(line).get("add")
            if added and added["dataChange"]:
                rows = pq.read_table(folder / unquote(added["path"]), columns=["store_ms"], partitioning=None)
                stored.append(rows["store_ms"].cast("int64").to_numpy())
                visible.append(np.full(len(stored[-1]), commit.stat().st_mtime * 1e3))
    return np.concatenate(stored), np.concatenate(visible)


def readings(folder: Path, *, spark: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields (name of the reader, the figures of COUNTED that it finds)."""
    table = DeltaTable(str(folder))
    rows = table.to_pyarrow_dataset()  # noqa: F841 - DuckDB finds it by its name
    yield "DuckDB", tuple(map(int, duckdb.sql(f"SELECT {COUNTED} FROM rows").fetchall()[0]))
    found = polars.SQLContext(rows=polars.scan_delta(str(folder)), eager=True).execute(f"SELECT {COUNTED} FROM rows")
    yield "Polars", tuple(map(int, found.row(0)))
    if spark:
        from pyspark_raftmq import session

        running = session()
        read = running.read.option("basePath", str(folder)).parquet(*table.file_uris())
        read.createOrReplaceTempView("rows")
        yield "Spark", tuple(map(int, running.sql(f"SELECT {COUNTED} FROM rows").collect()[0]))
        running.stop()


def faults(folder: Path, mq: raftmq.Client, acknowledged: list[tuple[int, int]]) -> list[str]:
    """Returns in words the messages that the table lacks or has twice; [] if there are none."""
    rows = DeltaTable(str(folder)).to_pyarrow_dataset()  # noqa: F841
    per_queue = (
        "SELECT queue_id, count(*), count(DISTINCT queue_offset), min(queue_offset), max(queue_offset) FROM rows"
    )
    found = {queue: rest for queue, *rest in duckdb.sql(f"{per_queue} GROUP BY queue_id").fetchall()}
    wrong, ends = [], {}
    for queue in mq.admin.describe_topic(TOPIC).queues:
        stored, ends[queue.queue_id] = queue.max_offset - queue.min_offset, queue.max_offset
        if stored and found.get(queue.queue_id) != [stored, stored, queue.min_offset, queue.max_offset - 1]:
            wrong.append(f"queue {queue.queue_id} has {stored}: {found.get(queue.queue_id)}")
    lost = [each for each in acknowledged if each[1] >= ends[each[0]]]
    return wrong + ([f"{len(lost)} acknowledged messages are nowhere"] if lost else [])


def small_files(folder: Path) -> int:
    """Returns the largest number of files below 16 MiB that hold rows of one queue."""
    counts: defaultdict[int, int] = defaultdict(int)
    for name in DeltaTable(str(folder)).file_uris():
        path = Path(unquote(name.removeprefix("file://")))
        if path.stat().st_size < SMALL_BYTES:
            for queue in pq.read_table(path, columns=["queue_id"], partitioning=None)["queue_id"].unique().to_pylist():
                counts[queue] += 1
    return max(counts.values(), default=0)


def measured(args: argparse.Namespace, home: Path) -> dict[str, Any]:
    """Runs the load, and returns the row of figures."""
    cluster, folder = LocalCluster(home / "data"), home / "table"
    cluster.up(3, base_port=free_base_port(12))
    try:
        with raftmq.connect(cluster.servers) as mq:
            mq.admin.create_topic(TOPIC, QUEUES)
            sender = Sender(cluster.servers, args.rate)
            keeper = Keeper(cluster.servers, folder, home / "log", spark=args.spark)
            sender.start()
            keeper.start()
            begun_s, begun_ms = time.monotonic(), time.time() * 1e3
            for at_s, act in strikes(args, keeper, cluster):
                time.sleep(max(0.0, begun_s + at_s - time.monotonic()))
                act()
            time.sleep(max(0.0, begun_s + args.seconds - time.monotonic()))
            sender.end()
            keeper.kill()
            ended_ms = time.time() * 1e3
            subprocess.run([*keeper.words, "--once"], check=True, capture_output=True)
            stored, visible = stored_and_visible_ms(folder)
            first_ms = visible.min()
            ages = (visible - stored)[(stored >= first_ms) & (visible <= ended_ms)]
            subprocess.run(
                [sys.executable, "-m", "raftmq", "table", "compact", str(folder)], check=True, capture_output=True
            )
            found = dict(readings(folder, spark=args.spark))
            wrong = faults(folder, mq, sender.acknowledged)
            if len(set(found.values())) != 1:
                wrong.append(f"readers differ: {found}")
            return {
                "kept by": "spark table" if args.spark else "table run",
                "messages": len(stored),
                "acknowledged": len(sender.acknowledged),
                "unknown": sender.failed,
                "first commit, s": round(float(first_ms - begun_ms) / 1e3, 1),
                "freshness p50, s": round(float(np.percentile(ages, 50)) / 1e3, 2),
                "p99": round(float(np.percentile(ages, 99)) / 1e3, 2),
                "most": round(float(ages.max()) / 1e3, 2),
                "small files of a queue": small_files(folder),
                "wrong": "; ".join(wrong) or "nothing",
            }
    finally:
        cluster.down()


def main() -> None:
    """Measures, and prints the row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=5000)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--leader-kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="raftmq-bench-") as home:
        row = measured(args, Path(home))
    show([row], f"{args.kills} kills of the keeper, {args.leader_kills} of the leader; seed {args.seed}")
    if row["wrong"] != "nothing":
        raise SystemExit(1)


if __name__ == "__main__":
    main()

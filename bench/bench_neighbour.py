"""`python bench/bench_neighbour.py`: measures how much a client that sends as fast as the nodes accept slows down other
users.

In alternating rounds, an open loop sends RATE (300) messages of 1 KiB a second to a topic: alone, and beside a producer
of RocketMQ's Java client with 1,000 asynchronous sends in flight and CONNECTIONS (200) connections of our client with
four sends in flight each, all of them to another topic. The neighbour's programs run at a lower priority (nice 10), and
the open loop at a real-time one, since clients are other machines. If Java is missing, or Maven to fetch the Java
client, the rows say so. There are ROUNDS (3) rounds; each half of a round takes SECONDS (12). With JSON=1 in the
environment {"rows": [...]} alone.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from tables import show
from three_nodes import three_nodes

import raftmq
from bench.peers.fetch import ROCKETMQ, ROOT, rocketmq
from bench.peers.system import Unavailable
from jepsen_like.live.stories.open_load import OpenLoad
from raftmq.client.client import AsyncClient

RATE = float(os.environ.get("RATE") or "300")
ROUNDS = int(os.environ.get("ROUNDS") or "3")
SECONDS = float(os.environ.get("SECONDS") or "12")
CONNECTIONS = int(os.environ.get("CONNECTIONS") or "200")
IN_FLIGHT, JAVA_IN_FLIGHT = 4, 1000
NICE = 10
WARM_UP_S = 4.0
"""Seconds for a JVM to start and 200 connections to open."""
OURS, NEIGHBOURS = "ours", "neighbours"


async def flood(server: str, seconds: float) -> tuple[int, int]:
    """Sends over all connections for `seconds`. Returns (messages that were stored, messages that were not)."""
    clients = [AsyncClient([server], timeout_s=30.0) for _ in range(CONNECTIONS)]
    end, stored, failed = time.monotonic() + seconds, 0, 0

    async def line(producer: Any) -> None:
        nonlocal stored, failed
        while time.monotonic() < end:
            try:
                await producer.send(NEIGHBOURS, b"n" * 1024)
                stored += 1
            except raftmq.RaftMQError:
                failed += 1
                await asyncio.sleep(0.05)

    producers = [client.producer() for client in clients]
    await asyncio.gather(*(line(producer) for producer in producers for _ in range(IN_FLIGHT)))
    await asyncio.gather(*(client.close() for client in clients))
    return stored, failed


def java_command(servers: str, seconds: float) -> list[str] | None:
    """Returns the command of the Java producer; None without Java or its client."""
    java = shutil.which("java")
    try:
        jars = rocketmq(ROCKETMQ)
    except Unavailable as missing:
        print(f"without the Java client: {missing}", file=sys.stderr)
        return None
    source = ROOT / "bench" / "neighbour" / "FloodClient.java"
    options = [servers, NEIGHBOURS, str(JAVA_IN_FLIGHT), str(seconds)]
    return [str(java), "-Xmx512m", "-cp", f"{jars}/*", str(source), *options]


def neighbour(servers: str) -> list[subprocess.Popen[str]]:
    """Starts the neighbour's programs, which end some seconds after a half of a round."""
    seconds = SECONDS + WARM_UP_S
    commands = [[sys.executable, "-P", __file__, servers.split(";")[0], str(seconds)], java_command(servers, seconds)]
    return [
        subprocess.Popen(
            ["nice", "-n", str(NICE), *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        for command in commands
        if command is not None
    ]


def open_loop(servers: str) -> dict[str, Any]:
    """Measures our own topic for half a round and returns the figures. Raises StoryEnds."""
    with OpenLoad(servers, OURS, ["--rate", str(RATE)], SECONDS, connections=2) as load:
        run: dict[str, Any] = load.report()["runs"][0]
    return run


def row(name: str, run: dict[str, Any], others: list[tuple[int, int]]) -> dict[str, Any]:
    return {
        "": name,
        "stored/s": round(run["stored_per_second"], 1),
        "p50 ms": run["p50_ms"],
        "p99 ms": run["p99_ms"],
        "p999 ms": run["p999_ms"],
        "refused": sum(run["refused"].values()),
        "unknown": run["unknown"],
        "late": f"{run['late'] / run['arrivals']:.2%}",
        "neighbour stored/s": round(sum(stored for stored, _ in others) / (SECONDS + WARM_UP_S)),
        "neighbour failed": sum(failed for _, failed in others),
    }


def main() -> None:
    """Starts the cluster in a temporary directory, measures, and ends it."""
    if len(sys.argv) > 1:
        print(*asyncio.run(flood(sys.argv[1], float(sys.argv[2]))))
        return
    rows, alone, beside = list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, Any]]()
    with three_nodes() as (cluster, _):
        servers = ";".join(f"127.0.0.1:{node.broker_port}" for node in cluster.nodes)
        with raftmq.connect(cluster.servers, **cluster.client_options) as client:
            for topic in (OURS, NEIGHBOURS):
                client.admin.create_topic(topic, queues=4)
        for number in range(1, ROUNDS + 1):
            alone.append(open_loop(servers))
            rows.append(row(f"{number}: alone", alone[-1], []))
            with ExitStack() as ends:
                programs = neighbour(servers)
                for program in programs:
                    ends.callback(program.kill)
                time.sleep(WARM_UP_S)
                beside.append(open_loop(servers))
                told = [program.communicate()[0].split()[-2:] for program in programs]
            rows.append(row(f"{number}: beside", beside[-1], [(int(stored), int(failed)) for stored, failed in told]))
    show(rows, "users beside a neighbour who sends as much as the nodes take")
    if not os.environ.get("JSON"):
        goodput = median(each["stored_per_second"] for each in beside) / median(
            each["stored_per_second"] for each in alone
        )
        quiet, noisy = (median(each["p99_ms"] for each in runs) for runs in (alone, beside))
        print(f"goodput beside the neighbour {goodput:.3f} of that alone; p99 {noisy:.1f} ms, {quiet:.1f} ms alone")


if __name__ == "__main__":
    main()

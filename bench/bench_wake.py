"""`make bench-wake`: measures the cost of a message on three nodes when few are in flight, and when many connections
send one message each.

First it counts system calls, voluntary switches and CPU of each node per message at 1 in flight, and the share of its
appends that were done on the event loop (ADR 0056), which is small on a busy machine. System calls need `perf` and the
right to count them; without it the table has only the figures of /proc. Then it varies connections x requests in
flight, for RaftMQ and an echo server (bench/echo_server.py) in alternating ROUNDS (3): CPU per message, the leader's
and a follower's part of it, and p50. `ratio` is the CPU compared with that of one connection with as many in flight,
medians of the rounds.

With JSON=1 it prints only {"wake": [...], "connections": [...]}. SECONDS_PER_ROW (2) is the duration of each load.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from bench_cluster import cpu_seconds, percentile
from rich.table import Table
from tables import console
from three_nodes import load, three_nodes

from raftmq.local.process import free_base_port

HERE = Path(__file__).parent
SECONDS = float(os.environ.get("SECONDS_PER_ROW") or "2")
ROUNDS = int(os.environ.get("ROUNDS") or "3")
LOADS = [(1, 512), (16, 32), (128, 4), (500, 1)]
"""The loads: (connections, requests in flight on each). Loads after the first are compared with the first."""
CALLS = ("futex", "epoll_pwait", "read", "write", "writev", "pwritev2", "fdatasync")
EVENTS = [*(f"syscalls:sys_enter_{call}" for call in CALLS), "raw_syscalls:sys_enter"]


class Target(NamedTuple):
    """A system under load: three RaftMQ nodes, or the echo server."""

    name: str
    port: int
    pids: list[int]
    """The pids of its processes, the leader's first."""
    admin: tuple[str, ...] = ()
    """The address of each node's metrics."""


# --- one in flight ----------------------------------------------------------------------------------------------------


def switches(pid: int) -> int:
    """Returns the voluntary context switches of all threads of a process so far."""
    texts = [(task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0]) for text in texts)


def appends(url: str) -> tuple[float, float]:
    """Returns (all writes of a node to its log so far, those of them that ran on its event loop)."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    found = dict(line.split() for line in lines if line.startswith("raftmq_append") and "{" not in line)
    return float(found["raftmq_append_seconds_count"]), float(found["raftmq_appends_inline_total"])


@contextmanager
def counted(pids: list[int], into: Path) -> Iterator[bool]:
    """Counts the system calls of each process into its own file; yields False if perf cannot count them."""
    perf = shutil.which("perf")
    if perf is None:
        yield False
        return
    command = [perf, "stat", "-x;", "-e", ",".join(EVENTS)]
    running = [
        subprocess.Popen([*command, "-p", str(pid), "-o", str(into / str(pid))], stderr=subprocess.DEVNULL)
        for pid in pids
    ]
    time.sleep(1.0)  # perf needs time to attach to the processes
    try:
        yield all(process.poll() is None for process in running)
    finally:
        for process in running:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.wait()


def calls_of(file: Path, messages: int) -> dict[str, float]:
    """Reads perf's output. Returns system call -> its number per message."""
    found = {}
    for line in file.read_text().splitlines():
        fields = line.split(";")
        if len(fields) > 2 and fields[0].isdigit():
            name = "all calls" if fields[2].startswith("raw") else fields[2].split("enter_")[1]
            found[name] = round(int(fields[0]) / messages, 2)
    return found


def wake(cluster: Target) -> list[dict[str, Any]]:
    """Returns a row for each node. The figures of /proc come from a load during which no system calls are counted,
    because counting costs CPU."""
    load(cluster.port, 1, SECONDS)
    written = [appends(url) for url in cluster.admin]
    before = [(cpu_seconds([pid]), switches(pid)) for pid in cluster.pids]
    result = load(cluster.port, 1, SECONDS)
    after = [(cpu_seconds([pid]), switches(pid)) for pid in cluster.pids]
    grown = [(now[0] - was[0], now[1] - was[1]) for now, was in zip(map(appends, cluster.admin), written, strict=True)]
    rows: list[dict[str, Any]] = []
    for number, ((cpu, slept), (cpu_after, slept_after)) in enumerate(zip(before, after, strict=True)):
        rows.append(
            {
                "node": "follower" if number else "leader",
                "cpu_us": round((cpu_after - cpu) * 1e6 / result.messages, 1),
                "on the loop": round(grown[number][1] / grown[number][0], 2),
                "switches": round((slept_after - slept) / result.messages, 2),
                "p50_ms": round(percentile(result.latencies_ms, 0.5), 2),
            }
        )
    with tempfile.TemporaryDirectory() as directory:
        with counted(cluster.pids, Path(directory)) as counts:
            result = load(cluster.port, 1, SECONDS)
        for row, pid in zip(rows, cluster.pids, strict=True):
            row["calls"] = calls_of(Path(directory, str(pid)), result.messages) if counts else {}
    return rows


# --- many connections -------------------------------------------------------------------------------------------------


def measured(target: Target, connections: int, in_flight: int) -> dict[str, float]:
    """Runs one load on one system and returns the figures."""
    before = [cpu_seconds([pid]) for pid in target.pids]
    result = load(target.port, in_flight, SECONDS, connections=connections)
    spent = [(cpu_seconds([pid]) - was) * 1e6 / result.messages for pid, was in zip(target.pids, before, strict=True)]
    return {
        "cpu_us": sum(spent),
        "leader_us": spent[0],
        "follower_us": sum(spent[1:]) / max(1, len(spent) - 1),
        "p50_ms": percentile(result.latencies_ms, 0.5),
    }


def connections_table(targets: list[Target]) -> list[dict[str, Any]]:
    """Runs all loads on all systems in turns; returns medians of the rounds."""
    found: dict[tuple[str, tuple[int, int]], list[dict[str, float]]] = {}
    for number in range(ROUNDS):
        for shape in LOADS:
            for target in targets if number % 2 else targets[::-1]:
                found.setdefault((target.name, shape), []).append(measured(target, *shape))
    rows = []
    for target in targets:
        base = 0.0
        for shape in LOADS:
            rounds = found[target.name, shape]
            row: dict[str, Any] = {"system": target.name, "connections": shape[0], "in_flight_each": shape[1]}
            row |= {name: round(median(each[name] for each in rounds), 2) for name in rounds[0]}
            base = base or row["cpu_us"]
            rows.append(row | {"ratio": round(row["cpu_us"] / base, 2) if base else 0.0})
    return rows


# --- all of it --------------------------------------------------------------------------------------------------------


def report(one: list[dict[str, Any]], many: list[dict[str, Any]]) -> None:
    """Prints the tables."""
    if os.environ.get("JSON"):
        print(json.dumps({"wake": one, "connections": many}))
        return
    names = [*(name for name in one[0] if name != "calls"), *one[0]["calls"]]
    table = Table(*names, title="1 in flight, per message")
    for row in one:
        table.add_row(*[str(row.get(name, row["calls"].get(name, ""))) for name in names])
    console().print(table)
    table = Table(*many[0], title=f"connections x in flight, medians of {ROUNDS} rounds in turns")
    for row in many:
        table.add_row(*[str(value) for value in row.values()])
    console().print(table)


def main() -> None:
    """Starts a cluster in a temporary directory and the echo server, measures them, and ends both."""
    echo_port = free_base_port(1)
    with three_nodes() as (cluster, leader):
        echo = subprocess.Popen([sys.executable, str(HERE / "echo_server.py"), str(echo_port)])
        try:
            nodes = sorted(cluster.nodes, key=lambda node: node.id != leader.id)
            admin = tuple(f"http://127.0.0.1:{node.admin_port}" for node in nodes)
            raftmq = Target("raftmq", leader.broker_port, [node.pid for node in nodes], admin)
            load(raftmq.port, 16, 1.0)
            one = wake(raftmq)
            many = connections_table([raftmq, Target("echo", echo_port, [echo.pid])])
        finally:
            echo.terminate()
            echo.wait()
    report(one, many)


if __name__ == "__main__":
    main()

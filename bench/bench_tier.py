"""`python bench/bench_tier.py [read] [share] [produce] [growth]`: what the tier costs and gives; all four by default.

read     a topic of GIB (1) gibibytes is read from its first message to its last: from the nodes' disks, and from a tier
         on this disk after the nodes have given the log up. Page cache and the tier's cache are empty before each
         round. Rate, and the growth of the memory of the node that serves (without the pages of files).
share    a topic that is 1 % of the log is read from the tier: bytes and requests that come from the store, per byte and
         message of the topic.
produce  512 requests in flight at a cluster without and at one with a tier, in PAIRS (30) of rounds of PRODUCE_S (2)
         seconds; a cluster stands still (SIGSTOP) while the other one is measured. First both keep everything, then
         both keep 128 MiB on their disks: one trims, the other evicts. The mean of the pairs' ratios with its standard
         error, for machines whose speed changes; pairs in which the host took 4 % or more are left out. The most that
         was not in the tier after a round.
growth   bytes of RocksDB on the leader after 1, 2, 4 and 8 gibibytes went into the tier (GROWTH_GIB=8).

ROUNDS=3. With JSON=1 only {"rows": [...]} is printed.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

import psutil
import uvloop

sys.path.insert(0, str(Path(__file__).parent))

from bench_pulls import drop_pages
from load import run
from prometheus_client.parser import text_string_to_metric_families
from pull_load import heartbeat_frame, pull_frame
from rich.table import Table
from tables import console

from cluster.config.local_layout import NodeRecord
from raftmq.commands.bench_load import request_frame
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port

ROUNDS = int(os.environ.get("ROUNDS", "3"))
GIB = float(os.environ.get("GIB", "1"))
GROWTH_GIB = int(os.environ.get("GROWTH_GIB", "8"))
QUEUES = 4
BODY_BYTES = 1024
STORED_BYTES = 1200
"""Of log per message, roughly: how many are sent for a gibibyte."""
PER_PULL = 256
PULL_BYTES = 4 << 20
KEPT_BYTES = 128 << 20
"""Of log that the nodes of a cluster with a tier keep."""
PATIENCE_S = 300.0
ONE_PART = 100
"""One message of so many goes to the small topic."""
PRODUCE_S = float(os.environ.get("PRODUCE_S", "2"))
PAIRS = int(os.environ.get("PAIRS", "30"))
STOLEN_MAX = 0.04
"""Of a round: beyond, the pair says more of the host than of the tier."""

Row = dict[str, Any]


class Nodes:
    """Three nodes, and the one that leads."""

    def __init__(self, folder: Path, tier: str | None, *, keeps_all: bool) -> None:
        self.folder = folder
        self.tiered = tier is not None
        self._keeps_all = keeps_all
        kept = {"RAFTMQ_RETENTION__BYTES_MAX": str(KEPT_BYTES), "RAFTMQ_RETENTION__EVERY_MS": "1000"}
        own = {"RAFTMQ_TIER__EVICT": "true", "RAFTMQ_TIER__STATE_EVERY_MS": "0"} if tier else {}
        own |= {} if keeps_all else kept
        os.environ.update(own)
        try:
            self._cluster = LocalCluster(folder / "data")
            self._cluster.up(3, base_port=free_base_port(12), tier=tier)
        finally:
            for name in own:
                del os.environ[name]

    def leader(self) -> NodeRecord:
        """As the nodes say now."""
        wanted = self._cluster.wait_leader()
        return next(node for node in self._cluster.nodes if node.id == wanted)

    def again(self) -> None:
        """Stops and starts the nodes; the tier's cache and the page cache are empty then."""
        self._cluster.down()
        for cache in self.folder.rglob("tier-cache"):
            shutil.rmtree(cache)
        self._cluster.up()
        self.forget()

    def forget(self) -> None:
        """Empties the page cache of the nodes' files and the store's."""
        drop_pages(self.folder)

    def signal(self, number: int) -> None:
        """To every node."""
        for node in self._cluster.nodes:
            assert node.pid is not None
            os.kill(node.pid, number)

    def wait_sending(self) -> None:
        """Returns when sends are answered again. It stood still: its leader may be another one."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                send(self, "bench", 0, seconds=0.3)
            except (OSError, SystemExit):
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
            else:
                return

    def down(self) -> None:
        """Ends the nodes."""
        self._cluster.down()

    def metrics(self) -> dict[str, float]:
        """Of the leader: sums over the labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.leader().admin_port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for one in family.samples:
                found[one.name] = found.get(one.name, 0.0) + one.value
        return found

    def wait_tiered(self) -> None:
        """Returns when every sealed segment is in the tier, and the nodes have given up what they need not keep."""
        until = time.monotonic() + PATIENCE_S
        while True:
            now = self.metrics()
            fits = self._keeps_all or now["raftmq_log_bytes"] < KEPT_BYTES + (160 << 20)
            if not now["raftmq_tier_pending_bytes"] and fits:
                return
            if time.monotonic() > until:
                raise SystemExit(f"not in the tier after {PATIENCE_S:g} s: {now['raftmq_tier_pending_bytes']} pending")
            time.sleep(0.5)


@contextmanager
def nodes(*, tiered: bool, keeps_all: bool = False) -> Iterator[Nodes]:
    """A cluster in a directory of its own, with a store beside it."""
    with tempfile.TemporaryDirectory(prefix="raftmq-bench-") as name:
        made = Nodes(Path(name), f"file://{name}/store" if tiered else None, keeps_all=keeps_all)
        try:
            yield made
        finally:
            made.down()


def send(cluster: Nodes, topic: str, messages: int, *, seconds: float = 0.0) -> float:
    """At least so many, or for so long; messages per second."""
    port, sent, spent = cluster.leader().broker_port, 0, 0.0
    while sent < messages or spent < seconds:
        part = seconds or max(0.2, min(5.0, (messages - sent) / 20_000))
        result = run(
            "127.0.0.1", port, topic=topic, size=BODY_BYTES, batch=1, in_flight=512, seconds=part, queues=QUEUES
        )
        if result.errors:
            raise SystemExit(f"{result.errors} sends were refused: nothing was measured")
        sent, spent = sent + result.messages, spent + result.seconds
    return sent / spent


# --- reading ---------------------------------------------------------------------------------------------------------


class Read(NamedTuple):
    """A topic was read to its end."""

    messages: int
    size_bytes: int
    seconds: float


async def _read_queue(port: int, topic: str, queue: int) -> tuple[int, int]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(heartbeat_frame(topic))
    await _answer(reader)
    offset = size = 0
    while True:
        writer.write(pull_frame(topic, 1, queue, offset, PER_PULL, PULL_BYTES))
        header, body = await _answer(reader)
        if header["code"] != 0:
            raise SystemExit(f"{topic}, queue {queue}, offset {offset}: {header}")
        offset, size = int(header["extFields"]["nextBeginOffset"]), size + body
        if offset >= int(header["extFields"]["maxOffset"]):
            writer.close()
            return offset, size


async def _answer(reader: asyncio.StreamReader) -> tuple[dict[str, Any], int]:
    head = await asyncio.wait_for(reader.readexactly(8), PATIENCE_S)
    size, header = int.from_bytes(head[:4], "big"), int.from_bytes(head[5:], "big")
    data = await reader.readexactly(size - 4)
    return json.loads(data[:header]), size - 4 - header


async def _read(port: int, topic: str) -> Read:
    begun = time.perf_counter()
    done = await asyncio.gather(*[_read_queue(port, topic, queue) for queue in range(QUEUES)])
    return Read(sum(one[0] for one in done), sum(one[1] for one in done), time.perf_counter() - begun)


def read(cluster: Nodes, topic: str) -> Read:
    """A consumer for each queue, each pull behind the one before."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_read(cluster.leader().broker_port, topic))


class Memory(threading.Thread):
    """The most that a process has besides pages of files, in bytes."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._process = psutil.Process(pid)
        self._ended = threading.Event()
        self.idle = self.most = self._now()

    def _now(self) -> int:
        memory = self._process.memory_info()
        return int(memory.rss - memory.shared)

    def run(self) -> None:
        """Until `end`."""
        while not self._ended.wait(0.02):
            self.most = max(self.most, self._now())

    def end(self) -> float:
        """MiB above what it was at the start."""
        self._ended.set()
        self.join()
        return (self.most - self.idle) / (1 << 20)


def read_rows() -> Iterator[Row]:
    """From the disk and from the tier, in turns."""
    with nodes(tiered=False, keeps_all=True) as local, nodes(tiered=True) as tiered:
        for cluster in (local, tiered):
            send(cluster, "big", int(GIB * (1 << 30) / STORED_BYTES))
        tiered.wait_tiered()
        found: dict[bool, list[tuple[Read, float]]] = {False: [], True: []}
        for _ in range(ROUNDS):
            for cluster in (local, tiered):
                cluster.again()
                memory = Memory(cluster.leader().pid or 0)
                memory.start()
                found[cluster.tiered].append((read(cluster, "big"), memory.end()))
    for is_tier, runs in found.items():
        yield {
            "section": "read",
            "case": "tier" if is_tier else "local disk",
            "MiB": round(runs[0][0].size_bytes / (1 << 20)),
            "MB/s": round(median(run.size_bytes / run.seconds for run, _ in runs) / 1e6, 1),
            "MiB above idle": round(max(memory for _, memory in runs), 1),
        }


def share_rows() -> Iterator[Row]:
    """The small topic's messages lie apart in the log: one of a hundred."""
    with nodes(tiered=True) as cluster:
        rounds = int(GIB * (1 << 30) / STORED_BYTES / ONE_PART / 100)
        for _ in range(rounds):
            send_exactly(cluster, {"big": 99 * 100, "small": 100})
        cluster.wait_tiered()
        cluster.again()
        before = cluster.metrics()
        done = read(cluster, "small")
        after = cluster.metrics()
    fetched = after["raftmq_tier_received_bytes_total"] - before["raftmq_tier_received_bytes_total"]
    asked = after["raftmq_tier_requests_total"] - before["raftmq_tier_requests_total"]
    yield {
        "section": "share",
        "case": "1 % of the log",
        "messages": done.messages,
        "bytes per byte": round(fetched / done.size_bytes, 2),
        "requests per message": round(asked / done.messages, 3),
        "MB/s": round(done.size_bytes / done.seconds / 1e6, 1),
    }


def send_exactly(cluster: Nodes, wanted: dict[str, int]) -> None:
    """So many of each topic, mixed evenly."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_send_exactly(cluster.leader().broker_port, wanted))


async def _send_exactly(port: int, wanted: dict[str, int]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    total, body = sum(wanted.values()), bytes(BODY_BYTES)
    few = min(wanted, key=lambda topic: wanted[topic])
    many = max(wanted, key=lambda topic: wanted[topic])
    step = total // wanted[few]
    frames = [
        request_frame(few if number % step == 0 else many, number, number // step % QUEUES, 1, body)
        for number in range(total)
    ]
    for at in range(0, total, 512):
        part = frames[at : at + 512]
        writer.write(b"".join(part))
        for _ in part:
            header, _ = await _answer(reader)
            if header["code"] != 0:
                raise SystemExit(f"a send was refused: {header}")
    writer.close()


# --- writing ---------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    """One round of each cluster, next to each other in time."""

    plain: float
    tiered: float
    """Messages per second."""
    stolen: float
    """The share of the processors that the host took meanwhile, in the worse of the two."""
    pending: float
    """MiB that were not in the tier after it."""


def produce_rows() -> Iterator[Row]:
    """Without a tier and with one, in turns; the nodes keep everything, or only so much."""
    for keeps_all in (True, False):
        with nodes(tiered=False, keeps_all=keeps_all) as plain, nodes(tiered=True, keeps_all=keeps_all) as tiered:
            pairs = _in_turns(plain, tiered)
        quiet = [pair for pair in pairs if pair.stolen < STOLEN_MAX]
        if len(quiet) < 2:
            raise SystemExit(
                f"the host took {STOLEN_MAX:.0%} or more in {len(pairs) - len(quiet)} of {len(pairs)} pairs: try later"
            )
        logs = [math.log(pair.tiered / pair.plain) for pair in quiet]
        yield {
            "section": "produce",
            "case": "all is kept" if keeps_all else f"{KEPT_BYTES >> 20} MiB are kept",
            "without a tier": round(median(pair.plain for pair in quiet)),
            "with it": round(median(pair.tiered for pair in quiet)),
            "ratio (mean of pairs)": round(math.exp(fmean(logs)), 3),
            "standard error": round(stdev(logs) / math.sqrt(len(logs)), 3),
            "median of pairs": round(median(pair.tiered / pair.plain for pair in quiet), 3),
            "pairs": f"{len(quiet)} of {len(pairs)}",
            "pending MiB, first and second half": [round(max(part), 1) for part in _halves([p.pending for p in pairs])],
        }


def _in_turns(plain: Nodes, tiered: Nodes) -> list[Pair]:
    for cluster in (plain, tiered):
        send(cluster, "bench", 0, seconds=3.0)
        cluster.signal(signal.SIGSTOP)
    pairs = []
    try:
        for number in range(PAIRS):
            order = (plain, tiered) if number % 2 == 0 else (tiered, plain)
            found = {cluster.tiered: _round(cluster) for cluster in order}
            worse = max(found[False][1], found[True][1])
            pairs.append(Pair(found[False][0], found[True][0], worse, found[True][2]))
    finally:
        for cluster in (plain, tiered):
            cluster.signal(signal.SIGCONT)
    return pairs


def _round(cluster: Nodes) -> tuple[float, float, float]:
    """(messages per second, share that the host took, MiB pending) of a cluster that stands still before and after."""
    cluster.signal(signal.SIGCONT)
    cluster.wait_sending()
    began = psutil.cpu_times()
    try:
        rate = send(cluster, "bench", 0, seconds=PRODUCE_S)
    except SystemExit:  # another leader meanwhile: as if the host had taken everything
        cluster.signal(signal.SIGSTOP)
        return 0.0, 1.0, 0.0
    spent = [after - before for before, after in zip(began, psutil.cpu_times(), strict=True)]
    pending = cluster.metrics()["raftmq_tier_pending_bytes"] / (1 << 20) if cluster.tiered else 0.0
    cluster.signal(signal.SIGSTOP)
    return rate, spent[began._fields.index("steal")] / sum(spent), pending


def _halves(values: list[float]) -> tuple[list[float], list[float]]:
    middle = len(values) // 2
    return values[:middle], values[middle:]


def growth_rows() -> Iterator[Row]:
    """RocksDB beside a tier that grows."""
    with nodes(tiered=True) as cluster:
        gib = 1
        while gib <= GROWTH_GIB:
            while cluster.metrics()["raftmq_tier_verified_position"] < gib << 30:
                send(cluster, "bench", 100_000)
            cluster.wait_tiered()
            time.sleep(15)  # rows of what was evicted go with the next flushes and compactions
            home = cluster.leader().home
            files = [path.stat().st_size for path in home.rglob("*.sst") if "checkpoint" not in str(path)]
            yield {"section": "growth", "case": f"{gib} GiB tiered", "RocksDB MiB": round(sum(files) / (1 << 20), 2)}
            gib *= 2


SECTIONS = {"read": read_rows, "share": share_rows, "produce": produce_rows, "growth": growth_rows}


def main() -> None:
    """Runs the named sections."""
    names = sys.argv[1:] or list(SECTIONS)
    if wrong := [name for name in names if name not in SECTIONS]:
        raise SystemExit(f"there is no section {wrong[0]}; there are {', '.join(SECTIONS)}")
    rows = []
    for name in names:
        print(f"measuring {name}", file=sys.stderr)
        rows += list(SECTIONS[name]())
    if os.environ.get("JSON"):
        print(json.dumps({"rows": rows}))
        return
    for name in names:
        of_section = [{key: row[key] for key in row if key != "section"} for row in rows if row["section"] == name]
        table = Table(*of_section[0], title=name)
        for row in of_section:
            table.add_row(*[str(value) for value in row.values()])
        console().print(table)


if __name__ == "__main__":
    main()

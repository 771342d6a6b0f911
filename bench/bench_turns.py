"""`python bench/bench_turns.py`: what large acts of one client do to everybody else.

Each act has a new cluster of three local nodes and runs beside 512 sends of 1 KiB in flight, after the same load alone
for as long. A process of its own asks every node for small things (a pull, a queue's end, a heartbeat, health) and
keeps the longest wait. Printed for each act, as medians of ROUNDS (1): sends' p99 alone and beside it, the longest wait
of a small request, the longest turn of a node by the CPU clock of its loop and what it was, the leader's changes, the
most memory of a node, and what the act itself took. ACTS=delete,topics,wake,join,checkpoint; SECONDS=60; SCALE=1 is
10,000,000 messages, 100,000 topics, 100,000 pulls, 2,000 consumers. JSON=1 prints {"rows": [...]} alone.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, cast

import psutil

sys.path.insert(0, str(Path(__file__).parent))

from load import run
from prometheus_client.parser import text_string_to_metric_families
from rich.progress import track
from rich.table import Table
from tables import console

from cluster.config.local_layout import NodeRecord
from jepsen_like.hostile.turns import beat_of, pull_fields, topic_fields
from jepsen_like.hostile.wire import Answer, Wire, ask_http, request
from raftmq.commands.bench_load import batch_body, whole_frames
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from raftmq_wire.codes import RequestCode

SCALE = float(os.environ.get("SCALE", "1"))
SECONDS = float(os.environ.get("SECONDS", "60"))
ROUNDS = int(os.environ.get("ROUNDS", "1"))
IN_FLIGHT, BODY_BYTES = 512, 1024
MESSAGES, LARGE_BODY, LARGE_QUEUES, LARGE_GROUPS = round(10_000_000 * SCALE), 100, 16, 50
TOPICS, PULLS, PULL_WIRES = round(100_000 * SCALE), round(100_000 * SCALE), 10
JOINERS, JOIN_S = round(2_000 * SCALE), 9.0
TOPIC, LARGE, CROWD, GROUP = "bench", "large", "crowd", "members"
PROBE_S = 0.1
SETTLE_S = 5.0
PATIENCE_S = 300.0

Notes = dict[str, float]


class Nodes(NamedTuple):
    """The cluster that an act meets."""

    cluster: LocalCluster
    leader: NodeRecord


def pull_of(topic: str, offset: int, suspend_ms: int) -> dict[str, str]:
    """Fields of request 11: one message."""
    return pull_fields(topic, offset, "", suspend_ms) | {"maxMsgNums": "1", "consumerGroup": GROUP}


def heartbeat_of(client: str) -> bytes:
    """Request 34's body: one consumer of GROUP."""
    return beat_of(client, [GROUP], [TOPIC])


async def must(wire: Wire, code: int, ext: dict[str, str], body: bytes = b"") -> Answer:
    """An answer 0. Raises RuntimeError at another."""
    answer = await wire.ask(code, ext, body, timeout_s=PATIENCE_S)
    if answer.code != 0:
        raise RuntimeError(f"request {code} was answered {answer.code}: {answer.remark}")
    return answer


def set_config(nodes: Nodes, changes: dict[str, Any]) -> None:
    """Changes the configuration of the cluster."""
    words = [str(word) for pair in changes.items() for word in pair]
    raftmq(nodes, "config", "set", "--yes", *words)


def raftmq(nodes: Nodes, *words: str) -> float:
    """Runs a command to its end: how many seconds it took. Raises RuntimeError with what it printed."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "raftmq", *words, "--data", str(nodes.cluster.data)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode:
        raise RuntimeError(f"{words}: {done.stderr[-2000:]}")
    return time.monotonic() - begun


# --- the acts ---------------------------------------------------------------------------------------------------------


async def fill(nodes: Nodes) -> None:
    """A topic of MESSAGES in 16 queues, and 50 groups that have read some of each."""
    async with await Wire.dial(nodes.leader.broker_port) as wire:
        await must(wire, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(LARGE, LARGE_QUEUES))
    each = 2000
    body = batch_body(LARGE_BODY, each)
    wires = [await Wire.dial(nodes.leader.broker_port) for _ in range(4)]

    async def send(number: int, wire: Wire) -> None:
        for turn in range(number, MESSAGES // each, len(wires)):
            ext = {"a": "bench", "b": LARGE, "e": str(turn % LARGE_QUEUES), "g": "1", "i": "", "m": "true"}
            await must(wire, RequestCode.SEND_BATCH_MESSAGE, ext, body)

    await asyncio.gather(*(send(number, wire) for number, wire in enumerate(wires)))
    for group in range(LARGE_GROUPS):
        config = json.dumps({"groupName": f"g{group}"}).encode()
        await must(wires[0], RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, config)
        for queue in range(LARGE_QUEUES):
            ext = {"consumerGroup": f"g{group}", "topic": LARGE, "queueId": str(queue), "commitOffset": "7"}
            await must(wires[0], RequestCode.UPDATE_CONSUMER_OFFSET, ext)
    for wire in wires:
        wire.abort()


async def delete(nodes: Nodes) -> Notes:
    """The large topic is deleted and made again at once."""
    notes = {}
    async with await Wire.dial(nodes.leader.broker_port) as wire:
        begun = time.monotonic()
        await must(wire, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": LARGE})
        notes["deleted after s"] = time.monotonic() - begun
        begun = time.monotonic()
        await must(wire, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(LARGE, LARGE_QUEUES))
        notes["made again after s"] = time.monotonic() - begun
        end = await must(wire, RequestCode.GET_MAX_OFFSET, {"topic": LARGE, "queueId": "0"})
        if end.ext.get("offset") != "0":
            raise RuntimeError(f"{LARGE}, made again, begins with {end.ext.get('offset')}")
    return notes


async def more_topics(nodes: Nodes) -> None:
    """Room for so many topics."""
    await asyncio.to_thread(
        set_config, nodes, {"limits.topics_max": TOPICS + 1000, "limits.queues_max": TOPICS * 2 + 1000}
    )


async def topics(nodes: Nodes) -> Notes:
    """Makes so many topics and lists them: the first page over HTTP, all of them by the command."""
    window = asyncio.Semaphore(64)
    begun = time.monotonic()
    async with await Wire.dial(nodes.leader.broker_port) as wire:

        async def make(number: int) -> None:
            async with window:
                await must(wire, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(f"many-{number}", 1))

        await asyncio.gather(*(make(number) for number in range(TOPICS)))
    notes = {"made after s": time.monotonic() - begun}
    begun = time.monotonic()
    page = await ask_http(nodes.leader.admin_port, "GET", "/v1/topics", timeout_s=PATIENCE_S)
    if page.code != 200:
        raise RuntimeError(f"a page of topics was answered {page.code}")
    notes["first page s"] = time.monotonic() - begun
    notes["raftmq topic list s"] = await asyncio.to_thread(raftmq, nodes, "topic", "list", "--json")
    begun = time.monotonic()
    await ask_http(nodes.leader.admin_port, "GET", "/metrics", timeout_s=PATIENCE_S)
    notes["first /metrics s"] = time.monotonic() - begun
    return notes


class Crowd(asyncio.Protocol):
    """One connection whose answers are only counted: `done` when `wanted` have come."""

    def __init__(self, wanted: int) -> None:
        self.done: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._missing = wanted
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Counts."""
        data = self._pending + data
        stop, count = whole_frames(data)
        self._pending = data[stop:]
        self._missing -= count
        if self._missing <= 0 and not self.done.done():
            self.done.set_result(time.monotonic())

    def connection_lost(self, exc: Exception | None) -> None:
        """Fails what waits."""
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the server closed the connection"))


async def crowd_topic(nodes: Nodes) -> None:
    """A topic of one queue."""
    async with await Wire.dial(nodes.leader.broker_port) as wire:
        await must(wire, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(CROWD, 1))


async def wake(nodes: Nodes) -> Notes:
    """Lets so many pulls wait for one message."""
    loop = asyncio.get_running_loop()
    port, each = nodes.leader.broker_port, PULLS // PULL_WIRES
    begun = time.monotonic()
    crowd = [(await loop.create_connection(lambda: Crowd(each), "127.0.0.1", port))[1] for _ in range(PULL_WIRES)]
    frames = [request(RequestCode.PULL_MESSAGE, pull_of(CROWD, 0, 30_000))[1] for _ in range(each)]
    for first in range(0, each, 100):
        for one in crowd:
            one.transport.write(b"".join(frames[first : first + 100]))
        await asyncio.sleep(0)
    async with await Wire.dial(port) as wire:
        await asyncio.to_thread(_await_parked, nodes, PULLS)
        notes = {"parked after s": time.monotonic() - begun}
        sent = time.monotonic()
        ext = {"a": "bench", "b": CROWD, "e": "0", "g": "1", "i": ""}
        await must(wire, RequestCode.SEND_MESSAGE_V2, ext, b"x")
        notes["sent after s"] = time.monotonic() - sent
        ends = await asyncio.wait_for(asyncio.gather(*(one.done for one in crowd)), PATIENCE_S)
        notes["last woken after s"] = max(ends) - sent
    for one in crowd:
        one.transport.abort()
    return notes


def _await_parked(nodes: Nodes, count: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        parked = sum(value for _, value in figures(nodes.leader, "raftmq_long_polls"))
        if parked >= count:
            return
        time.sleep(0.2)
    raise RuntimeError(f"only {parked:,.0f} of {count:,} pulls wait")


class Joiner(asyncio.Protocol):
    """A consumer that asks who is in its group when it is told that somebody came or went, one request at a time."""

    def __init__(self, client: str, told: list[int]) -> None:
        self._client = client
        self._told = told
        self._asks = self._again = False
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends the heartbeat."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(request(RequestCode.HEART_BEAT, {}, heartbeat_of(self._client))[1])

    def data_received(self, data: bytes) -> None:
        """Counts notices and answers."""
        data = self._pending + data
        at, end = 0, len(data)
        while end - at >= 8 and (stop := at + 4 + int.from_bytes(data[at : at + 4], "big")) <= end:
            header = data[at + 8 : at + 8 + int.from_bytes(data[at + 5 : at + 8], "big")]
            if b'"code":40' in header:
                self._told[0] += 1
                self._again = True
            else:
                self._asks = False
            at = stop
        self._pending = data[at:]
        if self._again and not self._asks:
            self._asks, self._again = True, False
            self._told[1] += 1
            self.transport.write(request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP})[1])


async def no_preparation(nodes: Nodes) -> None:
    """Prepares nothing."""


async def join(nodes: Nodes) -> Notes:
    """So many consumers of one group join within 9 s, each on its own connection, stay for 10 s, and go at once."""
    loop = asyncio.get_running_loop()
    told = [0, 0]
    members = []
    begun = loop.time()
    for number in range(JOINERS):
        await asyncio.sleep(begun + number * JOIN_S / JOINERS - loop.time())
        made = partial(Joiner, f"127.0.0.1@{number}", told)
        members.append((await loop.create_connection(made, "127.0.0.1", nodes.leader.broker_port))[0])
    notes = {"joined after s": loop.time() - begun}
    await asyncio.sleep(10)
    for member in members:
        member.abort()
    return notes | {"notices": told[0], "lists": told[1]}


async def checkpoint(nodes: Nodes) -> Notes:
    """Every node reads its log and rows again, still after the load, and makes a checkpoint: a backup."""
    for node in nodes.cluster.nodes:
        answer = await ask_http(node.admin_port, "POST", "/v1/scrub")
        if answer.code != 202:
            raise RuntimeError(f"a scrub was answered {answer.code}")
    notes = {}
    for node in nodes.cluster.nodes:
        words = (
            "backup",
            "create",
            "--node",
            str(node.id),
            "--to",
            str(nodes.cluster.data.parent / f"backup-{node.id}"),
        )
        notes[f"backup of node {node.id} s"] = await asyncio.to_thread(raftmq, nodes, *words)
    return notes


class Act(NamedTuple):
    """`prepare` runs before the load, `play` beside it."""

    prepare: Callable[[Nodes], Awaitable[None]]
    play: Callable[[Nodes], Awaitable[Notes]]


ACTS = {
    "delete": Act(fill, delete),
    "topics": Act(more_topics, topics),
    "wake": Act(crowd_topic, wake),
    "join": Act(no_preparation, join),
    "checkpoint": Act(fill, checkpoint),
}


# --- what is measured -------------------------------------------------------------------------------------------------


def figures(node: NodeRecord, name: str) -> list[tuple[dict[str, str], float]]:
    """The samples of a metric."""
    with urllib.request.urlopen(f"http://127.0.0.1:{node.admin_port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    ]


def get(node: NodeRecord, path: str) -> Any:
    """JSON of the HTTP API."""
    with urllib.request.urlopen(f"http://127.0.0.1:{node.admin_port}{path}", timeout=60) as answer:
        return json.load(answer)


def load_alone(port: int, seconds: float) -> tuple[float, float, int]:
    """(messages per second, p99 in ms, refused or unknown), in a process of its own."""
    result = run("127.0.0.1", port, topic=TOPIC, size=BODY_BYTES, batch=1, in_flight=IN_FLIGHT, seconds=seconds)
    return result.messages / result.seconds, result.latencies_ms[int(len(result.latencies_ms) * 0.99)], result.errors


async def _probe(ports: list[tuple[int, int]], ends: threading.Event) -> tuple[float, str]:
    longest = (0.0, "")
    wires = [await Wire.dial(client_port) for client_port, _ in ports]

    async def ask(number: int) -> None:
        nonlocal longest
        wire, admin_port = wires[number], ports[number][1]
        asks: list[tuple[str, Callable[[], Awaitable[Answer]]]] = [
            ("a pull", lambda: wire.ask(RequestCode.PULL_MESSAGE, pull_of(TOPIC, 0, 0))),
            ("a queue's end", lambda: wire.ask(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})),
            ("a heartbeat", lambda: wire.ask(RequestCode.HEART_BEAT, {}, heartbeat_of(f"probe-{number}"))),
            ("GET /v1/health/ready", lambda: ask_http(admin_port, "GET", "/v1/health/ready")),
        ]
        while not ends.is_set():
            for what, one in asks:
                begun = time.monotonic()
                answer = await one()
                longest = max(longest, (time.monotonic() - begun, f"{what} (node {number + 1}, {answer.code})"))
                await asyncio.sleep(PROBE_S)

    await asyncio.gather(*(ask(number) for number in range(len(ports))))
    return longest


def probe(ports: list[tuple[int, int]], ends: threading.Event) -> tuple[float, str]:
    """Asks until told to end: the longest wait in seconds, and for what."""
    return asyncio.run(_probe(ports, ends))


def stalls(nodes: Nodes) -> list[str]:
    """Returns the stalls that the nodes report, turns above 100 ms: those that worked and those that did not."""
    found: list[str] = []
    for node in nodes.cluster.nodes:
        with suppress(urllib.error.URLError):
            events = get(node, "/v1/events?kind=stall&limit=1000")["events"]
            found += [f"node {node.id}: {event['says']}" for event in events]
    return found


def longest_turn(nodes: Nodes) -> tuple[float, str]:
    """Returns the longest turn of any node since its start: its seconds of CPU and its name."""
    return max(
        (value, f"{labels['what']} (node {node.id})")
        for node in nodes.cluster.nodes
        for labels, value in [*figures(node, "raftmq_turn_longest_seconds"), ({"what": "none"}, 0.0)]
    )


class Memory:
    """The most anonymous memory of a node, looked at beside the act."""

    def __init__(self, nodes: Nodes) -> None:
        self._processes = [psutil.Process(node.pid) for node in nodes.cluster.nodes]
        self.most = 0.0

    async def watch(self) -> None:
        """Looks at the memory every half second, for ever."""
        while True:
            for process in self._processes:
                memory = process.memory_info()
                self.most = max(self.most, (memory.rss - memory.shared) / (1 << 20))
            await asyncio.sleep(0.5)


async def measured(name: str, data: Path, pool: ProcessPoolExecutor) -> dict[str, Any]:
    """One round of an act on a cluster of its own."""
    act = ACTS[name]
    cluster = LocalCluster(data)
    cluster.up(3, base_port=free_base_port(12))
    try:
        nodes = Nodes(cluster, next(node for node in cluster.nodes if node.id == cluster.view().leader))
        loop = asyncio.get_running_loop()
        async with await Wire.dial(nodes.leader.broker_port) as wire:
            await must(wire, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(TOPIC, 4))
        await act.prepare(nodes)
        await asyncio.sleep(SETTLE_S)
        port = nodes.leader.broker_port
        rate_alone, p99_alone, _ = await loop.run_in_executor(pool, load_alone, port, SECONDS)
        before, term = longest_turn(nodes), get(nodes.leader, "/v1/status")["term"]
        manager = multiprocessing.get_context("spawn").Manager()
        ends = manager.Event()
        ports = [(node.broker_port, node.admin_port) for node in cluster.nodes]
        probes = loop.run_in_executor(pool, probe, ports, ends)
        memory = Memory(nodes)
        watching = asyncio.create_task(memory.watch())
        beside = loop.run_in_executor(pool, load_alone, port, SECONDS)
        try:
            await asyncio.sleep(SETTLE_S)
            notes = await act.play(nodes)
            rate, p99, refused = await beside
        finally:
            ends.set()
            watching.cancel()
        wait, what = await probes
        turn, in_what = longest_turn(nodes)
        return {
            "act": name,
            "p99 alone ms": p99_alone,
            "p99 beside ms": p99,
            "per second alone": rate_alone,
            "per second beside": rate,
            "refused": refused,
            "longest wait ms": wait * 1000,
            "waited for": what,
            "longest turn before ms": before[0] * 1000,
            "longest turn ms": turn * 1000,
            "turn of": in_what,
            "stalls": stalls(nodes),
            "terms": get(nodes.leader, "/v1/status")["term"] - term,
            "memory MiB": memory.most,
            **notes,
        }
    finally:
        cluster.down()


def main() -> None:
    """Plays the acts in turn."""
    quiet = bool(os.environ.get("JSON"))
    names = os.environ.get("ACTS", ",".join(ACTS)).split(",")
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(3, mp_context=context) as pool, asyncio.Runner() as runner:
        for number in track(range(ROUNDS * len(names)), "acts", disable=quiet):
            name = names[number % len(names)]
            with tempfile.TemporaryDirectory() as directory:
                taken[name].append(runner.run(measured(name, Path(directory) / "data", pool)))
                print(json.dumps(taken[name][-1]), file=sys.stderr)
    report([middle(rounds) for rounds in taken.values()], quiet=quiet)


def middle(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure; of words, those of the round with the longest turn."""
    worst = max(rounds, key=lambda row: row["longest turn ms"])
    return {
        key: median(row[key] for row in rounds) if isinstance(value, int | float) else value
        for key, value in worst.items()
    }


def report(rows: list[dict[str, Any]], *, quiet: bool) -> None:
    """Prints the rows."""
    if quiet:
        print(json.dumps({"rows": rows}))
        return
    for row in rows:
        table = Table("figure", "value", title=row.pop("act"))
        for key, value in row.items():
            table.add_row(key, f"{value:,.3g}" if isinstance(value, float) else str(value))
        console().print(table)


if __name__ == "__main__":
    main()

"""Heavy weather on three real nodes whose disks take little: storms of clients, clients that only open a connection,
one that never reads, a leader that changes, limits that change. The leader stays where nobody ends it, what a node
holds is bounded and given back, and nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from pathlib import Path
from urllib.error import HTTPError

import psutil
import pytest

from jepsen_like.client_kit.fields import send_fields
from jepsen_like.client_kit.frames import HOST, request
from raftmq.client import connect
from raftmq_wire.codes import RequestCode, ResponseCode
from tests.support.live_nodes import LiveCluster
from tests.support.open_senders import BUSY, OK, OpenLoop, body_of, judge_stored, load_of, open_loop, slow_disks
from tests.support.wait_until import wait

pytestmark = [pytest.mark.live, pytest.mark.ci, pytest.mark.alone, pytest.mark.timeout(600)]
MIB = 1 << 20
DISK_KB_S = 2_000
"""The disk of each node takes some 1,900 messages of 1 KiB a second: less than a busy machine can send."""
SURGE = 2 * DISK_KB_S
"""Messages a second of an overload."""
STEADY = DISK_KB_S // 10
BATCH = 64
"""The messages of an entry."""
LOAD_S = 6.0
CLIENTS, ADDRESSES = 2_000, 50
IDLE = 10_000
DESCRIPTORS_OWN = 500
"""The descriptors that this process keeps for everything else."""
MEMORY_MAX = 64 * MIB
"""The most that a node may grow by in an overload: what is in flight, and what the allocator keeps of it."""
CLOSED_AT_ONCE = 100
NEWCOMERS = 50
INFLIGHT, UNSENT = 64 * MIB, 16 * MIB
"""What one connection may have of a node (limits.connection_inflight_bytes_max, limits.connection_unsent_bytes_max)."""
OBJECTS = 1.75
"""The memory that a waiting send of 1 KiB takes, by the bytes of its request: beside them it is objects."""
STUBBORN = {"limits.connection_inflight_bytes_max": 16 * MIB, "limits.connection_unsent_bytes_max": MIB}
"""Limits of one connection that are far below those of the node, so that its memory shows which one counts."""
RELOADS = 100
CHANGED = {"batch_messages_max": BATCH, "connection_inflight_bytes_max": INFLIGHT, "node_inflight_bytes_max": 128 * MIB}
LIMITS = {f"limits.{name}" for name in CHANGED} | STUBBORN.keys()
"""The limits that tests change."""
UNDECIDED = {ResponseCode.SYSTEM_ERROR.value, ResponseCode.SERVICE_NOT_AVAILABLE.value}
"""What a send may be answered whose leader goes: its fate is unknown, or it was not stored."""


@pytest.fixture
def cluster(live_cluster: LiveCluster) -> LiveCluster:
    """Entries are small, so that a slow disk still decides several in each interval in which its rate is learnt."""
    live_cluster.heal()
    values = {"limits.batch_messages_max": BATCH}
    live_cluster.ask(live_cluster.leader(), "/v1/config", "PUT", {"values": values, "author": "test"})
    return live_cluster


@pytest.fixture
def many_descriptors() -> Iterator[int]:
    """Raises this process's limit; yields the number of descriptors that it may open then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def make_topic(cluster: LiveCluster, name: str) -> None:
    with connect(cluster.servers) as mq:
        mq.admin.create_topic(name, queues=1)


def port_of(cluster: LiveCluster, node: int) -> int:
    return next(each.broker_port for each in cluster.nodes if each.id == node)


def say(what: str) -> None:
    print(what, flush=True)  # noqa: T201 - the figures


class Memory:
    """The memory of the nodes of a cluster."""

    def __init__(self, cluster: LiveCluster) -> None:
        self._processes = {node.id: psutil.Process(node.pid) for node in cluster.nodes}
        self._before = self._sizes()
        self.grown = 0
        """The bytes by which the one has grown that grew most."""

    def look(self) -> None:
        now = self._sizes()
        self.grown = max(self.grown, *(now[node] - size for node, size in self._before.items()))

    def _sizes(self) -> dict[int, int]:
        return {node: process.memory_info().rss for node, process in self._processes.items()}


@asynccontextmanager
async def watched(cluster: LiveCluster) -> AsyncIterator[Memory]:
    """Yields the memory of the nodes, at which it looks ten times a second."""
    memory = Memory(cluster)

    async def watch() -> None:
        while True:
            memory.look()
            await asyncio.sleep(0.1)

    watcher = asyncio.ensure_future(watch())
    try:
        yield memory
    finally:
        watcher.cancel()


@contextmanager
def limits(cluster: LiveCluster, values: dict[str, int]) -> Iterator[None]:
    """Gives the cluster these limits, and in the end those that it had, whatever changed them meanwhile."""
    rows = cluster.ask(cluster.leader(), "/v1/config")["settings"]
    before = {row["key"]: row["value"] for row in rows if row["key"] in LIMITS}
    cluster.ask(cluster.leader(), "/v1/config", "PUT", {"values": before | values})
    try:
        yield
    finally:
        cluster.ask(cluster.leader(), "/v1/config", "PUT", {"values": before})


@contextmanager
def leader_stays(cluster: LiveCluster) -> Iterator[int]:
    """Yields the leader. Demands that it leads in the same term afterwards."""
    leader = cluster.leader()
    term = cluster.ask(leader, "/v1/status")["term"]
    yield leader
    assert cluster.leader() == leader
    assert cluster.ask(leader, "/v1/status")["term"] == term, "it was elected anew"


async def test_two_thousand_clients_begin_at_once(cluster: LiveCluster, many_descriptors: int) -> None:
    make_topic(cluster, "storm")
    ports = [node.broker_port for node in cluster.nodes]
    begun_s = time.monotonic()
    with leader_stays(cluster), slow_disks(cluster, DISK_KB_S):
        async with watched(cluster) as memory, open_loop(ports, "storm", CLIENTS, ADDRESSES) as loop:
            loop.send_each()
            await loop.run(LOAD_S, SURGE)
            answers = await loop.answered()
        say(f"{answers} after {time.monotonic() - begun_s:.1f} s; {memory.grown / MIB:.0f} MiB more at most")
    assert not loop.lost
    assert sum(answers.values()) == loop.sent
    assert answers.keys() == {OK, BUSY}
    assert memory.grown < MEMORY_MAX
    judge_stored(cluster, "storm", loop)


def opened(port: int, count: int) -> list[socket.socket]:
    """Opens connections that say nothing, from ADDRESSES addresses."""
    made = []
    for number in range(count):
        each = socket.socket()
        made.append(each)
        each.bind((f"127.0.0.{2 + number % ADDRESSES}", 0))
        each.connect((HOST, port))
    return made


def closed(sockets: list[socket.socket]) -> None:
    """Closes them at an even pace: ten thousand ends in one moment are 0.2 s of a node's processor, and this process
    and two more nodes want theirs too."""
    for number, each in enumerate(sockets):
        each.close()
        if number % CLOSED_AT_ONCE == 0:
            time.sleep(0.01)


async def test_ten_thousand_that_only_open_a_connection(cluster: LiveCluster, many_descriptors: int) -> None:
    """As many as may be open at all (limits.connections_max): an honest client takes the place of one of them."""
    make_topic(cluster, "idle")
    count = min(IDLE, many_descriptors - DESCRIPTORS_OWN)
    with leader_stays(cluster) as leader, connect(cluster.servers) as mq:
        mq.send("idle", b"before")
        process = psutil.Process(next(node.pid for node in cluster.nodes if node.id == leader))
        connections, files = load_of(cluster, leader)["connections"], process.num_fds()
        size = process.memory_info().rss
        idle = await asyncio.to_thread(opened, port_of(cluster, leader), count)
        try:
            wait(lambda: load_of(cluster, leader)["connections"] >= min(count, 0.98 * IDLE))
            grown = process.memory_info().rss - size
            took_ms = []
            for number in range(NEWCOMERS):
                begun_s = time.perf_counter()
                with connect(f"{HOST}:{port_of(cluster, leader)}") as newcomer:
                    newcomer.send("idle", b"%d" % number)
                took_ms.append(1000 * (time.perf_counter() - begun_s))
            mq.send("idle", b"an old client is served too")
            open_now = load_of(cluster, leader)["connections"]
        finally:
            closed(idle)
        middle_ms = sorted(took_ms)[NEWCOMERS // 2]
        say(f"{count} idle, {open_now} open, {grown / MIB:.0f} MiB more; a newcomer's send {middle_ms:.0f} ms")
        assert open_now <= IDLE
        assert grown < MEMORY_MAX
        wait(lambda: load_of(cluster, leader)["connections"] <= connections, lambda: load_of(cluster, leader))
        wait(lambda: process.num_fds() <= files + 8, process.num_fds)
    assert len(cluster.stored("idle")[leader]) == NEWCOMERS + 2


def never_reads(port: int, topic: str, seconds: float) -> tuple[int, bool]:
    """Sends as fast as the node takes it, and reads nothing. Returns the number of sends that left, and True if the
    node closed the connection."""
    fields = send_fields(topic)
    end_s, sent = time.monotonic() + seconds, 0
    with socket.socket() as stubborn:
        stubborn.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stubborn.connect((HOST, port))
        stubborn.settimeout(0.2)
        while time.monotonic() < end_s:
            _, left = request(RequestCode.SEND_MESSAGE_V2, fields, body_of(sent), opaque=sent)
            while left and time.monotonic() < end_s:
                try:
                    left = left[stubborn.send(left) :]
                except TimeoutError:
                    continue
                except ConnectionError:
                    return sent, True
            sent += 1
    return sent, False


async def beside_a_stubborn_one(cluster: LiveCluster, leader: int, topic: str) -> tuple[OpenLoop, int]:
    """Sends at a modest rate beside a client that never reads, which the node must close. Returns the honest clients,
    and the bytes by which the memory of a node grew."""
    port = port_of(cluster, leader)
    async with watched(cluster) as memory, open_loop([port], topic, 8) as loop:
        (sent, is_closed), _ = await asyncio.gather(
            asyncio.to_thread(never_reads, port, f"{topic}-not", 20.0), loop.run(12.0, 100)
        )
        answers = await loop.answered()
    say(f"{sent} sends unread, closed: {is_closed}; honest: {answers}; {memory.grown / MIB:.0f} MiB more at most")
    assert sent > SURGE
    assert is_closed
    assert not loop.lost
    assert answers.keys() <= {OK, BUSY}
    return loop, memory.grown


async def test_one_that_never_reads_its_answers(cluster: LiveCluster) -> None:
    make_topic(cluster, "honest")
    with leader_stays(cluster) as leader, limits(cluster, STUBBORN):
        loop, grown = await beside_a_stubborn_one(cluster, leader, "honest")
    assert len(loop.of(OK)) > 0.9 * loop.sent
    assert grown < MEMORY_MAX
    judge_stored(cluster, "honest", loop)


async def test_one_that_never_reads_makes_an_overload_alone(cluster: LiveCluster) -> None:
    """It may have all that a connection may. Others are refused at times, as it is; each answer goes to who sent."""
    make_topic(cluster, "honest-too")
    with leader_stays(cluster) as leader, slow_disks(cluster, DISK_KB_S):
        loop, grown = await beside_a_stubborn_one(cluster, leader, "honest-too")
    assert len(loop.of(OK)) > 0.5 * loop.sent
    assert grown < OBJECTS * INFLIGHT + UNSENT + MEMORY_MAX
    judge_stored(cluster, "honest-too", loop)


@pytest.mark.parametrize("way", ["transfer", "kill"])
async def test_a_leader_goes_in_an_overload(cluster: LiveCluster, way: str) -> None:
    seed = random.randrange(1 << 32)
    after_s = random.Random(seed).uniform(0.5, 3.0)
    say(f"seed {seed}: {way} after {after_s:.2f} s")
    topic = f"goes-{way}"
    make_topic(cluster, topic)
    before = cluster.leader()
    to = next(node.id for node in cluster.nodes if node.id != before)

    async def end_leader() -> None:
        await asyncio.sleep(after_s)
        if way == "kill":
            await asyncio.to_thread(cluster.kill, before)
        else:
            await asyncio.to_thread(cluster.ask, before, "/v1/leader/transfer", "POST", {"to": to})

    with slow_disks(cluster, DISK_KB_S):
        async with open_loop([node.broker_port for node in cluster.nodes], topic, 12) as loop:
            await asyncio.gather(loop.run(after_s + 8.0, SURGE), end_leader())
            leader = await asyncio.to_thread(cluster.leader)
            learnt = await asyncio.to_thread(load_of, cluster, leader)
            answers = await loop.answered()
        say(f"{answers}, lost {len(loop.lost)}, the next leader: {learnt}")
    assert leader != before
    assert learnt["admission_bytes"] > 0, "the next leader learnt its limit"
    assert learnt["decided_bytes_per_second"] < 2 * DISK_KB_S * 1000
    assert sum(answers.values()) + len(loop.lost) == loop.sent, "each has a fate"
    assert answers.keys() <= {OK, BUSY} | UNDECIDED
    assert answers[BUSY] > 0
    judge_stored(cluster, topic, loop)


def reload_often(cluster: LiveCluster, ends_s: float, sections: list[str]) -> int:
    """Writes every node's file and lets it be read again, RELOADS times a second in all, each time with the next of
    these texts. The last time the files are as they were. Returns the number of reloads."""
    before = {node.config_path: node.config_path.read_text() for node in cluster.nodes}
    due_s, reloads = time.monotonic(), 0
    try:
        while time.monotonic() < ends_s:
            for node in cluster.nodes:
                replace(node.config_path, before[node.config_path] + sections[reloads % len(sections)])
                assert node.pid is not None
                os.kill(node.pid, signal.SIGHUP)
                reloads += 1
                due_s += 1 / RELOADS
                time.sleep(max(0.0, due_s - time.monotonic()))
    finally:
        for path, text in before.items():
            path.write_text(text)
        for node in cluster.nodes:
            view = cluster.ask(node.id, "/v1/config/reload", "POST")
            assert not view["needs_restart"], view
    return reloads


def replace(path: Path, text: str) -> None:
    """Gives a file another text at once: a node must never read half of one."""
    again = path.with_suffix(".next")
    again.write_text(text)
    again.replace(path)


def change_limits(cluster: LiveCluster, node: int, ends_s: float) -> int:
    """Changes limits of the whole cluster, one change after the other. Returns their number. A change that waits in the
    log's queue for too long may be answered as undecided; OSError is raised for one that is refused."""
    changes = 0
    while time.monotonic() < ends_s:
        values = {f"limits.{name}": value // (1 + changes % 2) for name, value in CHANGED.items()}
        try:
            cluster.ask(node, "/v1/config", "PUT", {"values": values})
        except HTTPError as error:
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                raise
        changes += 1
    return changes


CHANGES = [f"\n[flow]\nhouse_ms = {ms}\nadmission = {on}\n" for ms in (20, 70, 500) for on in ("true", "false")]


@pytest.mark.parametrize(
    ("sections", "per_second", "allowed"),
    [
        (CHANGES, STEADY, {OK}),
        (CHANGES[::2], SURGE, {OK, BUSY} | UNDECIDED),
        (CHANGES, SURGE, {OK, BUSY} | UNDECIDED),
    ],
    ids=["steady", "overload", "overload-off-and-on"],
)
async def test_limits_change_a_hundred_times_a_second(
    cluster: LiveCluster, sections: list[str], per_second: int, allowed: set[int], request: pytest.FixtureRequest
) -> None:
    """Nobody is refused on a steady load. In an overload sends may also wait until their deadline: where admission goes
    off and on, the limit is never learnt, and three nodes and this process want more than two processors."""
    topic = f"changes-{request.node.callspec.id}"
    make_topic(cluster, topic)
    with leader_stays(cluster) as leader, slow_disks(cluster, DISK_KB_S), limits(cluster, {}):
        async with open_loop([node.broker_port for node in cluster.nodes], topic, 12) as loop:
            ends_s = time.monotonic() + LOAD_S
            reloads, changes, _ = await asyncio.gather(
                asyncio.to_thread(reload_often, cluster, ends_s, sections),
                asyncio.to_thread(change_limits, cluster, leader, ends_s),
                loop.run(LOAD_S, per_second),
            )
            answers = await loop.answered()
        say(f"{reloads} reloads, {changes} changes of limits, answers {answers}")
    assert reloads > RELOADS
    assert changes > 1
    assert not loop.lost
    assert answers.keys() <= allowed
    assert answers[OK] > 0
    judge_stored(cluster, topic, loop)

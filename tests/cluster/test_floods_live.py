"""One user cannot exhaust what all share: floods of costly and denied requests from a user of few rights, against real
nodes, beside honest sends. The leader stays, no honest send fails, memory and log stay small."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from jepsen_like.hostile.request_fields import send_fields
from jepsen_like.hostile.wire import Wire, request
from raftmq.local.cluster import LocalCluster
from raftmq_wire.codes import RequestCode as Code
from raftmq_wire.signature import Credentials
from tests.support.user_cluster import ROOT, as_user, cluster_with_users

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(900)]

SECONDS = float(os.environ.get("FLOOD_SECONDS", "8"))
"""Of each flood."""
EVE, ANN = ("eve", "the-secret-of-eve"), ("ann", "the-secret-of-ann")
MIB = 1 << 20
MEMORY_MAX = 64 * MIB
"""The most that a node may grow by in a flood: what is in flight, and what the allocator keeps of it."""
LOG_MAX = 4 * MIB
RULES = 500
"""Rules of the user who floods, besides those for her own topic and group."""
WIDE = 1_024


class Seen(NamedTuple):
    """The honest sends beside a flood."""

    codes: list[int]
    took_ms: list[float]


class Flood:
    """What one flood asks for, again and again, on one connection."""

    def __init__(self, burst: Callable[[], bytes], count: int) -> None:
        self.burst, self.count = burst, count


def signed(code: int, ext: dict[str, str], body: bytes = b"", *, who: tuple[str, str] = EVE) -> bytes:
    return request(code, Credentials(*who).signed(ext, body), body)[1]


def wide_heartbeat() -> bytes:
    """A heartbeat of 20,000 topics, in 400 KB."""
    topics = [{"topic": f"t{number}", "subString": "*"} for number in range(20_000)]
    data = {"clientID": "e", "consumerDataSet": [{"groupName": "eve", "subscriptionDataSet": topics}]}
    return signed(Code.HEART_BEAT, {}, json.dumps(data).encode())


def wide_lock() -> bytes:
    queues = [{"brokerName": "b", "topic": f"t{number}", "queueId": 0} for number in range(20_000)]
    data = {"consumerGroup": "eve", "clientId": "e", "mqSet": queues}
    return signed(Code.LOCK_BATCH_MQ, {}, json.dumps(data).encode())


def long_names() -> bytes:
    """A denied heartbeat with the name of a group of 2 MB."""
    data = {"clientID": "e", "consumerDataSet": [{"groupName": "\N{GRINNING FACE}" * 250_000}]}
    return signed(Code.HEART_BEAT, {}, json.dumps(data, ensure_ascii=False).encode())


def resets() -> bytes:
    ext = {"group": "eve", "topic": "eve-wide", "timestamp": "-1", "isForce": "true"}
    return b"".join(signed(Code.INVOKE_BROKER_TO_RESET_OFFSET, ext) for _ in range(200))


def new_names() -> bytes:
    """Denied sends, each to another topic."""
    now = time.monotonic_ns()
    return b"".join(
        signed(Code.SEND_MESSAGE_V2, {str(k): str(v) for k, v in send_fields(f"no-{now}-{at}", "").items()}, b"x")
        for at in range(200)
    )


def guesses() -> bytes:
    wrong = ("ann", "a-wrong-secret")
    return b"".join(signed(Code.GET_MAX_OFFSET, {"topic": "ann", "queueId": "0"}, who=wrong) for _ in range(200))


FLOODS = {
    "heartbeats of 20,000 topics": Flood(wide_heartbeat, 5),
    "locks of 20,000 topics": Flood(wide_lock, 5),
    "names of 2 MB": Flood(long_names, 5),
    "200 resets in one write": Flood(resets, 1),
    "denied names": Flood(new_names, 1),
    "guesses": Flood(guesses, 1),
}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    with cluster_with_users(tmp_path, monkeypatch) as made:
        with as_user(made, ROOT) as root:
            for name, secret in (EVE, ANN):
                root.admin.create_user(name, secret)
                root.admin.create_topic(name, queues=4)
                for kind in ("Topic", "Group"):
                    root.admin.set_rule(name, f"{kind}:{name}*", ["All"])
            for number in range(RULES):
                root.admin.set_rule("eve", f"Topic:other-{number}", ["Pub"])
            root.admin.create_topic("eve-wide", queues=WIDE)
            root.admin.set_auth_mode("enforce")
        yield made


@asynccontextmanager
async def honest(port: int) -> AsyncIterator[Seen]:
    """A user who sends a message every 20 ms, one after the other."""
    seen, stop = Seen([], []), asyncio.Event()

    async def send() -> None:
        async with await Wire.dial(port) as wire:
            fields = {str(key): str(value) for key, value in send_fields("ann", "").items()}
            while not stop.is_set():
                began = time.perf_counter()
                answer = await wire.ask(Code.SEND_MESSAGE_V2, Credentials(*ANN).signed(fields, b"honest"), b"honest")
                seen.codes.append(answer.code)
                seen.took_ms.append((time.perf_counter() - began) * 1000)
                await asyncio.sleep(0.02)

    task = asyncio.create_task(send())
    try:
        yield seen
    finally:
        stop.set()
        await task


async def flood(port: int, what: Flood, seconds: float) -> int:
    """Sends the flood's bursts for so long, new connections when a node closes one; returns the number of bursts."""
    ends, sent = time.monotonic() + seconds, 0
    while time.monotonic() < ends:
        try:
            async with await Wire.dial(port) as wire:
                for _ in range(what.count):
                    await wire.send(what.burst(), 2)
                    sent += 1
                await asyncio.wait((wire.closed,), timeout=0.2)
        except OSError:
            await asyncio.sleep(0.05)
    return sent


def sizes(cluster: LocalCluster) -> dict[int, tuple[int, int]]:
    """Node -> bytes in memory, and bytes of its log."""
    found = {}
    for node in cluster.nodes:
        logs = sum(path.stat().st_size for path in node.home.rglob("node.log*"))
        found[node.id] = psutil.Process(node.pid).memory_info().rss, logs
    return found


async def beside(cluster: LocalCluster, act: Callable[[int], Awaitable[object]]) -> None:
    """Plays floods against the leader's port beside honest sends, and judges what is left of the cluster."""
    leader = cluster.wait_leader()
    port = next(node.broker_port for node in cluster.nodes if node.id == leader)
    before = sizes(cluster)
    async with honest(port) as seen:
        await asyncio.sleep(1)
        calm = len(seen.codes)
        await act(port)
    after = sizes(cluster)
    slow = sorted(seen.took_ms[calm:])
    print(f"sends {len(slow)}, p50 {slow[len(slow) // 2]:.0f} ms, p99 {slow[len(slow) * 99 // 100]:.0f} ms")  # noqa: T201
    for node, (memory, log) in after.items():
        grown, said = memory - before[node][0], log - before[node][1]
        print(f"node {node}: {grown / MIB:+.0f} MiB, log {said / 1024:+.0f} KiB")  # noqa: T201
        assert grown < MEMORY_MAX
        assert said < LOG_MAX
    assert set(seen.codes) == {0}
    assert len(slow) > 10
    assert cluster.wait_leader() == leader


@pytest.mark.parametrize("name", FLOODS)
async def test_one_flood_leaves_leader_sends_memory_and_log_alone(cluster: LocalCluster, name: str) -> None:
    async def act(port: int) -> None:
        assert await flood(port, FLOODS[name], SECONDS) > 1

    await beside(cluster, act)


async def test_all_floods_at_once_from_many_connections(cluster: LocalCluster) -> None:
    async def act(port: int) -> None:
        await asyncio.gather(*(flood(port, each, SECONDS) for each in FLOODS.values() for _ in range(3)))

    await beside(cluster, act)

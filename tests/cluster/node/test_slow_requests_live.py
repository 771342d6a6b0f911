"""A node whose disk is slow says so of the request that waited for it, in the log and in the metrics."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cluster.config.loading import load
from cluster.node.node import Node
from cluster.node.node_runs import NodeRuns
from cluster.replication.slow_requests import LINE_EVERY_MS
from cluster.runtime.environment import Environment
from cluster.runtime.logs import extras
from raftmq.client import connect
from tests.support.lone_node import write_lone_node
from tests.support.samples import sample, text_of
from tests.support.small_segments import LOG
from tests.support.wait_until import PATIENCE_S, until

pytestmark = pytest.mark.live
POINT = "append.fdatasync"
SLOW_SENDS = {"request_code": "send_message", "stage": "sync"}


@dataclasses.dataclass
class Served:
    node: Node
    servers: str


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    path, base = write_lone_node(tmp_path, f"[failpoints]\nenabled = true\n[log_output]\nslow_request_ms = 400\n{LOG}")
    lives: list[Node] = []
    life = NodeRuns(load(path), Environment(), lives.append)
    running = asyncio.get_running_loop().create_task(life.run())
    await until(lambda: lives and lives[0].serving.services.writes_open())
    yield Served(lives[0], f"127.0.0.1:{base + 1}")
    life.stop()
    async with asyncio.timeout(PATIENCE_S):
        await running


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [dict(extras(each)) for each in caplog.records if each.message.startswith("slow: ")]


def counted(served: Served) -> float:
    """Returns how many sends the metrics call slow by their sync: on a busy machine one without a delay may be."""
    return sample(served.node.meters.requests, "raftmq_slow_requests_total", **SLOW_SENDS) or 0


async def test_a_slow_disk_is_named(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    points = served.node.failpoints
    before: list[float] = []

    def clients() -> None:
        with connect(served.servers) as mq:
            mq.admin.create_topic("orders", queues=1)
            mq.send("orders", b"quick", queue_id=0)
            time.sleep(LINE_EVERY_MS / 1000)  # a line of that send, if it was slow, must not keep the next one back
            caplog.clear()
            before.append(counted(served))
            points.set(POINT, "delay:1500ms")
            mq.send("orders", b"slow", queue_id=0)
            points.set(POINT, "off")

    await asyncio.to_thread(clients)
    line = next(each for each in lines(caplog) if each.get("topic") == "orders")  # a client that gives up sends again
    assert {"request_code": "SEND_MESSAGE", "slow_stage": "sync", "requests": 1}.items() <= line.items()
    assert line["client"].startswith("127.0.0.1:")
    assert line["sync_ms"] >= 400
    assert line["sync_ms"] > max(line["queue_ms"], line["majority_ms"], line["apply_ms"])
    assert counted(served) > before[0]
    assert 'rocketmq_rpc_latency_count{protocol_type="remoting",request_code="send_message"' in (
        text_of(served.node.meters.requests)
    )

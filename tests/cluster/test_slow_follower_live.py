"""Sixteen producers without pause while one follower's disk is twenty times slower: memory stays bounded, nothing that
was acknowledged is lost, and the follower catches up once its disk is well again."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future
from typing import Any

import psutil
import pytest

from raftmq.client import Client, SendResult, connect
from tests.support.pace import at_most

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(900)]

SECONDS = float(os.environ.get("SLOW_FOLLOWER_S", "60"))
PRODUCERS = 16
QUEUES = 8
RSS_MAX = 600 << 20
TOPIC = "flood"
PADDING = bytes(1008)


class Flood:
    """One producer that is never idle. Bodies are `producer u64, sequence u64` and padding: 1 KiB."""

    def __init__(self, mq: Client, number: int, stopping: threading.Event) -> None:
        self.number = number
        self.acked = bytearray()
        """acked[sequence] is 1 if it was."""
        self.errors: list[BaseException] = []
        self._mq, self._stopping = mq, stopping
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            with self._mq.producer(timeout_s=at_most(60), max_messages=256) as producer:
                while not self._stopping.is_set():
                    sequence = len(self.acked)
                    self.acked.append(0)
                    body = self.number.to_bytes(8, "big") + sequence.to_bytes(8, "big") + PADDING
                    future = producer.send_soon(TOPIC, body, queue_id=sequence % QUEUES)
                    future.add_done_callback(lambda done, sequence=sequence: self._on_done(sequence, done))  # type: ignore[misc]
        except BaseException as error:  # noqa: BLE001 - told to the test's own thread
            self.errors.append(error)

    def _on_done(self, sequence: int, future: Future[SendResult]) -> None:
        error = future.exception()
        if error is None:
            self.acked[sequence] = 1
        else:
            self.errors.append(error)


def largest_rss(processes: dict[int, psutil.Process], largest: dict[int, int]) -> None:
    for node_id, process in processes.items():
        largest[node_id] = max(largest.get(node_id, 0), process.memory_info().rss)


def count_stored(live_cluster: Any, node: Any, floods: list[Flood]) -> list[bytearray]:
    """Returns the number of times that the node holds each message (255 at most)."""
    counts = [bytearray(len(flood.acked)) for flood in floods]
    with connect(live_cluster.servers) as mq:
        for queue in live_cluster.ask(node.id, f"/v1/topics/{TOPIC}")["queues"]:
            at = queue["min_offset"]
            while at < queue["max_offset"]:
                pulled = mq.pull(TOPIC, queue["queue_id"], at, node=f"127.0.0.1:{node.broker_port}")
                at = pulled.next_offset
                for message in pulled.messages:
                    number, sequence = (int.from_bytes(message.body[part : part + 8], "big") for part in (0, 8))
                    counts[number][sequence] += 1
    return counts


def test_a_follower_with_a_slow_disk_harms_nobody(live_cluster: Any) -> None:
    leader = live_cluster.leader()
    slow = next(node.id for node in live_cluster.nodes if node.id != leader)
    processes = {node.id: psutil.Process(node.pid) for node in live_cluster.nodes}
    largest: dict[int, int] = {}
    with connect(live_cluster.servers) as mq:
        mq.admin.create_topic(TOPIC, queues=QUEUES)
        for point in ("append.fdatasync", "append.write"):
            live_cluster.failpoint(slow, point, "slow:20x")
        stopping = threading.Event()
        floods = [Flood(mq, number, stopping) for number in range(PRODUCERS)]
        end = time.monotonic() + SECONDS
        lag = 0
        while time.monotonic() < end:
            time.sleep(0.25)
            largest_rss(processes, largest)
            status = live_cluster.ask(leader, "/v1/status")
            lag = max(lag, *(peer["lag_entries"] for peer in status["peers"] if peer["node"] == slow))
        stopping.set()
        for flood in floods:
            flood.thread.join(at_most(120))
    for point in ("append.fdatasync", "append.write"):
        live_cluster.failpoint(slow, point, "off")
    live_cluster.wait_equal(300)
    largest_rss(processes, largest)
    acked = sum(sum(flood.acked) for flood in floods)
    megabytes = {node_id: rss >> 20 for node_id, rss in largest.items()}
    print(f"{acked} acknowledged in {SECONDS} s, RSS MiB {megabytes}, largest lag of node {slow}: {lag} entries")  # noqa: T201
    assert not [error for flood in floods for error in flood.errors]
    assert acked > 1000 * SECONDS / 60
    assert max(largest.values()) < RSS_MAX, megabytes
    for node in live_cluster.nodes:
        for flood, counts in zip(floods, count_stored(live_cluster, node, floods), strict=True):
            assert max(counts) <= 1, f"stored twice on node {node.id}"
            lost = [at for at, known in enumerate(flood.acked) if known and not counts[at]]
            assert not lost, f"producer {flood.number}: node {node.id} lost {lost[:10]}"

"""Three nodes under a steady load, with a consumer group and a tier, and nothing wrong: nothing is found at warning or
above, and no rule of deploy/alerts.yml fires.

For RAFTMQ_HEALTHY_MINUTES, 3 unless it is set; docs/internals/planted-faults.md has the command
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from raftmq.client import connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from tests.support.faulty_cluster import findings
from tests.support.live_nodes import LiveCluster
from tests.support.pace import at_most
from tests.support.prometheus import RULES, alerts, prometheus
from tests.support.tools import needs

MINUTES = float(os.environ.get("RAFTMQ_HEALTHY_MINUTES", "3"))
FINDINGS_EVERY_S, RULES_EVERY_S = 5.0, 15.0
PER_SECOND, BODY = 200, bytes(1024)
COMMIT_EVERY = 500
"""Messages read."""
TOPIC, GROUP, QUEUES = "steady", "readers", 4
QUIET_S, END_S = 20.0, 60.0
"""The reader goes after so long without a message; both have to be done after the last one by then."""


class Load:
    """PER_SECOND messages, and a group that reads all of them."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._ended = threading.Event()
        self.sent = 0
        self.read = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Leave: no more is sent, and what was sent has been read. Raises what a thread died of."""
        with ThreadPoolExecutor(2) as pool:
            threads = [pool.submit(work) for work in (self._send, self._read)]
            try:
                yield
            finally:
                self._ended.set()
            for thread in threads:
                thread.result(END_S)

    def _send(self) -> None:
        began = time.monotonic()
        with connect(self._servers) as mq, mq.producer(timeout_s=at_most(30), max_messages=1000) as producer:
            while not self._ended.wait(0.1):
                for _ in range(int((time.monotonic() - began) * PER_SECOND) - self.sent):
                    producer.send_soon(TOPIC, BODY, queue_id=self.sent % QUEUES)
                    self.sent += 1

    def _read(self) -> None:
        with connect(self._servers) as mq, mq.consumer(GROUP, TOPIC, max_wait_s=QUIET_S) as consumer:
            for _ in consumer:
                self.read += 1
                if not self.read % COMMIT_EVERY:  # a group that commits nothing for five minutes is a finding
                    consumer.commit()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    """A cluster with a tier, and every threshold as it is by default."""
    local = LocalCluster(tmp_path / "data")
    try:
        local.up(3, free_base_port(12), tier=str(tmp_path / "store"), timeout_s=at_most(60))
        yield LiveCluster(local)
    finally:
        with contextlib.suppress(Exception):
            local.down()


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.timeout(60 * MINUTES + 300)
@needs("prometheus")
def test_nothing_is_found_on_a_healthy_cluster_under_load(cluster: LiveCluster, tmp_path: Path) -> None:
    cluster.ask(cluster.leader(), "/v1/topics", "POST", {"name": TOPIC, "queues": QUEUES})
    nodes = [f"127.0.0.1:{node.admin_port}" for node in cluster.nodes]
    found: Counter[str] = Counter()
    pending: Counter[str] = Counter()
    looks = rounds = 0
    load = Load(cluster.servers)
    with prometheus(tmp_path / "prometheus", nodes, RULES.read_text(), "5s") as url, load.running():
        began = time.monotonic()
        rules_due = began + RULES_EVERY_S
        while (now := time.monotonic()) < began + 60 * MINUTES:
            for node in cluster.nodes:
                for each in findings(cluster, node.id).values():
                    found[f"{each['code']} ({each['object']}): {each['says']}"] += 1
            looks += 1
            if now >= rules_due:
                rules_due += RULES_EVERY_S
                held = alerts(url)
                rounds += held is not None
                for alert in held or []:
                    (found if alert.state == "firing" else pending)[str(alert)] += 1
            time.sleep(max(0.0, now + FINDINGS_EVERY_S - time.monotonic()))
    print(f"{looks} looks, {rounds} at the rules; {load.sent} sent, {load.read} read; pending: {dict(pending)}")  # noqa: T201
    assert not found, found
    assert load.read >= load.sent > 30 * PER_SECOND * MINUTES, "half of what was to be sent, and all of it read"
    assert looks >= 60 * MINUTES / FINDINGS_EVERY_S / 2, "half of the looks"
    assert rounds >= 60 * MINUTES / RULES_EVERY_S / 2

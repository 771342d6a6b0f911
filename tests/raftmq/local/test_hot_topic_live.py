"""A topic that keeps the leader of its group busy gets queues in the other group by itself, while it is written."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from cluster.config.local_layout import read_cluster
from raftmq.client import connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.credentials import addresses_of
from raftmq.local.process import free_base_port
from raftmq_wire.queue_numbers import group_of
from tests.support.small_segments import small_segments

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(240)]
WITHIN_S = 90.0
"""Seconds until it must have spread. On a machine of its own it takes 10 to 20."""
WRITERS = 3
AT_ONCE = 1_000
"""Messages that each writer has in flight: enough to keep a leader busy more than 60 % of the time."""


def write(servers: str, writer: int) -> tuple[int, int]:
    """Writes until a message came to the second group; returns (messages written, those in the second group)."""
    number = there = 0
    until = time.monotonic() + WITHIN_S
    with connect(servers) as mq, mq.producer() as producer:
        while not there and time.monotonic() < until:
            bodies = [b"%d/%d" % (writer, number + place) for place in range(AT_ONCE)]
            results = [each.result() for each in [producer.send_soon("hot", body) for body in bodies]]
            number += AT_ONCE
            there += sum(group_of(each.queue_id) == 2 for each in results)
    return number, there


def test_a_hot_topic_spreads_and_nothing_is_lost(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "data")
    with small_segments():
        cluster.up(1, free_base_port(8), groups=2)
    try:
        api = AdminApi(addresses_of(read_cluster(cluster.data).of_group(1)))
        api.put("/v1/config", {"values": {"topics.spread": "auto"}, "author": "test", "reason": ""})
        api.post("/v1/topics", {"name": "hot", "queues": 2, "groups": [1]})
        servers = ";".join(f"127.0.0.1:{node.namesrv_port}" for node in cluster.nodes)
        with ProcessPoolExecutor(WRITERS, multiprocessing.get_context("spawn")) as pool:
            written = list(pool.map(write, [servers] * WRITERS, range(WRITERS)))
        assert all(there for _, there in written), f"it stayed where it was: {written}, {api.local('/v1/hot')}"
        expected = Counter(f"{writer}/{place}" for writer, (count, _) in enumerate(written) for place in range(count))
        with connect(servers) as mq, mq.consumer("readers", "hot", follow=False) as consumer:
            assert Counter(message.body.decode() for message in consumer) == expected
    finally:
        cluster.down()

"""A real node leaves only the newest bytes of its log in the page cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.storage.log.page_cache import STEP_BYTES
from raftmq.client import connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from tests.support.cached_pages import cached_share
from tests.support.pace import at_most
from tests.support.small_segments import small_segments
from tests.support.wait_until import wait

pytestmark = pytest.mark.live

KEPT_BYTES = 1 << 20
BODY = bytes(1 << 20)


def test_a_node_with_a_limit_of_a_mebibyte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAFTMQ_LOG__PAGE_CACHE_BYTES_MAX", str(KEPT_BYTES))
    local = LocalCluster(tmp_path / "data")
    with small_segments():
        local.up(1, base_port=free_base_port(12))
    try:
        (oldest,) = (local.nodes[0].config_path.parent / "data").rglob("00000000000000000000.seg")
        with connect(local.servers) as mq, mq.producer(timeout_s=at_most(30)) as producer:
            producer.send("t", BODY)
            assert cached_share(oldest, len(BODY)) > 0.9
            for _ in range((KEPT_BYTES + 2 * STEP_BYTES) // len(BODY)):
                producer.send("t", BODY)
            wait(lambda: cached_share(oldest, len(BODY)) <= 0.5, "the oldest pages are still in memory")
            with mq.consumer("g", "t", max_wait_s=20) as consumer:
                assert next(iter(consumer)).body == BODY
    finally:
        local.down()

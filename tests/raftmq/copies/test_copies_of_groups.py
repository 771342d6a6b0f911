"""A copy of the log of a further group of brokers has the queues by the numbers that they have in the cluster."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest

import raftmq
from raftmq.arrow.columns import COLUMNS
from raftmq.cli import run
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.process import free_base_port
from raftmq_wire.queue_numbers import group_of, number_of
from tests.support.left_copies import SMALL, wait_verified
from tests.support.pace import at_most

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

TOPIC = "left-orders"


def test_rows_of_a_further_group_are_those_of_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in SMALL.items():
        monkeypatch.setenv(name, str(size))
    cluster = LocalCluster(tmp_path / "data")
    try:
        cluster.up(1, free_base_port(8), groups=2, tier=(tmp_path / "tier").as_uri(), timeout_s=at_most(60))
        with raftmq.connect(cluster.servers) as mq:
            mq.admin.create_topic(TOPIC, 2)
            for number in range(20):
                mq.send(TOPIC, b"%d" % number, queue_id=number_of(1 + number % 2, number % 4 // 2))
        live = raftmq.read_arrow(TOPIC, columns=tuple(COLUMNS), servers=cluster.servers)
        assert run(["backup", "create", "--to", str(tmp_path / "backups"), "--data", str(tmp_path / "data")]) == 0
        [second] = cluster.of_group(2)
        api = AdminApi([f"127.0.0.1:{second.admin_port}"])
        wait_verified(api, api.post("/v1/tier/seal", {})["position"])
    finally:
        cluster.down()
    assert {group_of(queue) for queue in live["queue_id"].to_pylist()} == {1, 2}
    of_second = live.filter(pc.greater_equal(live["queue_id"], number_of(2, 0)))
    [backup] = (tmp_path / "backups/g02").iterdir()
    for kind, path in (
        ("files", str(backup)),
        ("files", str(tmp_path / "data/g02/n1/data")),
        ("tier", (tmp_path / "tier/g02").as_uri()),
    ):
        found = raftmq.read_arrow(TOPIC, columns=tuple(COLUMNS), read_from=kind, path=path)
        assert found.equals(of_second), kind

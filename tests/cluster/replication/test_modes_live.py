"""Modes on real processes: a leader killed in its weakest mode, readers sent to followers."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.config.local_layout import NodeRecord
from raftmq.client import connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from tests.support.pace import at_most
from tests.support.small_segments import small_segments
from tests.support.wait_until import wait


class Live:
    """Three nodes with these [modes], and what one may ask of them."""

    def __init__(self, folder: Path) -> None:
        self.local = LocalCluster(folder)
        with small_segments():
            self.local.up(3, free_base_port(12), failpoints=True)

    def node(self, node_id: int) -> NodeRecord:
        return next(node for node in self.local.nodes if node.id == node_id)

    def ask(self, node_id: int, path: str, method: str = "GET", body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.node(node_id).admin_port}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=at_most(10)) as reply:
            text = reply.read().decode()
        return json.loads(text) if path.startswith("/v1") else text

    def failpoint(self, node_id: int, name: str, action: str) -> None:
        self.ask(node_id, "/v1/failpoints", "PUT", {"name": name, "action": action})

    def metric(self, node_id: int, name: str) -> float:
        lines = [line for line in self.ask(node_id, "/metrics").splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def wait_equal(self) -> None:
        def ends() -> list[tuple[int, int]]:
            views = [self.ask(node.id, "/v1/status") for node in self.local.nodes]
            return [(view["last_index"], view["applied_index"]) for view in views]

        wait(lambda: len({end for both in ends() for end in both}) == 1, lambda: f"not equal: {ends()}", progress=ends)

    def bodies(self, topic: str, node_id: int) -> set[str]:
        """All messages of a topic, as that node hands them out."""
        found: set[str] = set()
        with connect(self.local.servers) as mq:
            for queue in range(8):
                at = 0
                while messages := (pulled := mq.pull(topic, queue, at, node=self.address(node_id))).messages:
                    found.update(message.body.decode() for message in messages)
                    at = pulled.next_offset
        return found

    def address(self, node_id: int) -> str:
        return f"127.0.0.1:{self.node(node_id).broker_port}"


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Live]:
    """The parameter: keys of [modes]."""
    for key, value in request.param.items():
        monkeypatch.setenv(f"RAFTMQ_MODES__{key.upper()}", str(value))
    cluster = Live(tmp_path / "cluster")
    try:
        yield cluster
    finally:
        cluster.local.down()


WEAKEST = {"flush_disk_type": "ASYNC_FLUSH", "broker_role": "ASYNC_MASTER"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "live", [WEAKEST, {**WEAKEST, "transient_store_pool_enable": "true"}], ids=["written", "pool"], indirect=True
)
def test_a_leader_killed_in_its_weakest_mode_loses_no_more_than_it_said_and_counts_it(live: Live) -> None:
    old = live.local.wait_leader()
    with connect(live.address(old), timeout_s=5.0) as mq, mq.producer() as producer:
        before = [f"before {number}" for number in range(50)]
        for name in before:
            producer.send("weak", name.encode())
        live.wait_equal()
        told = live.ask(old, "/v1/status")["modes"]
        assert told["level"] == "leader"
        live.failpoint(old, "peer.send", "error:EIO")  # nobody hears of what comes now
        sends = {f"early {number}": producer.send_soon("weak", f"early {number}".encode()) for number in range(200)}
        deadline = time.monotonic() + 5
        while not any(future.done() for future in sends.values()) and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.05)
        window = live.ask(old, "/v1/status")["modes"]["loss_window_messages"]
        live.local.kill(old)
        early = [name for name, future in sends.items() if future.done() and future.exception() is None]
        for future in sends.values():
            future.cancel()
    assert early, "nothing was answered early"
    assert len(early) <= window, "no more than it said"
    live.local.wait_leader()
    live.local.restart(old)
    live.local.wait_ready()
    with connect(live.local.servers) as mq:
        mq.send("weak", b"after", properties={"ACK_LEVEL": "quorum+fsync"})
    live.wait_equal()
    kept = live.bodies("weak", old)
    lost = [name for name in (*before, *early) if name not in kept]
    assert lost == early, "what was committed stays"
    counted = live.ask(old, "/v1/status")["modes"]
    assert counted["lost_messages"] == len(lost)
    assert counted["lost_entries"] <= told["loss_window_entries_max"]
    assert all(live.bodies("weak", node.id) == kept for node in live.local.nodes)


READ = {"slave_read_enable": "true", "access_message_in_memory_max_ratio": "0"}


@pytest.mark.slow
@pytest.mark.parametrize("live", [READ], ids=["ours"], indirect=True)
def test_a_reader_that_is_behind_is_served_by_followers_and_sees_everything_once(live: Live) -> None:
    leader = live.local.wait_leader()
    with connect(live.local.servers) as mq:
        with mq.producer() as producer:
            for number in range(20_000):
                producer.send_soon("far", b"%d " % number + b"x" * 500)
        live.wait_equal()
        with mq.consumer("slow", "far", follow=False) as messages:
            seen = [int(message.body.split()[0]) for message in messages]
        assert sorted(seen) == list(range(20_000))
        follower = next(node.id for node in live.local.nodes if node.id != leader)
        pulled = mq.pull("far", 0, 0, 10, node=live.address(follower))
        assert pulled.served_by == follower
        assert pulled.staleness_ms is not None
        assert pulled.staleness_ms < 5000
        assert mq.pull("far", 0, 0, 10, node=live.address(leader)).served_by is None
    handed_out = {node.id: live.metric(node.id, "rocketmq_messages_out_total") for node in live.local.nodes}
    assert sum(count for node, count in handed_out.items() if node != leader) > 500, handed_out

"""Three processes on real sockets, and long turns of their loops: who keeps the office, and who hands it over."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftmq.client import connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from tests.support.live_nodes import LiveCluster
from tests.support.pace import at_most

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(300)]

SHORT_MS = 900


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveCluster]:
    """Followers that wait for 2 to 4 s."""
    monkeypatch.setenv("RAFTMQ_RAFT__ELECTION_TICKS", "40")
    cluster = LocalCluster(tmp_path / "cluster")
    cluster.up(3, free_base_port(12), failpoints=True)
    try:
        yield LiveCluster(cluster)
    finally:
        cluster.down()


def office(live: Any) -> tuple[int, int]:
    views = [live.ask(node.id, "/v1/status") for node in live.nodes]
    assert len({(view["term"], view["leader"]) for view in views}) == 1, views
    return views[0]["term"], views[0]["leader"]


def stall(live: Any, node_id: int, milliseconds: int) -> None:
    """A turn of its loop takes so long; returns when the node answers again, and a heartbeat later."""
    live.failpoint(node_id, "loop.turn", f"delay:{milliseconds}ms")
    points: list[Any] = [{"name": "loop.turn", "action": "?"}]
    while [each["action"] for each in points if each["name"] == "loop.turn"] != ["off"]:
        time.sleep(0.1)
        points = live.ask(node_id, "/v1/failpoints")["failpoints"]
    time.sleep(1.5)


def test_short_standstills_change_nothing_and_the_third_of_a_leader_hands_over_once(live: Any) -> None:
    leader = live.local.wait_leader()
    followers = [node.id for node in live.nodes if node.id != leader]
    time.sleep(2)
    before, stopped, sent = office(live), threading.Event(), []

    def send() -> None:
        with connect(live.servers, timeout_s=at_most(30)) as mq, mq.producer() as producer:
            while not stopped.is_set():
                sent.append(producer.send("standstill", b"x"))

    sender = threading.Thread(target=send)
    sender.start()
    try:
        for node_id, milliseconds in ((leader, SHORT_MS), (followers[0], SHORT_MS), (followers[0], 6000)):
            stall(live, node_id, milliseconds)
            assert office(live) == before, f"node {node_id} stood still for {milliseconds} ms"
        stall(live, leader, SHORT_MS)
        assert office(live) == before
        stall(live, leader, SHORT_MS)
        handed = office(live)
        assert handed == (before[0] + 1, followers[1]), "the other one stood still itself"
        alarms = live.ask(leader, "/v1/status")["alarms"]
        assert "slow_turns" in [alarm["key"] for alarm in alarms]
        for _ in range(3):
            stall(live, followers[1], SHORT_MS)
        assert office(live) == handed
    finally:
        stopped.set()
        sender.join()
    assert sent

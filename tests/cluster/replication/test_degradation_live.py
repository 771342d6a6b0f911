"""Degradation on real processes: both followers' disks take 300 ms for a sync, and later as long as they always did."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import pytest

from raftmq.client import connect
from tests.support.pace import at_most

pytestmark = [pytest.mark.live, pytest.mark.slow]

DELAY_MS = 300


@pytest.fixture
def degrading(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    monkeypatch.setenv("RAFTMQ_REPLICATION__DEGRADE", "leader")
    return request.getfixturevalue("live_cluster")


def test_sends_are_answered_early_while_both_followers_are_slow(degrading: Any) -> None:
    leader = degrading.leader()
    followers = [node.id for node in degrading.nodes if node.id != leader]

    def modes() -> Any:
        return degrading.ask(leader, "/v1/status")["modes"]

    with connect(degrading.servers) as mq:
        mq.admin.create_topic("T", queues=2)

        def send_until(degraded: bool) -> float:
            began = time.monotonic()
            while modes()["degraded"] is not degraded:
                assert time.monotonic() < began + at_most(60)
                mq.send("T", b"x")
            return time.monotonic() - began

        def answer() -> float:
            began = time.monotonic()
            mq.send("T", b"x")
            time.sleep(DELAY_MS / 1000)
            return time.monotonic() - began - DELAY_MS / 1000

        assert modes()["level"] == "quorum+fsync"
        for node in followers:
            degrading.failpoint(node, "append.fdatasync", f"delay:{DELAY_MS}ms")
        took = [answer() for _ in range(5)]
        assert median(took) > DELAY_MS / 1000
        begun = send_until(True)
        early = [answer() for _ in range(10)]
        view = modes()
        findings = degrading.ask(leader, "/v1/findings")["findings"]
        for node in followers:
            degrading.failpoint(node, "append.fdatasync", "off")
        ended = send_until(False)
        print(median(took), median(early), begun, ended, view)  # noqa: T201
        assert median(early) < DELAY_MS / 1000 / 2
        assert view["level"] == "leader"
        assert "degraded" in {finding["code"] for finding in findings}
        assert modes()["level"] == "quorum+fsync"
        assert modes()["lost_messages"] == 0
    degrading.wait_equal()

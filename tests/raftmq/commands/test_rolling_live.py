"""`raftmq rolling-restart` and `raftmq events` on real nodes, under load."""

from __future__ import annotations

import json
import threading

import pytest

from raftmq.cli import run
from raftmq.client import connect
from raftmq.client.errors import RaftMQError
from tests.support.live_nodes import LiveCluster
from tests.support.wait_until import wait

pytestmark = [pytest.mark.live, pytest.mark.slow]


def test_no_send_fails_while_every_node_restarts(live_cluster: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster, data = live_cluster, str(live_cluster.data)
    sent: list[int] = []
    failed: list[Exception] = []
    over = threading.Event()

    def load() -> None:
        with connect(cluster.servers) as mq:
            while not over.is_set():
                try:
                    mq.send("rolling", str(len(sent)).encode())
                    sent.append(len(sent))
                except RaftMQError as error:
                    failed.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        assert run(["rolling-restart", "--data", data, "--json"]) == 0
    finally:
        over.set()
        thread.join()
    restarted = json.loads(capsys.readouterr().out)["restarted"]
    assert sorted(each["node"] for each in restarted) == [1, 2, 3]
    assert failed == []
    cluster.wait_equal()
    stored = [int(message.body) for message in cluster.stored("rolling")[1]]
    assert sorted(stored) == sent

    assert run(["events", "--data", data, "--json", "--kind", "start"]) == 0
    started = json.loads(capsys.readouterr().out)["events"]
    assert [sum(event["node"] == node for event in started) for node in (1, 2, 3)] == [2, 2, 2]


def test_a_second_node_is_not_stopped(live_cluster: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster, data = live_cluster, str(live_cluster.data)
    leader = cluster.leader()
    gone, other = [node.id for node in cluster.nodes if node.id != leader]
    cluster.kill(gone)
    try:
        wait(
            lambda: not cluster.ask(leader, f"/v1/members/{other}/can-stop")["allowed"],
            "the leader does not miss the node",
        )
        for command in (["restart", str(other)], ["rolling-restart", "--node", str(other)]):
            assert run([*command, "--data", data]) == 5
            assert f"node {other} must not be stopped now" in capsys.readouterr().err
        assert run(["restart", str(gone), "--data", data]) == 0, "it does not run"
    finally:
        cluster.heal()

"""Real processes: a killed node says what it did, and one whose state is gone takes a peer's."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from raftmq.client import connect

pytestmark = pytest.mark.live


def send(servers: str, first: int, count: int) -> None:
    with connect(servers) as mq, mq.producer() as producer:
        for n in range(first, first + count):
            producer.send("recovered", str(n).encode())


def check_stored(live_cluster: Any, sent: range) -> None:
    """Every node has each of these once, and all have the same; tests before may have sent others."""
    stored = live_cluster.stored("recovered")
    bodies = [sorted(int(message.body) for message in messages) for messages in stored.values()]
    assert bodies == [bodies[0]] * 3
    assert [body for body in bodies[0] if body >= sent.start] == list(sent)


def data_of(live_cluster: Any, node: int) -> Path:
    found: Path = live_cluster.data / f"n{node}" / "data"
    return found


@pytest.mark.ci
def test_a_killed_node_tells_what_its_start_did(live_cluster: Any) -> None:
    send(live_cluster.servers, 0, 50)
    live_cluster.local.kill(2)
    live_cluster.local.restart(2)
    told = live_cluster.ask(2, "/v1/recovery")
    account = told["recovery"]
    assert told["node"] == 2
    assert account["previous"]["ended"] == "process_died"
    assert account["state_source"] == "own"
    assert not account["clean"]
    assert account["bytes_scanned"] <= 64 << 20
    assert {"log", "run", "state"} <= account["stages_ms"].keys()
    assert account["reasons"]


@pytest.mark.ci
def test_a_lost_state_comes_from_a_peer_before_the_node_joins(live_cluster: Any) -> None:
    assert [node.id for node in live_cluster.nodes] == [1, 2, 3]
    send(live_cluster.servers, 50, 50)
    leader = live_cluster.leader()
    lost = next(node.id for node in live_cluster.nodes if node.id != leader)
    live_cluster.local.down()  # in order: each makes a checkpoint of all that it has applied
    data = data_of(live_cluster, lost)
    shutil.rmtree(data / "checkpoints")
    (data / "state" / "CURRENT").unlink()
    live_cluster.local.up(3)
    live_cluster.leader()
    account = live_cluster.ask(lost, "/v1/recovery")["recovery"]
    assert account["state_source"] == "peer"
    assert account["state_set_aside"] == "trash/000001-state"
    assert any("every file has the CRC" in reason for reason in account["reasons"])
    send(live_cluster.servers, 100, 5)
    live_cluster.wait_equal()
    check_stored(live_cluster, range(50, 105))


@pytest.mark.slow
def test_a_state_above_the_own_log_comes_with_the_entries_between(live_cluster: Any) -> None:
    send(live_cluster.servers, 105, 20)
    live_cluster.wait_equal()
    lost = next(node.id for node in live_cluster.nodes if node.id != live_cluster.leader())
    others = [node.id for node in live_cluster.nodes if node.id != lost]
    live_cluster.kill(lost)
    for first in (125, 145):  # both checkpoints that a node keeps are made after the one that is down stopped
        send(live_cluster.servers, first, 20)
        for node in others:
            live_cluster.restart(node)
    data = data_of(live_cluster, lost)
    for path in [*(data / "state").glob("MANIFEST-*"), *(data / "checkpoints").glob("*/CHECKPOINT")]:
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content[:-9] + bytes([content[-9] ^ 4]) + content[-8:])
    live_cluster.restart(lost)
    account = live_cluster.ask(lost, "/v1/recovery")["recovery"]
    assert (account["state_found"], account["state_source"]) == ("corrupt", "peer")
    assert any("and with it entries" in reason for reason in account["reasons"]), account["reasons"]
    send(live_cluster.servers, 165, 5)
    live_cluster.wait_equal()
    check_stored(live_cluster, range(105, 170))

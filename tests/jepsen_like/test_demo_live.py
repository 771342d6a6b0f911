"""The whole demo, as a user runs it: three real processes, a leader killed under load, and the last line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from jepsen_like.demo_input import message_id_of
from jepsen_like.demo_story import RESULT_KEYS
from jepsen_like.history import HistoryWriter, read_history
from jepsen_like.read_node import read_node
from raftmq.client import connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from tests.support.pace import at_most

pytestmark = pytest.mark.live


def demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAFTMQ_")} | {"TMPDIR": str(folder)}
    command = [sys.executable, "-m", "raftmq.cli", "demo", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=at_most(100))


@pytest.mark.parametrize("messages", [5_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_nothing_is_lost_and_nothing_is_left(tmp_path: Path, messages: int) -> None:
    done = demo(tmp_path, "--seed", "20", "--messages", str(messages))
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert tuple(result) == RESULT_KEYS
    assert (result["seed"], result["lost"], result["duplicated"]) == (20, 0, 0)
    assert result["acked"] == result["read"] == messages
    assert result["term_after"] > result["term_before"]
    assert result["failover_ms"] > 0
    assert "kill -9 on the leader" in done.stdout
    assert list(tmp_path.iterdir()) == [], "the temporary directory stayed"
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or ())]


@pytest.mark.slow
def test_nothing_is_lost_over_tls_and_as_a_user(tmp_path: Path) -> None:
    done = demo(tmp_path, "--secured", "--messages", "3000", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["acked"] == 3000
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_file_of_one_s_own_and_a_directory_that_stays(tmp_path: Path) -> None:
    (tmp_path / "words").write_bytes(b"".join(b"word %d\n" % i for i in range(300)))
    kept = tmp_path / "kept"
    done = demo(tmp_path, "--file", "words", "--messages", "6000", "--data", "kept", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["acked"] == 6000
    history = read_history(kept / "history.jsonl")
    assert history.complete
    assert history.meta["messages"] == 6000
    again = demo(tmp_path, "--data", "kept")
    assert again.returncode == 5
    assert "is not empty" in again.stderr


@pytest.mark.slow
def test_the_log_goes_to_a_tier(tmp_path: Path) -> None:
    done = demo(tmp_path, "--messages", "2000", "--tier", "old")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "objects written, read back and compared; bad: 0" in done.stdout
    assert sum(path.stat().st_size for path in (tmp_path / "old").rglob("*") if path.is_file()) > 200_000


def test_a_node_is_read_from_its_own_replica(tmp_path: Path) -> None:
    """With the two others dead nobody could answer for it: the reading half of the demo needs exactly this."""
    cluster = LocalCluster(tmp_path)
    try:
        cluster.up(3, free_base_port(12))
        with connect(cluster.servers) as mq:
            mq.admin.create_topic("t", queues=2)
            for number in range(20):
                mq.send("t", b"m%06d\tx" % number)
        target = max(node.status["commit_index"] for node in cluster.view().nodes if node.status)
        while {node.status["applied_index"] for node in cluster.view().nodes if node.status} != {target}:
            target = max(node.status["commit_index"] for node in cluster.view().nodes if node.status)
        follower = next(node for node in cluster.nodes if node.id != cluster.wait_leader())
        for node in cluster.nodes:
            if node.id != follower.id:
                cluster.kill(node.id)
        with connect(cluster.servers) as mq, HistoryWriter(tmp_path / "h.jsonl") as history:
            assert read_node(mq, follower, "t", range(2), history, message_id_of) == 20
    finally:
        cluster.down()

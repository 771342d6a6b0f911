"""`raftmq quota` at a real cluster: what it says, and that senders are held to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from raftmq import cli
from raftmq.client import connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port

pytestmark = [pytest.mark.live, pytest.mark.ci]

SENDERS, RATE, SECONDS = 20, 50, 4.0
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def cluster(tmp_path: Any) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path / "data")
    made.up(3, free_base_port(16))
    yield made
    made.down()


@pytest.fixture
def run(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> Run:
    """Types a command for this cluster; its exit code, and what it printed."""

    def typed(*words: str) -> tuple[int, str]:
        code = cli.run([*words, "--data", str(cluster.data)])
        told = capsys.readouterr()
        return code, told.out + told.err

    return typed


def test_senders_are_held_to_a_quota(cluster: LocalCluster, run: Run) -> None:
    assert "no quotas yet" in run("quota", "list")[1]
    with connect(cluster.servers) as mq:
        mq.admin.create_topic("slow", 2)
        mq.admin.create_topic("free", 2)
        code, told = run("quota", "set", "topic=slow", "--send-messages", str(RATE))
        assert (code, told) == (0, f"topic=slow: {RATE} messages sent a second\n")
        stored = dict.fromkeys(("slow", "free"), 0)
        lock, ends_s = threading.Lock(), time.monotonic() + SECONDS

        def sends(topic: str) -> None:
            while time.monotonic() < ends_s:
                mq.send(topic, b"x" * 100)
                with lock:
                    stored[topic] += 1

        threads = [threading.Thread(target=sends, args=[topic]) for topic in ("slow", "free") for _ in range(SENDERS)]
        begun_s = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took_s = time.monotonic() - begun_s
        assert stored["slow"] <= RATE * (took_s + 1) + SENDERS
        assert stored["slow"] >= RATE * SECONDS * 0.8
        assert stored["free"] > 2 * stored["slow"], "others go on"
    assert "topic=slow  50 messages sent a second" in run("quota", "list")[1]
    assert run("quota", "set", "topic=slow", "--send-messages", "50")[1] == "nothing has changed: it is so already\n"
    code, told = run("quota", "delete", "topic=slo")
    assert code != 0
    assert "did you mean topic=slow?" in told
    assert run("quota", "delete", "topic=slow") == (0, "topic=slow has no quota any more\n")
    code, told = run("quota", "set", "client=x", "--send-bytes", "1")
    assert code != 0
    assert "user=NAME, user=NAME,topic=NAME, address=IP or topic=NAME" in told

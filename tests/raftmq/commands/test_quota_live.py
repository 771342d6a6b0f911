"""`raftmq quota` at a real cluster: what it says, and that senders are held to it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raftmq import cli
from raftmq.client import Refused, connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from raftmq_wire.codes import ResponseCode
from raftmq_wire.learnt_file import LearntFile, LearntOrigin, TopicLimits, encode_file

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


def written(path: Path, cluster_id: str, rate: int, *, expires_s: float = 86_400) -> Path:
    """A file of learnt limits of the topics t0 to t9."""
    now_ms = int(time.time() * 1000)
    origin = LearntOrigin(
        cluster=cluster_id, made_ms=now_ms, first_ms=1, last_ms=now_ms, expires_ms=now_ms + int(1000 * expires_s)
    )
    hours = [rate] * 168
    path.write_bytes(encode_file(LearntFile(origin, {f"t{n}": TopicLimits(hours, hours) for n in range(10)})))
    return path


def test_learnt_limits_are_imported_counted_and_taken_away(cluster: LocalCluster, run: Run, tmp_path: Path) -> None:
    assert "no learnt limits: raftmq quota import FILE" in run("quota", "learnt")[1]
    with connect(cluster.servers) as mq:
        mq.admin.create_topic("t3", 1)
        (own, *_) = mq.cluster_ids
        file = written(tmp_path / "limits.json", own, 1)
        says = "limits of 10 topics in force, mode on\n"
        assert run("quota", "import", str(file), "--mode", "on", "--dry-run") == (0, f"would be: {says}")
        assert "no learnt limits" in run("quota", "learnt")[1]
        assert run("quota", "import", str(file), "--mode", "on") == (0, says)
        assert run("quota", "import", str(file), "--mode", "on")[1] == "nothing has changed: it is so already\n"
        time.sleep(1)
        begun_s = time.monotonic()
        for _ in range(200):
            mq.send("t3", b"x")
        assert time.monotonic() - begun_s < 20, "nobody waits"
    code, told = run("quota", "learnt")
    assert code == 0
    assert "limits of 10 topics, mode on" in told
    (line,) = [line.split() for line in told.splitlines() if line.startswith("t3")]
    assert line[2] == "1"
    assert 100 < int(line[3]) < 200
    assert line[4] == "0"
    torn = tmp_path / "torn.json"
    torn.write_bytes(file.read_bytes()[:-100])
    for bad, why in (
        (torn, "it is torn"),
        (written(tmp_path / "other.json", "7c9e6679-7425-40de-944b-e07fc1f90ae7", 1), "learnt from cluster 7c9e6679"),
        (written(tmp_path / "old.json", own, 1, expires_s=-1), "has expired"),
    ):
        code, told = run("quota", "import", str(bad))
        assert code != 0
        assert why in told
    assert "limits of 10 topics, mode on" in run("quota", "learnt")[1], "as before"
    assert run("quota", "forget") == (0, "there are no learnt limits any more\n")
    assert "no learnt limits" in run("quota", "learnt")[1]


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


def test_what_is_made_and_kept_is_limited_too(cluster: LocalCluster, run: Run) -> None:
    code, told = run("quota", "set", "topic=orders", "--new-topics", "1")
    assert code != 0
    assert "new_topics cannot be a limit of topic=orders: it may be given to user=NAME and address=IP" in told
    said = run("quota", "set", "address=*", "--new-topics", "2", "--requests", "4", "--connections", "1000")[1]
    assert said == "address=*: 4 sends at once and 1,000 new connections a minute and 2 new topics a minute\n"
    run("quota", "set", "topic=orders", "--backlog-bytes", "20000")
    assert "topic=orders  20,000 bytes in its queues" in run("quota", "list")[1]
    with connect(cluster.servers) as mq:
        mq.admin.create_topic("orders", 2)
        mq.admin.create_topic("other", 2)
        with pytest.raises(Refused, match=r"topic third was not made: .* 2 new topics a minute") as refused:
            mq.admin.create_topic("third", 2)
        assert refused.value.code == ResponseCode.FLOW_CONTROL
        with mq.producer(timeout_s=1) as producer:
            for _ in range(24):
                with contextlib.suppress(Refused):
                    producer.send("orders", b"x" * 900)
                time.sleep(0.05)
            with pytest.raises(Refused, match="topic=orders may have 20,000 bytes in its queues, has") as full:
                producer.send("orders", b"x" * 900)
        assert full.value.code == ResponseCode.FLOW_CONTROL
        mq.send("other", b"x" * 900)
    assert "topic=orders" in run("quota", "list")[1].partition("over it")[2]

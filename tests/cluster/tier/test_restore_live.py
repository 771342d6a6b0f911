"""Real nodes and a real directory: every node is lost, and a cluster is restored from the tier; twice in a row."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftmq.cli import run as raftmq
from raftmq.client import connect
from raftmq.local.process import free_base_port
from raftmq_wire.errors import LocalError
from tests.cluster.tier.test_uploads_live import SMALL, TieredNodes

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(600)]

EVICTING = {
    "RAFTMQ_TIER__STATE_EVERY_MS": "1000",
    "RAFTMQ_TIER__EVICT": "true",
    "RAFTMQ_RETENTION__BYTES_MAX": "2097152",
    "RAFTMQ_RETENTION__EVERY_MS": "100",
    "RAFTMQ_RETENTION__DELETE_WHEN": "",
}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in (SMALL | EVICTING).items():
        monkeypatch.setenv(name, value)
    return tmp_path / "store"


@contextlib.contextmanager
def running(data: Path, store: Path) -> Iterator[TieredNodes]:
    nodes = TieredNodes(data, store)
    try:
        if (data / "n1").exists():
            nodes.local.up()
        else:
            nodes.local.up(1, free_base_port(12), failpoints=True, tier=str(store))
        yield nodes
    finally:
        with contextlib.suppress(LocalError):
            nodes.local.down()


def send_and_stop(nodes: TieredNodes, first: int, number: int) -> None:
    with connect(nodes.servers) as mq:
        for each in range(first, first + number):
            mq.send("kept", b"%08d" % each + b"x" * 220_000)
    assert raftmq(["down", "--grace", "60", "--data", str(nodes.data)]) == 0


def bodies(nodes: TieredNodes) -> list[int]:
    """Numbers of all messages, each queue read from offset 0 on."""
    found: list[int] = []
    queues = nodes.ask(nodes.leader(), "/v1/topics/kept")["queues"]
    with connect(nodes.servers) as mq:
        for queue in queues:
            at = 0
            while at < queue["max_offset"]:
                pulled = mq.pull("kept", queue["queue_id"], at)
                found += [int(bytes(message.body[:8])) for message in pulled.messages]
                assert pulled.next_offset > at, pulled
                at = pulled.next_offset
    return sorted(found)


def folders(store: Path) -> dict[str, set[str]]:
    """Cluster id -> names of its objects."""
    return {
        folder.name: {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        for folder in store.iterdir()
        if not folder.name.startswith(".")
    }


def restored(
    store: Path, cluster: str, into: Path, *more: str, capsys: pytest.CaptureFixture[str]
) -> dict[str, object]:
    capsys.readouterr()
    options = [
        "--from-tier",
        store.as_uri(),
        "--cluster",
        cluster,
        "--nodes",
        "1",
        "--base-port",
        str(free_base_port(8)),
    ]
    assert raftmq(["restore", *options, *more, "--into", str(into), "--json"]) == 0
    told: dict[str, object] = json.loads(capsys.readouterr().out)
    return told


def test_a_cluster_comes_back_from_the_tier_alone(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(tmp_path / "a", store) as nodes:
        send_and_stop(nodes, 0, 25)
    with running(tmp_path / "a", store) as nodes:
        nodes.until(lambda: nodes.tier()["state_copy"] is not None, "a copy of the state")
        send_and_stop(nodes, 25, 25)
    ((first, before),) = folders(store).items()
    assert any(name.endswith(".json") for name in before if name.startswith("state/"))
    shutil.rmtree(tmp_path / "a")

    told = restored(store, first, tmp_path / "b", capsys=capsys)
    second = str(told["cluster_uuid"])
    with running(tmp_path / "b", store) as nodes:
        assert nodes.tier()["log_begins"] > 0, "nothing was evicted"
        assert bodies(nodes) == [*range(50)]
        nodes.until(lambda: nodes.tier()["state_copy"] is not None, "a copy of the restored state")
        send_and_stop(nodes, 50, 25)
    after = folders(store)
    assert before <= after[first]
    assert {name for name in after[first] - before if not name.startswith("manifest/")} == set()
    assert after[second]
    shutil.rmtree(tmp_path / "b")

    restored(store, second, tmp_path / "c", capsys=capsys)
    with running(tmp_path / "c", store) as nodes:
        assert bodies(nodes) == [*range(75)]

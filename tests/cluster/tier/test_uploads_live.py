"""Real nodes and a real directory: a leader killed at each step of an upload, and a stop that brings all there."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from xxhash import xxh3_128

from raftmq.cli import run as raftmq
from raftmq.client import connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from raftmq_wire.errors import LocalError
from tests.support.live_nodes import LiveCluster
from tests.support.pace import at_most
from tests.support.wait_until import wait

pytestmark = pytest.mark.live

SMALL = {
    "RAFTMQ_LOG__SEGMENT_SIZE_BYTES": "1048576",
    "RAFTMQ_LIMITS__MESSAGE_BYTES_MAX": "262144",
    "RAFTMQ_LIMITS__BATCH_BYTES_MAX": "262144",
}
POINTS = ("tier.uploading", "tier.put", "tier.uploaded", "tier.read_back", "tier.verified", "tier.manifest")
PATIENCE_S = at_most(60)


class TieredNodes(LiveCluster):
    """Three nodes with segments of 1 MiB and a directory for a store."""

    def __init__(self, data: Path, store: Path) -> None:
        super().__init__(LocalCluster(data))
        self.store = store
        self.sent = 0

    def fill(self, segments: int) -> None:
        """Sends that much."""
        with connect(self.servers) as mq:
            for _ in range(segments * 5):
                self.sent += 1
                mq.send("filled", b"%08d" % self.sent + b"x" * 220_000)

    def tier(self, node_id: int | None = None) -> Any:
        """The leader's view."""
        return self.ask(node_id or self.leader(), "/v1/tier")

    def until(self, reached: Callable[[], object], what: str) -> None:
        wait(reached, lambda: f"{what}: {self.tier()}", progress=lambda: self.tier()["verified_to"])

    def wait_verified(self) -> None:
        self.until(lambda: (view := self.tier())["verified_to"] >= view["sealed_end"] > 0, "everything is verified")

    def waiting_at(self, node_id: int, point: str) -> bool:
        points = self.ask(node_id, "/v1/failpoints")["failpoints"]
        return next(each["waiting"] for each in points if each["name"] == point) > 0

    @property
    def folder(self) -> Path:
        """The cluster's, in the store."""
        (folder,) = [path for path in self.store.iterdir() if not path.name.startswith(".")]
        return folder

    def check(self) -> None:
        """Every sealed byte is in the store exactly once, as the manifest says, and nothing else is."""
        head = json.loads((self.folder / "manifest/HEAD").read_bytes())
        body = (self.folder / head["key"]).read_bytes()
        assert sha256(body).hexdigest() == head["sha256"]
        end, listed = 0, set()
        for segment in json.loads(body)["segments"]:
            assert segment["base"] == end
            end = segment["end"]
            for part in [*segment["parts"], *segment["index"]]:
                data = (self.folder / part["name"]).read_bytes()
                assert (len(data), xxh3_128(data).hexdigest()) == (part["size"], part["xxh3"])
                listed.add(part["name"])
        stored = {
            str(path.relative_to(self.folder)) for kind in ("log", "index") for path in (self.folder / kind).iterdir()
        }
        assert stored == listed
        temporary = self.store / ".raftmq" / "tmp"
        assert not temporary.exists() or list(temporary.iterdir()) == []

    def published_end(self) -> int:
        head = json.loads((self.folder / "manifest/HEAD").read_bytes())
        segments = json.loads((self.folder / head["key"]).read_bytes())["segments"]
        return int(segments[-1]["end"]) if segments else 0


@pytest.fixture
def tiered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TieredNodes]:
    for name, value in SMALL.items():
        monkeypatch.setenv(name, value)
    nodes = TieredNodes(tmp_path / "c", tmp_path / "store")
    try:
        nodes.local.up(3, free_base_port(12), failpoints=True, tier=str(nodes.store))
        yield nodes
    finally:
        with contextlib.suppress(LocalError):
            nodes.local.down()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_next_leader_ends_what_a_killed_one_began(tiered: TieredNodes) -> None:
    for point in POINTS:
        leader = tiered.leader()
        tiered.failpoint(leader, point, "hold")
        tiered.fill(1)
        tiered.until(partial(tiered.waiting_at, leader, point), f"a hold at {point}")
        tiered.kill(leader)
        successor = tiered.leader()
        assert successor != leader
        tiered.wait_verified()
        tiered.heal()
    end = tiered.tier()["verified_to"]
    tiered.until(lambda: tiered.published_end() >= end, "the manifest")
    tiered.check()
    tiered.wait_equal()


@pytest.mark.ci
def test_down_brings_all_of_the_log_to_the_store_or_says_what_is_left(
    tiered: TieredNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    tiered.fill(1)
    assert raftmq(["down", "--grace", "30", "--data", str(tiered.data)]) == 0
    end = tiered.published_end()
    assert end > tiered.sent * 220_000
    tiered.check()
    tiered.local.up()
    leader = tiered.leader()
    tiered.failpoint(leader, "tier.put", "hold")
    tiered.fill(1)
    capsys.readouterr()
    assert raftmq(["down", "--grace", "1", "--data", str(tiered.data)]) == 8
    told = capsys.readouterr().err
    assert "bytes of the log are not in the tier" in told
    assert "the next leader uploads it" in told
    assert [node.pid for node in tiered.nodes] == [None] * 3

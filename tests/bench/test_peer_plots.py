"""Pictures of the benchmark beside peers: which there are, and that they say what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.peers.plots import Bar, draw, pictures


def row(system: str, in_flight: int, batch: int = 1) -> dict[str, Any]:
    rate = {"median": 100 * in_flight, "low": 90 * in_flight, "high": 130 * in_flight}
    figures = {"cpu_us_per_message": 7.5, "p50_ms": 0.4, "p99_ms": 2.0}
    return {"system": system, "in_flight": in_flight, "batch": batch, "messages_per_second": rate, **figures}


RESULT: dict[str, Any] = {
    "rows": [
        row("raftmq", 1),
        row("etcd", 1),
        row("raftmq", 16, 100),
        {"system": "nats-lazy", "unavailable": "Go is not installed"},
    ],
    "floor": {"p50_ms": 0.3},
    "failover": [
        {"system": "raftmq", "fault": "kill -9", "seconds": [0.1], "median": 0.1, "low": 0.1, "high": 0.1},
        {"system": "etcd", "fault": "kill -9", "seconds": [], "error": "none came"},
    ],
}


def test_every_load_has_its_pictures() -> None:
    by_name = {picture.name: picture for picture in pictures(RESULT)}
    assert set(by_name) == {"rate-1", "cpu-1", "latency-1", "rate-16x100", "cpu-16x100", "failover"}
    assert by_name["rate-1"].bars == [Bar("raftmq", 100, 90, 130), Bar("etcd", 100, 90, 130)]
    assert by_name["latency-1"].bars[-1] == Bar("disk floor", 0.3, 0.3, 0.3)
    assert [bar.label for bar in by_name["failover"].bars] == ["raftmq, kill -9"], "a failure has no length"


def test_a_run_that_measured_nothing_has_no_picture() -> None:
    assert pictures({"rows": RESULT["rows"][-1:], "floor": {}, "failover": []}) == []


def test_the_same_result_gives_the_same_files(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="drawn with matplotlib")
    for name in "ab":
        (tmp_path / name).mkdir()
    first, second = draw(RESULT, tmp_path / "a"), draw(RESULT, tmp_path / "b")
    assert [path.name for path in first] == [f"{picture.name}.svg" for picture in pictures(RESULT)]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert "disk floor" in (tmp_path / "a" / "latency-1.svg").read_text()

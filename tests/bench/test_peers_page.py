"""The tables of README and docs/performance.md are those of the kept measurement."""

from __future__ import annotations

import json

import pytest

from bench.peers import page


def result(system: str, median: int) -> dict[str, object]:
    rate = {"median": median, "low": 1, "high": 9_000}
    row = {
        "system": system,
        "batch": 1,
        "in_flight": 512,
        "messages_per_second": rate,
        "cpu_us_per_message": 17.96,
        "p50_ms": 6.511,
        "p99_ms": 20.1,
        "durability": "majority fdatasync" if system == "raftmq" else "page cache of a majority; synced later",
    }
    rows = [row, {"system": "etcd", "unavailable": "no Go"}]
    return {"rows": rows, "versions": {system: f"{system} 1.2.3"}, "failover": [], "floor": {"p50_ms": 0.1}}


def test_the_pages_have_what_was_measured() -> None:
    measured = json.loads(page.MEASURED.read_text())
    for path, names in page.PAGES.items():
        text = path.read_text()
        assert page.with_tables(text, names, measured) == text, "python -m bench.peers.page writes the tables"


def test_a_table_is_made_of_documents() -> None:
    measured = page.kept([result("raftmq", 7_000), result("nats-lazy", 8_000), result("raftmq", 1)])
    assert page.table(page.RATES, measured).splitlines() == [
        "| | acknowledged when | 1 in flight | 64 in flight | 512 in flight | 500 connections "
        "| batches of 100, 16 in flight |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| RaftMQ (1.2.3) | a majority has synced it | - | - | 7,000 (1 to 9,000) | - | - |",
        "| NATS JetStream R3 as shipped (1.2.3) | it is in the page cache of a majority | - | - "
        "| 8,000 (1 to 9,000) | - | - |",
    ]
    assert "| - | - | 18.0 | - | - |" in page.table(page.CPU, measured)
    assert "| NATS JetStream R3, 默认设置 (1.2.3) | 已在多数节点的页缓存中 |" in page.table(page.CHINESE, measured)
    assert "| - | - | 6.51 / 20.1 | - |" in page.table(page.TIMES, measured)


def test_a_page_without_its_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="has no <!-- bench-peers: CPU -->"):
        page.with_tables("a page", [page.CPU], {"rows": [], "versions": {}})

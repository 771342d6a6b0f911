"""`raftmq top`: one look at the cluster."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from cluster.config.local_layout import NodeRecord
from raftmq.commands.nodes.top import Before, page
from raftmq.local.status import GroupStatus, NodeView


def view(applied: int) -> GroupStatus:
    own: dict[str, Any] = {
        "node": 1,
        "role": "leader",
        "term": 7,
        "leader": 1,
        "applied_index": applied,
        "writes_open": True,
        "peers": [{"node": 2, "lag_entries": 3}],
        "load": {"connections": 5, "inflight_bytes": 2048},
        "disk": {"used_percent": 41.6},
        "uptime_ms": 90_000,
        "alarms": [],
    }
    records = [NodeRecord(node, None, 0, 0, 0, 0, "") for node in (1, 2)]
    return GroupStatus([NodeView(records[0], True, own), NodeView(records[1], False, None)])


def lines(applied: int, findings: list[dict[str, Any]], before: Before, now_s: float) -> list[str]:
    console = Console(width=160, file=io.StringIO())
    console.print(page(view(applied), findings, before, now_s))
    assert isinstance(console.file, io.StringIO)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines() if line.strip()]


def test_a_look_and_the_next_one() -> None:
    before: Before = {}
    first = lines(1000, [], before, 10.0)
    assert first[0] == "node 1 leads, term 7"
    assert first[2:] == ["1 leader 7 1000 - 0 5 2 KiB 42 % 90 s", "2 silent - - - - - - - -", "no findings"]
    assert lines(1500, [], before, 12.0)[2] == "1 leader 7 1500 250 0 5 2 KiB 42 % 90 s"


def test_only_some_findings_are_shown() -> None:
    finding = {
        "code": "disk_slow",
        "severity": "warning",
        "since": "2026-11-21T03:04:05.678Z",
        "object": "node 1",
        "says": "slow",
        "do_now": "raftmq doctor",
        "runbook": "docs/runbooks.md#disk_slow",
    }
    shown = lines(1, [finding] * 10, {}, 1.0)
    assert sum("disk_slow (node 1)" in line for line in shown) == 8
    assert shown[-1] == "2 more findings: raftmq status"

"""`raftmq status` speaks of a mode only where it is weaker than the promise, or cost something."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cluster.replication.mode_assembly import SURVIVES, ModesView
from raftmq.commands.nodes.status import finding_lines, kernel_lines, mode_lines


def lines_of(**fields: Any) -> list[str]:
    level = fields.get("level", "quorum+fsync")
    view = ModesView(
        **{
            "level": level,
            "degrade": "off",
            "degraded": False,
            "degraded_why": "",
            "flush_disk_type": "SYNC_FLUSH",
            "broker_role": "SYNC_MASTER",
            "transient_store_pool_enable": False,
            "slave_read_enable": False,
            "promise": SURVIVES[level],
            "loss_window_entries_max": 4,
            "loss_window_bytes_max": 20,
            "loss_window_messages": 3,
            "loss_window_messages_seen": 5,
            "lost_messages": 0,
            "lost_entries": 0,
            **fields,
        }
    )
    node = SimpleNamespace(record=SimpleNamespace(id=2, name=2), status={"modes": msgspec.to_builtins(view)})
    silent = SimpleNamespace(record=SimpleNamespace(id=3, name=3), status=None)
    return mode_lines(SimpleNamespace(nodes=[node, silent]))  # type: ignore[arg-type]


def test_the_default_is_not_spoken_of() -> None:
    assert lines_of() == []
    assert len(lines_of(lost_messages=1)) == 1


@pytest.mark.parametrize("level", ["quorum", "leader"])
def test_a_weak_mode_tells_its_loss_window(level: str) -> None:
    (line,) = lines_of(level=level, flush_disk_type="ASYNC_FLUSH", transient_store_pool_enable=True)
    for part in ("node 2", f"level {level}", "ASYNC_FLUSH", "transient store pool", "at most 4 log entries", "now 3"):
        assert part in line


def test_a_degraded_leader_tells_why() -> None:
    (line,) = lines_of(level="leader", degrade="leader", degraded=True, degraded_why="a majority takes 300 ms")
    for part in ("node 2", "level leader", "degraded, because a majority takes 300 ms", "Loss window: at most 4"):
        assert part in line
    assert lines_of(degrade="leader") == []


def test_the_kernel_of_each_node_is_named() -> None:
    """A node of an older version does not tell."""
    native, forced = {"name": "native", "version": 1, "why": ""}, {"name": "python", "version": 1, "why": "so wished"}
    told = {3: {"kernel": native}, 2: {"kernel": forced}, 1: {"kernel": native}, 4: {}, 5: None}
    nodes = [SimpleNamespace(record=SimpleNamespace(id=id, name=id), status=status) for id, status in told.items()]
    lines = kernel_lines(SimpleNamespace(nodes=nodes, group=1))  # type: ignore[arg-type]
    assert lines == ["native kernel: node 1, 3", "python kernel: node 2 (so wished)"]


def test_a_finding_is_two_lines_and_the_command_of_its_cause() -> None:
    finding = {
        "code": "node_down",
        "severity": "warning",
        "since": "2026-11-21T03:04:05.678Z",
        "object": "node 3",
        "says": "nobody reaches it",
        "do_now": "raftmq restart 3",
        "runbook": "docs/runbooks.md#node_down",
        "seen_by": [1, 2],
        "because_of": None,
    }
    cause = {"code": "node_down", "object": "node 3"}
    margin = finding | {"code": "no_quorum_margin", "object": "cluster", "says": "one left", "because_of": cause}
    assert finding_lines([finding, margin]) == [
        ("yellow", "warning: node_down (node 3) since 2026-11-21 03:04:05 UTC"),
        ("yellow", "    nobody reaches it"),
        ("green", "    type: raftmq restart 3    (more: raftmq runbook node_down)"),
        ("yellow", "warning: no_quorum_margin (cluster) since 2026-11-21 03:04:05 UTC, because of node_down (node 3)"),
        ("yellow", "    one left"),
    ]

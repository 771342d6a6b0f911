"""Whole nodes with short retention: queues begin alike everywhere, disks shrink, restarts and failures change nothing.

Every run is also held to jepsen_like.sim.checks.trim_check, and what is above the first offsets to the log checker."""

from __future__ import annotations

from typing import Any

import pytest

from jepsen_like.sim.scripted import ScriptedWorld
from raftlog.types import NodeId

SMALL = "nodes 3 segment_size=16384 checkpoint_every_ms=300"
TRAFFIC = "send 40 body=2000\nwait 0.6\n" * 3 + "send 3\nwait 1.1\n" * 4
"""Files go when two checkpoints, at most one a second, know that they may."""


class Looked(ScriptedWorld):
    """Remembers, at the end, where each node's queue and files begin, and how many files there are."""

    def phases(self) -> None:
        super().phases()
        self.first: dict[NodeId, int] = {}
        self.position: dict[NodeId, int] = {}
        self.kept_bytes: dict[NodeId, int] = {}
        for name, machine in self.machines.items():
            if machine.node is not None:
                log = machine.node.storage.directory.log
                self.first[name] = machine.node.state.min_offset(1, 0)
                self.position[name] = log.first_position
                self.kept_bytes[name] = log.tail.end_position - log.first_position


def played(script: str) -> Looked:
    stage = Looked(script)
    verdict = stage.run()
    assert not verdict.violations, verdict.violations
    return stage


@pytest.mark.parametrize(
    "rules", ["retained_bytes=32768", pytest.param("retained_ms=1500 skew_ms=400", marks=pytest.mark.slow)]
)
def test_queues_begin_alike_and_disks_shrink(rules: str) -> None:
    stage = played(f"{SMALL} {rules}\nlead 1\nreader\n{TRAFFIC}settle\n")
    assert len(set(stage.first.values())) == 1
    assert min(stage.first.values()) > 0
    assert max(stage.kept_bytes.values()) < 100_000, "of more than 250,000"


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("power 1 2 3\nstart 1 2 3\n", marks=pytest.mark.ci),
        pytest.param("kill 1\nwait 1\nstart 1\n", marks=pytest.mark.slow),
        pytest.param("power 2\nspoil 2\nstart 2\n", marks=pytest.mark.slow),
    ],
)
def test_whatever_state_a_node_comes_back_with_needs_no_file_that_is_gone(fault: str) -> None:
    stage = played(f"{SMALL} retained_bytes=32768\nlead 1\n{TRAFFIC}{fault}wait 3\nsend 40 body=2000\nwait 1\nsettle\n")
    assert len(set(stage.first.values())) == 1
    assert min(stage.position.values()) > 0


@pytest.mark.slow
def test_a_new_leader_goes_on_where_the_old_one_was() -> None:
    script = f"{SMALL} retained_bytes=32768\nlead 1\n{TRAFFIC}lead 2\nsend 40 body=2000\nwait 1\nkill 2\nwait 2\n"
    stage: Any = played(f"{script}send 40 body=2000\nwait 1\nstart 2\nwait 1\nsend 5\nsettle\n")
    assert len(set(stage.first.values())) == 1

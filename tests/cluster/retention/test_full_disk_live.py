"""Disk full on the leader, on a follower, on all: refusal, alarm, resume, nothing lost. Real processes and disks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pace import at_most
from tests.support.small_disks import ROOT
from tests.support.tools import needs

STORY = "tests.cluster.retention.full_disk_story"


@needs("mount")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("who", "percent"), [("leader", 93), ("leader", 100), ("follower", 100), ("all", 93), ("all", 100)]
)
def test_a_disk_fills_up_and_is_freed(tmp_path: Path, who: str, percent: int) -> None:
    """The story itself checks that nothing acknowledged is missing, no process ended and sends were taken again."""
    command = ["unshare", "-Urm", sys.executable, "-m", STORY, str(tmp_path / "cluster"), who, str(percent)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=at_most(240), check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    seen = json.loads(done.stdout)
    told = {key for node in seen["chosen"] for key in seen["alarms"][str(node)]}
    assert told & {"disk_full", "log_waits_for_space", "closed"}
    full = {"disk_full", "log_waits_for_space", "node_stopped", "node_down"}
    for node, findings in seen["named"].items():
        about = {about for code, about in findings if code in full}
        assert {f"node {each}" for each in seen["chosen"]} <= about, f"node {node} says {findings}"
    if percent < 100:
        assert "retention.disk_refuse_writes_percent = 90" in seen["refusal"]
        assert "Refused" in seen["errors"]
    if who == "follower":
        assert seen["during"] > 0, "two of three nodes have room"
        assert not seen["errors"]

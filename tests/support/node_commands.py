"""Three node processes of a test's own, and `raftmq node` as an operator types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from tests.support.pace import at_most
from tests.support.small_segments import small_segments


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes that no other test uses, so that members may come, move and go."""
    made = LocalCluster(tmp_path / "data")
    with small_segments():
        made.up(3, free_base_port(12))
    yield made
    made.down()


def node_command(cluster: LocalCluster, *arguments: str, code: int = 0) -> dict[str, Any]:
    """Runs `raftmq node` with --json, and expects the exit code; its object, of the output or of the error."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAFTMQ_")}
    command = [sys.executable, "-m", "raftmq.cli", "node", *arguments, "--data", str(cluster.data), "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=at_most(120))
    assert done.returncode == code, (arguments, done.stdout, done.stderr)
    told = json.loads(done.stdout)
    assert isinstance(told, dict)
    return told

"""`bench/hot_path.py`, which `make bench-instructions` counts: all of its stages end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pace import at_most

DRIVER = Path(__file__).parents[3] / "bench" / "hot_path.py"


@pytest.mark.ci
def test_every_stage_is_answered() -> None:
    done = subprocess.run([sys.executable, "-P", str(DRIVER)], capture_output=True, text=True, timeout=at_most(60))
    assert done.returncode == 0, done.stderr
    counts = {name: int(count) for name, count in (line.split("\t") for line in done.stdout.splitlines())}
    counted = [name for name, count in counts.items() if count]
    assert counted == [
        "send, 1 in flight",
        "send, 64",
        "send, 512",
        "batch of 100 x 1 KiB",
        "named send, 64",
        "pull 32 hot",
        "pull 256 hot",
        "send, 1 in flight, two peers",
        "send, 64, two peers",
        "send, 512 on one connection, two peers",
        "send, 1 on each of 500, two peers",
        "send, 1 in flight, under a quota",
        "send, 64, under a quota",
    ]
    assert counts["warm-up"] == 0
    assert all(counts[name] >= 60 for name in counted)

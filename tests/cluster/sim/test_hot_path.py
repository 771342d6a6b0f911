"""`bench/hot_path.py`, which `make bench-instructions` counts: all of its stages end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DRIVER = Path(__file__).parents[3] / "bench" / "hot_path.py"


def test_every_stage_is_answered() -> None:
    done = subprocess.run([sys.executable, "-P", str(DRIVER)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    counts = dict(line.split("\t") for line in done.stdout.splitlines())
    assert counts.pop("warm-up") == "0"
    assert len(counts) == 4
    assert all(int(count) >= 100 for count in counts.values())

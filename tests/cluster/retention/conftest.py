"""`small_disk`: a Python script on a file system of a few MiB, mounted in a user namespace of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pace import at_most
from tests.support.small_disks import MOUNT, ROOT, SmallDisk


@pytest.fixture
def small_disk(tmp_path: Path) -> SmallDisk:
    """small_disk(script, size="30m", timeout_s=60) -> what it printed; its first argument is the mounted folder.
    For tests that need `mount`."""
    place = tmp_path / "small"
    place.mkdir()

    def run(script: str, size: str = "30m", timeout_s: float = at_most(60)) -> str:
        command = ["unshare", "-Urm", "sh", "-c", MOUNT, size, str(place), sys.executable, "-c", script, str(place)]
        done = subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    return run

"""Where a user namespace may mount a small file system of its own, tests of full disks are for real."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOUNT = 'mount -t tmpfs -o size="$0" none "$1" && shift && exec "$@"'

SmallDisk = Callable[..., str]


def can_mount(place: Path) -> bool:
    try:
        done = subprocess.run(
            ["unshare", "-Urm", "sh", "-c", MOUNT, "1m", str(place), "true"], capture_output=True, check=False
        )
    except OSError:
        return False
    return done.returncode == 0

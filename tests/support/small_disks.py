"""A small file system in a user namespace of its own: tests of full disks are for real where `mount` is here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOUNT = 'mount -t tmpfs -o size="$0" none "$1" && shift && exec "$@"'

SmallDisk = Callable[..., str]

"""The memory and the processors that this process may use: those of the machine, or fewer if its control group says so.

A container sees the memory of the whole machine in /proc. Its bounds are in the files of its control group: version 2
in one hierarchy, version 1 in one for memory and one for processors. Each group above bounds those below it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CPU_PERIOD_US = 100_000


class Bounds(NamedTuple):
    """Memory in bytes and processors; None where the control group sets no bound."""

    memory_bytes: int | None
    processors: float | None

    @property
    def says(self) -> str:
        """Both in words."""
        memory = f"{self.memory_bytes >> 20} MiB" if self.memory_bytes is not None else "not bounded"
        processors = f"{self.processors:.2f}" if self.processors is not None else "not bounded"
        return f"memory {memory}, processors {processors}"


def bounds(root: Path = Path("/")) -> Bounds:
    """Returns the lowest bounds of this process's control group and those above it. `root`: of /proc and /sys."""
    machine = machine_memory_bytes()
    memory = [size for folder in _files(root, "memory") if (size := _memory(folder)) is not None and size < machine]
    processors = [count for folder in _files(root, "cpu") if (count := _processors(folder)) is not None]
    return Bounds(min(memory, default=None), min(processors, default=None))


def machine_memory_bytes() -> int:
    """Returns the memory of the machine, in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def memory_bytes(root: Path = Path("/")) -> int:
    """Returns the memory that this process may use, in bytes."""
    bound = bounds(root).memory_bytes
    return machine_memory_bytes() if bound is None else bound


def _files(root: Path, controller: str) -> Iterator[Path]:
    """The folders of the groups that bound this process, innermost first."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0":
            top = root / "sys/fs/cgroup"
        elif controller in names.split(","):
            top = root / "sys/fs/cgroup" / controller
        else:
            continue
        # In a container the hierarchy that is mounted often begins at the group itself, and the path is outside of it.
        folder = top / path.lstrip("/")
        for each in (folder, *folder.parents):
            if each.is_relative_to(top):
                yield each


def _memory(folder: Path) -> int | None:
    word = _text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes")
    return int(word) if word.isascii() and word.isdigit() else None


def _processors(folder: Path) -> float | None:
    quota, _, period = _text(folder / "cpu.max").partition(" ")
    if not quota:
        quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    if not (quota.isascii() and quota.isdigit()) or int(quota) == 0:
        return None  # "max" or -1
    return int(quota) / int(period if period.isascii() and period.isdigit() and int(period) else CPU_PERIOD_US)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""

"""Finds the memory and the processors that this process may use: those of the machine, or fewer if its control group
says so.

A container sees the memory of the whole machine in /proc. Its bounds are in the files of its control group. Version 2
of control groups has one hierarchy; version 1 has one for memory and one for processors. Each group also limits those
below it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

if TYPE_CHECKING:
    from cluster.config.config import Config


CPU_PERIOD_US = 100_000


class Bounds(NamedTuple):
    """The bounds of a control group: memory in bytes, and a number of processors. None where it sets no bound."""

    memory_bytes: int | None
    processors: float | None

    @property
    def says(self) -> str:
        """Both bounds in words, for the log."""
        memory = f"{self.memory_bytes >> 20} MiB" if self.memory_bytes is not None else "not bounded"
        processors = f"{self.processors:.2f}" if self.processors is not None else "not bounded"
        return f"memory {memory}, processors {processors}"


def bounds(root: Path = Path("/")) -> Bounds:
    """Returns the lowest bounds of this process's control group and the groups above it. `root` is the parent of /proc
    and /sys."""
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
    """Yields the folders of the control groups that limit this process in `controller` ("memory" or "cpu"), innermost
    first."""
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


logger = logging.getLogger(__name__)

PART = 8
"""Requests in flight, answers that clients have not read yet and the page cache of the log each get 1/PART of the
memory bound."""
MEMORY_MIN = 512 << 20
"""Bytes. With less memory than this, the kernel is likely to end a node under load."""


def fit_memory(config: Config, bound: int | None = None) -> Config:
    """Returns the configuration with its limits of memory lowered to what the control group allows; unchanged if there
    is no bound. `bound`: bytes, for tests."""
    memory = bound if bound is not None else bounds().memory_bytes
    if memory is None:
        return config
    limits, log, part = config.limits, config.log, memory // PART
    inflight = min(limits.node_inflight_bytes_max, max(part, limits.connection_inflight_bytes_max))
    unsent = min(limits.node_unsent_bytes_max, max(part, limits.connection_unsent_bytes_max))
    cached = min(log.page_cache_bytes_max or part, part)
    if (inflight, unsent, cached) == (
        limits.node_inflight_bytes_max,
        limits.node_unsent_bytes_max,
        log.page_cache_bytes_max,
    ):
        return config
    logger.warning(
        "the control group of this process allows %d MiB of memory, so limits.node_inflight_bytes_max is %d, "
        "limits.node_unsent_bytes_max %d and log.page_cache_bytes_max %d here",
        memory >> 20,
        inflight,
        unsent,
        cached,
    )
    return replace(
        config,
        limits=replace(limits, node_inflight_bytes_max=inflight, node_unsent_bytes_max=unsent),
        log=replace(log, page_cache_bytes_max=cached),
    )

"""Checks whether this machine suits a node: kernel settings, disk, clock, limits. Made for Linux; other systems get few
checks.

Each check reports what it found and, if it should be changed, what to change and why. The values of RocketMQ's os.sh
and of common advice are asked for only if they are right for a log that is synced for every batch; otherwise the check
gives the reason.
"""

from __future__ import annotations

import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

FILES_MIN = 65_536
SYNC_SLOW_MS = 20.0
SYNCS = 30
WIN = 0.9
"""A way to sync a write counts as quicker if its median time is at most this share of the other way's."""
SURE = 2 / 3
"""The quicker way must also have been quicker in at least this share of the turns."""
_UNSYNCED = 0x40
"""The flag STA_UNSYNC of adjtimex(2): the clock is not synchronized."""


class HostCheck(NamedTuple):
    """The result of one check."""

    name: str
    found: str
    finding: str = ""
    """The advised change and its reason; "" if nothing should be changed."""


class Setting(NamedTuple):
    """A kernel setting: a number below /proc/sys."""

    name: str
    is_good: Callable[[int], bool]
    wanted: str
    why: str


SETTINGS = (
    Setting(
        "vm/dirty_background_ratio",
        lambda value: value <= 10,
        "10 or less",
        "much unwritten data makes one sync wait for all of it; os.sh of RocketMQ sets 50 for its asynchronous flush",
    ),
    Setting("vm/dirty_ratio", lambda value: value <= 40, "40 or less", "writers are stopped when it is reached"),
    Setting(
        "vm/dirty_writeback_centisecs",
        lambda value: 0 < value <= 3_000,
        "500",
        "os.sh of RocketMQ sets 360000 (an hour): other programs' data then piles up in front of a sync",
    ),
    Setting("vm/swappiness", lambda value: value <= 10, "1", "a node whose memory is swapped out loses elections"),
    Setting(
        "vm/overcommit_memory",
        lambda value: value != 2,
        "0",
        "with 2 the kernel refuses memory that nobody uses, and so threads and RocksDB's tables, while much is free; "
        "os.sh of RocketMQ sets 1, which is as good as 0",
    ),
    Setting(
        "vm/zone_reclaim_mode",
        lambda value: value == 0,
        "0",
        "else the page cache of the log is dropped on one processor's memory while there is room on another's",
    ),
    Setting("vm/max_map_count", lambda value: value >= 65_530, "65530 or more", "RocksDB maps its table files"),
    Setting("net/core/somaxconn", lambda value: value >= 1_024, "1024 or more", "many clients connect again at once"),
)
SCHEDULERS = ("none", "mq-deadline", "deadline", "noop", "kyber")
"""I/O schedulers that do not delay a sync in favour of other processes, as bfq and cfq may."""
SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit")
"""Slow clock sources: to read one, a program must call the kernel, which takes a microsecond or more."""
BUSY_MAX = 0.8
LOOK_S = 1.0
RESERVE_BYTES = 64 << 20
RESERVE_SHARE = 0.005
"""The share of the memory that the kernel should keep free, where that is less than RESERVE_BYTES."""
VOLATILE = ("tmpfs", "ramfs", "overlay")


def host_checks(
    directory: Path, root: Path = Path("/"), wait: Callable[[float], None] = time.sleep
) -> Iterator[HostCheck]:
    """Yields all checks. `directory`: where the log is or will be; `root`: the root of /proc and /sys; `wait(s)` sleeps
    for s seconds, during which the disk is watched."""
    for setting in SETTINGS:
        yield _setting(setting, root)
    yield _reserve(root)
    yield _huge_pages(root)
    yield _swap(root)
    yield _file_system(directory, root)
    yield from _disk(directory, root)
    yield _disk_times(directory, root, wait)
    yield from _sync_speed(directory, root)
    yield _open_files()
    yield _clock()
    yield _clock_source(root)


def _setting(setting: Setting, root: Path) -> HostCheck:
    name = setting.name.replace("/", ".")
    try:
        value = int((root / "proc/sys" / setting.name).read_text())
    except (OSError, ValueError):
        return HostCheck(name, "not known on this system")
    if setting.is_good(value):
        return HostCheck(name, str(value))
    return HostCheck(name, str(value), f"set it to {setting.wanted}: {setting.why}")


def _reserve(root: Path) -> HostCheck:
    """Checks the memory that the kernel keeps free."""
    try:
        kept_kib = int((root / "proc/sys/vm/min_free_kbytes").read_text())
        wanted_kib = int(min(RESERVE_BYTES / 1024, RESERVE_SHARE * _memory_kib(root)["MemTotal"]))
    except (OSError, ValueError, KeyError):
        return HostCheck("vm.min_free_kbytes", "not known on this system")
    finding = (
        f"set it to {wanted_kib} or more: the log fills the page cache, and whoever needs memory then waits until some "
        "of it is free"
    )
    return HostCheck("vm.min_free_kbytes", str(kept_kib), finding if kept_kib < wanted_kib else "")


def _huge_pages(root: Path) -> HostCheck:
    """Checks whether a thread may have to wait until the kernel has compacted memory for huge pages."""
    try:
        place = root / "sys/kernel/mm/transparent_hugepage"
        enabled, defrag = (_chosen((place / name).read_text()) for name in ("enabled", "defrag"))
    except OSError:
        return HostCheck("huge pages", "not known on this system")
    waits = enabled == "always" and defrag == "always"
    finding = "set transparent_hugepage/defrag to madvise: who needs memory waits until 2 MiB of it are in one piece"
    return HostCheck("huge pages", f"{enabled}, defrag {defrag}", finding if waits else "")


def _chosen(line: str) -> str:
    """Returns the word in brackets, by which the kernel marks the current choice; the first word if none is in
    brackets."""
    words = line.split()
    return next((word.strip("[]") for word in words if word.startswith("[")), words[0] if words else "none")


def _memory_kib(root: Path) -> dict[str, int]:
    """Returns name -> KiB of /proc/meminfo. Raises OSError, and ValueError for a line of another form."""
    rows = (line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines())
    return {name: int(value.split()[0]) for name, value in rows}


def _swap(root: Path) -> HostCheck:
    try:
        rows = _memory_kib(root)
        used_kib = rows["SwapTotal"] - rows["SwapFree"]
    except (OSError, ValueError, KeyError):
        return HostCheck("swap", "not known on this system")
    finding = (
        "memory is swapped out: give the machine more memory, or take programs off it" if used_kib > 65_536 else ""
    )
    return HostCheck("swap", f"{used_kib // 1024} MiB in use", finding)


def _file_system(directory: Path, root: Path) -> HostCheck:
    """Checks the file system that the directory lies on (the longest mount point above it)."""
    path = str(directory.absolute())
    try:
        mounts = [line.split() for line in (root / "proc/mounts").read_text().splitlines()]
    except OSError:
        return HostCheck("file system", "not known on this system")
    above = [row for row in mounts if len(row) > 3 and (path + "/").startswith(row[1].rstrip("/") + "/")]
    if not above:
        return HostCheck("file system", "not known on this system")
    _, place, kind, options = max(above, key=lambda row: len(row[1]))[:4]
    finding = ""
    words = options.split(",")
    if kind in VOLATILE:
        finding = f"{kind} does not keep data over a restart of the machine: use ext4 or xfs on a disk"
    elif kind.startswith(("nfs", "cifs", "fuse", "9p")):
        finding = f"a sync on {kind} may return before the data is safe: use a local disk"
    elif "nobarrier" in words or "barrier=0" in words:
        finding = "without barriers a sync may return before the disk has the data: mount with barriers"
    elif "data=writeback" in words or "noload" in words:
        finding = "a file may hold foreign bytes after a crash: mount with data=ordered, and keep the journal"
    elif not {"noatime", "relatime"} & set(words):
        finding = "each read of the log is a write to the disk: mount with noatime, or relatime, the usual"
    return HostCheck("file system", f"{kind} at {place} ({options})", finding)


def _disk(directory: Path, root: Path) -> Iterator[HostCheck]:
    try:
        device = _device(directory, root)
        queue = _queue(device)
        rotates = (queue / "rotational").read_text().strip() == "1"
        chosen = _chosen((queue / "scheduler").read_text())
    except (OSError, StopIteration):
        yield HostCheck("disk", "not known on this system")
        return
    slow = "each sync waits for the platter, some 10 ms: use an SSD, and not one rotating disk beside SSDs"
    yield HostCheck("disk", "rotational" if rotates else "solid state", slow if rotates else "")
    other = f"use one of {', '.join(SCHEDULERS[:2])}: {chosen} may hold a sync back in favour of other programs"
    yield HostCheck("io scheduler", chosen, "" if chosen in SCHEDULERS else other)


def _queue(device: Path) -> Path:
    """Returns the folder of the device's request queue; for a partition, that of its disk. Raises StopIteration if
    there is none."""
    return next(place / "queue" for place in (device, device.parent) if (place / "queue").is_dir())


def _device(directory: Path, root: Path) -> Path:
    """Returns the folder below /sys of the device that the directory is on. Raises OSError if there is none."""
    number = directory.stat().st_dev
    return (root / f"sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve(strict=True)


class _Times(NamedTuple):
    """The work of a disk since the machine started; a write counts as ended when the disk reports it, even if it is
    only in the disk's cache."""

    reads: int
    read_ms: int
    writes: int
    write_ms: int
    busy_ms: int

    @classmethod
    def of(cls, device: Path) -> _Times:
        """Reads the figures of a device. Raises OSError, and ValueError for a file of another form."""
        fields = [int(word) for word in (device / "stat").read_text().split()]
        if len(fields) < 10:
            raise ValueError(f"{len(fields)} fields")
        return cls(fields[0], fields[3], fields[4], fields[7], fields[9])

    def since(self, before: _Times) -> _Times:
        """Returns the work since the reading `before`."""
        return _Times(*(now - then for now, then in zip(self, before, strict=True)))

    @property
    def says(self) -> str:
        """The mean times of a read and of a write, in words."""
        means = [("read", self.reads, self.read_ms), ("write", self.writes, self.write_ms)]
        return ", ".join(f"a {what} took {ms / count:.2f} ms" for what, count, ms in means if count) or "no request"


def _disk_times(directory: Path, root: Path, wait: Callable[[float], None]) -> HostCheck:
    """Watches the disk for LOOK_S seconds, and checks how busy all programs keep it and how long its writes take."""
    try:
        device = _device(directory, root)
        begun_s, before = time.monotonic(), _Times.of(device)
        wait(LOOK_S)
        after, took_ms = _Times.of(device), 1000 * max(LOOK_S, time.monotonic() - begun_s)
    except (OSError, ValueError):
        return HostCheck("disk times", "not known on this system")
    seen = after.since(before)
    busy = min(1.0, seen.busy_ms / took_ms)
    findings = []
    if busy > BUSY_MAX:
        findings.append("the disk has hardly time for more: take other programs off it, or give the log one of its own")
    if seen.writes and seen.write_ms / seen.writes >= SYNC_SLOW_MS:
        findings.append(f"a write that takes {SYNC_SLOW_MS:g} ms and more holds each batch of messages up")
    found = (
        f"busy for {100 * busy:.0f} % of {took_ms / 1000:.1f} s ({seen.says}); since the machine started: {after.says}"
    )
    return HostCheck("disk times", found, "; ".join(findings))


def _sync_speed(directory: Path, root: Path) -> Iterator[HostCheck]:
    """Measures SYNCS turns of two writes of 4 KiB over existing bytes of a temporary file, one with fdatasync and one
    with O_DSYNC. The log uses fdatasync, which covers several writes at once."""
    page = b"\0" * 4096
    both: list[tuple[float, float]] = []
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            number = file.fileno()
            os.pwrite(number, page, 0)
            os.fdatasync(number)
            for _ in range(SYNCS):
                began = time.perf_counter()
                os.pwrite(number, page, 0)
                os.fdatasync(number)
                between = time.perf_counter()
                if hasattr(os, "RWF_DSYNC"):
                    os.pwritev(number, [page], 0, os.RWF_DSYNC)
                both.append((1000 * (between - began), 1000 * (time.perf_counter() - between)))
    except OSError as error:
        yield HostCheck("sync", f"not measured: {error.strerror}", "the directory must be writable")
        return
    times = [each for each, _ in both]
    median = statistics.median(times)
    slow = f"every batch of messages waits for this; {SYNC_SLOW_MS:g} ms and more make the alarm disk_slow likely"
    found = f"fdatasync takes {median:.2f} ms (median of {SYNCS}), at most {max(times):.1f} ms"
    yield HostCheck("sync", found, slow if median >= SYNC_SLOW_MS else "")
    if not hasattr(os, "RWF_DSYNC"):
        yield HostCheck("synced write", "not known on this system")
        return
    yield HostCheck("synced write", f"{_forced_access(directory, root)}; {compared(both)}")


def _forced_access(directory: Path, root: Path) -> str:
    """Returns, in words, whether the disk can write one request past its cache (FUA) instead of emptying the whole
    cache for it."""
    try:
        queue = _queue(_device(directory, root))
        caches = (queue / "write_cache").read_text().strip() == "write back"
        forces = (queue / "fua").read_text().strip() == "1"
    except (OSError, StopIteration):
        return "FUA not known on this system"
    if not caches:
        return "no volatile cache, so nothing for FUA to pass by"
    return "the disk has FUA" if forces else "the disk has no FUA, so each sync empties its cache"


def compared(both: Sequence[tuple[float, float]]) -> str:
    """Returns a comparison, in words, of two ways to sync a write. `both`: milliseconds of each write with fdatasync,
    and of the one with O_DSYNC right after it. The disk's speed changes by the minute, so each is compared with its
    neighbour."""
    fdatasync, dsync = (statistics.median(column) for column in zip(*both, strict=True))
    quicker = sum(with_dsync < with_fdatasync for with_fdatasync, with_dsync in both)
    if dsync <= WIN * fdatasync and quicker >= SURE * len(both):
        told = "would win"
    elif fdatasync <= WIN * dsync and len(both) - quicker >= SURE * len(both):
        told = "would lose"
    else:
        told = "would change little"
    return f"with O_DSYNC it takes {dsync:.2f} ms, quicker in {quicker} of {len(both)} turns: O_DSYNC {told}"


def _open_files() -> HostCheck:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = f"raise it to {FILES_MIN} (LimitNOFILE=, ulimit -n): connections and table files need one each"
    return HostCheck("open files", str(soft), few if 0 <= soft < FILES_MIN else "")


def _clock() -> HostCheck:
    import ctypes

    try:
        buffer = ctypes.create_string_buffer(512)  # an all-zero struct timex only reads
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
        status = int.from_bytes(buffer.raw[40:44], "little")
    except (OSError, AttributeError):
        return HostCheck("clock", "not known on this system")
    if state < 0:
        return HostCheck("clock", "not known on this system")
    if status & _UNSYNCED:
        return HostCheck("clock", "not synchronised", "start a time service (chrony, systemd-timesyncd)")
    return HostCheck("clock", "synchronised")


def _clock_source(root: Path) -> HostCheck:
    try:
        name = (root / "sys/devices/system/clocksource/clocksource0/current_clocksource").read_text().strip()
    except OSError:
        return HostCheck("clock source", "not known on this system")
    finding = f"use tsc: {name} costs a microsecond and more each time, and a node reads it several times per batch"
    return HostCheck("clock source", name, finding if name in SLOW_CLOCKS else "")

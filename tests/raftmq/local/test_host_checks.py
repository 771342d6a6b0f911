"""`raftmq doctor --host`: what is found on a machine, and what should be changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from raftmq.local.host_checks import LOOK_S, SETTINGS, HostCheck, compared, host_checks

GOOD = {
    "vm/dirty_background_ratio": 10,
    "vm/dirty_ratio": 20,
    "vm/dirty_writeback_centisecs": 500,
    "vm/swappiness": 1,
    "vm/overcommit_memory": 0,
    "vm/zone_reclaim_mode": 0,
    "vm/max_map_count": 65_530,
    "net/core/somaxconn": 4_096,
}
FILES = {
    "proc/meminfo": "MemTotal: 16000000 kB\nSwapTotal: 200000 kB\nSwapFree: 200000 kB\nHugePages_Total: 0\n",
    "proc/mounts": "/dev/sda1 / ext4 rw,relatime 0 0\n",
    "proc/sys/vm/min_free_kbytes": "67584\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
    "sys/kernel/mm/transparent_hugepage/defrag": "always defer defer+madvise [madvise] never\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
}


NOT_KNOWN = (
    "vm.swappiness",
    "vm.min_free_kbytes",
    "huge pages",
    "swap",
    "file system",
    "disk",
    "disk times",
    "clock source",
)


@pytest.fixture(autouse=True)
def few_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The speed of the disk is no matter of these tests."""
    monkeypatch.setattr("raftmq.local.host_checks.SYNCS", 2)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine whose kernel is set as it should be."""
    for name, value in GOOD.items():
        place = tmp_path / "proc/sys" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{value}\n")
    for name, text in FILES.items():
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return tmp_path


def findings(machine: Path) -> dict[str, str]:
    return {each.name: each.finding for each in host_checks(machine, machine) if each.finding}


def about_files(machine: Path) -> dict[str, str]:
    """Returns the checks without those that depend on the machine that runs the test."""
    return {name: text for name, text in findings(machine).items() if name not in ("sync", "open files", "clock")}


def test_a_good_machine(machine: Path) -> None:
    assert about_files(machine) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vm/dirty_background_ratio", 50),
        ("vm/dirty_ratio", 50),
        ("vm/dirty_writeback_centisecs", 360_000),
        ("vm/swappiness", 60),
        ("vm/overcommit_memory", 2),
        ("vm/zone_reclaim_mode", 1),
        ("vm/max_map_count", 1_000),
        ("net/core/somaxconn", 128),
    ],
)
def test_each_setting_that_should_be_changed(machine: Path, name: str, value: int) -> None:
    (machine / "proc/sys" / name).write_text(f"{value}\n")
    (found,) = about_files(machine).items()
    assert found[0] == name.replace("/", ".")
    assert found[1].startswith("set it to ")
    assert len(GOOD) == len(SETTINGS)


@pytest.mark.parametrize(
    ("mount", "says"),
    [
        ("tmpfs / tmpfs rw 0 0", "does not keep data"),
        ("server:/x / nfs4 rw 0 0", "local disk"),
        ("/dev/sda1 / ext4 rw,nobarrier 0 0", "barriers"),
        ("/dev/sda1 / ext4 rw,data=writeback 0 0", "data=ordered"),
        ("/dev/sda1 / ext4 rw 0 0", "noatime"),
    ],
)
def test_file_systems_that_lose_data_or_write_at_each_read(machine: Path, mount: str, says: str) -> None:
    (machine / "proc/mounts").write_text(f"{mount}\n")
    assert says in about_files(machine)["file system"]


def test_the_nearest_mount_counts(machine: Path) -> None:
    (machine / "proc/mounts").write_text(f"tmpfs / tmpfs rw 0 0\n/dev/sdb1 {machine} xfs rw,noatime 0 0\n")
    assert about_files(machine) == {}


def test_memory_that_is_swapped_out(machine: Path) -> None:
    (machine / "proc/meminfo").write_text("MemTotal: 16000000 kB\nSwapTotal: 900000 kB\nSwapFree: 100000 kB\n")
    assert "swapped out" in about_files(machine)["swap"]


@pytest.mark.parametrize(
    ("memory_kib", "kept_kib", "wanted_kib"),
    [
        (16_000_000, 65_536, None),
        (16_000_000, 65_535, 65_536),
        (4_000_000, 20_000, None),
        (4_000_000, 11_000, 20_000),
        (256_000_000, 67_584, None),
    ],
)
def test_memory_that_the_kernel_keeps_free(
    machine: Path, memory_kib: int, kept_kib: int, wanted_kib: int | None
) -> None:
    """A share of a small memory, 64 MiB of a large one."""
    (machine / "proc/meminfo").write_text(f"MemTotal: {memory_kib} kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n")
    (machine / "proc/sys/vm/min_free_kbytes").write_text(f"{kept_kib}\n")
    found = about_files(machine)
    if wanted_kib is None:
        assert found == {}
    else:
        assert found.pop("vm.min_free_kbytes").startswith(f"set it to {wanted_kib} or more")
        assert found == {}


@pytest.mark.parametrize(
    ("enabled", "defrag", "waits"),
    [
        ("[always] madvise never", "[always] defer madvise never", True),
        ("[always] madvise never", "always [defer] madvise never", False),
        ("always [madvise] never", "[always] defer madvise never", False),
        ("always madvise [never]", "[always] defer madvise never", False),
    ],
)
def test_huge_pages_for_which_a_thread_waits(machine: Path, enabled: str, defrag: str, waits: bool) -> None:
    for name, text in (("enabled", enabled), ("defrag", defrag)):
        (machine / "sys/kernel/mm/transparent_hugepage" / name).write_text(f"{text}\n")
    assert (about_files(machine).keys() == {"huge pages"}) == waits


@pytest.mark.parametrize(("name", "slow"), [("tsc", False), ("kvm-clock", False), ("hpet", True), ("acpi_pm", True)])
def test_a_clock_that_is_slow_to_read(machine: Path, name: str, slow: bool) -> None:
    (machine / "sys/devices/system/clocksource/clocksource0/current_clocksource").write_text(f"{name}\n")
    assert (about_files(machine).keys() == {"clock source"}) == slow


def with_disk(machine: Path, *, scheduler: str = "[none] mq-deadline", rotates: int = 0) -> Path:
    """Gives the machine a disk; returns the file with the times of its requests."""
    number = machine.stat().st_dev
    device = machine / f"sys/dev/block/{os.major(number)}:{os.minor(number)}"
    (device / "queue").mkdir(parents=True)
    (device / "queue/scheduler").write_text(f"{scheduler}\n")
    (device / "queue/rotational").write_text(f"{rotates}\n")
    stat = device / "stat"
    stat.write_text(stat_of())
    return stat


def stat_of(reads: int = 100, read_ms: int = 50, writes: int = 200, write_ms: int = 300, busy_ms: int = 1_000) -> str:
    return f" {reads} 0 800 {read_ms} {writes} 0 1600 {write_ms} 0 {busy_ms} 350 0 0 0 0 10 20\n"


def disk_times(machine: Path, wait: Callable[[float], None]) -> HostCheck:
    (found,) = [each for each in host_checks(machine, machine, wait) if each.name == "disk times"]
    return found


@pytest.mark.parametrize(
    ("scheduler", "rotates", "wrong"),
    [
        ("[none] mq-deadline", 0, None),
        ("none [mq-deadline] bfq", 0, None),
        ("none mq-deadline [bfq]", 0, "io scheduler"),
        ("[cfq] deadline", 0, "io scheduler"),
        ("[none]", 1, "disk"),
    ],
)
def test_disks_that_make_a_sync_wait(machine: Path, scheduler: str, rotates: int, wrong: str | None) -> None:
    with_disk(machine, scheduler=scheduler, rotates=rotates)
    found = {each.name for each in host_checks(machine, machine, lambda _: None) if each.finding}
    assert found - {"sync", "open files", "clock"} == ({wrong} if wrong else set())


@pytest.mark.parametrize(
    ("after", "says", "advice"),
    [
        (stat_of(), "busy for 0 % of 1.0 s (no request)", []),
        (stat_of(reads=110, read_ms=55, writes=210, write_ms=320, busy_ms=1_300), "a write took 2.00 ms)", []),
        (stat_of(busy_ms=1_900), "busy for 90 % of", ["one of its own"]),
        (stat_of(writes=210, write_ms=500, busy_ms=1_200), "a write took 20.00 ms)", ["20 ms and more"]),
        (stat_of(writes=210, write_ms=2_300, busy_ms=9_999), "busy for 100 %", ["one of its own", "20 ms and more"]),
    ],
)
def test_what_a_disk_does_meanwhile(machine: Path, after: str, says: str, advice: list[str]) -> None:
    stat = with_disk(machine)
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        stat.write_text(after)

    found = disk_times(machine, wait)
    assert waited == [LOOK_S]
    assert says in found.found
    parts = found.finding.split("; ") if found.finding else []
    assert len(parts) == len(advice)
    assert all(wanted in part for wanted, part in zip(advice, parts, strict=True))


def test_a_disk_also_tells_what_it_did_since_the_machine_started(machine: Path) -> None:
    with_disk(machine)
    assert disk_times(machine, lambda _: None).found.endswith(
        "since the machine started: a read took 0.50 ms, a write took 1.50 ms"
    )


@pytest.mark.parametrize("text", ["", "1 2 3\n", "a b c d e f g h i j k\n"])
def test_times_of_another_form_are_not_guessed_at(machine: Path, text: str) -> None:
    with_disk(machine).write_text(text)
    assert disk_times(machine, lambda _: None) == HostCheck("disk times", "not known on this system")


def test_another_system_is_not_guessed_at(tmp_path: Path) -> None:
    found = {each.name: each.found for each in host_checks(tmp_path, tmp_path / "nothing")}
    assert {found[name] for name in NOT_KNOWN} == {"not known on this system"}
    assert found["sync"].startswith("fdatasync takes ")


@pytest.mark.parametrize(
    ("write_cache", "fua", "says"),
    [
        ("write back", "1", "the disk has FUA;"),
        ("write back", "0", "no FUA, so each sync empties its cache;"),
        ("write through", "0", "no volatile cache"),
    ],
)
def test_whether_the_disk_writes_through_its_cache(machine: Path, write_cache: str, fua: str, says: str) -> None:
    """A partition has the queue of its disk. Nothing of it is a finding: no setting of a node depends on it."""
    number = machine.stat().st_dev
    link = machine / f"sys/dev/block/{os.major(number)}:{os.minor(number)}"
    link.mkdir(parents=True)
    queue = link.parent / "queue"
    queue.mkdir()
    (queue / "write_cache").write_text(f"{write_cache}\n")
    (queue / "fua").write_text(f"{fua}\n")
    (found,) = [each for each in host_checks(machine, machine, lambda _: None) if each.name == "synced write"]
    assert says in found.found
    assert "with O_DSYNC it takes" in found.found
    assert not found.finding


@pytest.mark.parametrize(
    ("both", "says"),
    [
        ([(1.0, 0.5)] * 3, "quicker in 3 of 3 turns: O_DSYNC would win"),
        ([(0.5, 1.0)] * 3, "quicker in 0 of 3 turns: O_DSYNC would lose"),
        ([(1.0, 0.95)] * 3, "O_DSYNC would change little"),
        ([(1.0, 0.5), (0.4, 0.5), (0.4, 0.5)], "quicker in 1 of 3 turns: O_DSYNC would lose"),
        ([(9.0, 1.0), (1.0, 1.1), (1.0, 1.1)], "O_DSYNC would change little"),
    ],
)
def test_what_pairs_of_times_say(both: list[tuple[float, float]], says: str) -> None:
    """One slow turn decides nothing."""
    assert says in compared(both)

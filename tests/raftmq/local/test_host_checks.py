"""`raftmq doctor --host`: what is found on a machine, and what should be changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftmq.local.host_checks import SETTINGS, host_checks

GOOD = {
    "vm/dirty_background_ratio": 10,
    "vm/dirty_ratio": 20,
    "vm/dirty_writeback_centisecs": 500,
    "vm/swappiness": 1,
    "vm/max_map_count": 65_530,
    "net/core/somaxconn": 4_096,
}


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine whose kernel is set as it should be."""
    for name, value in GOOD.items():
        place = tmp_path / "proc/sys" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{value}\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal: 100 kB\nSwapTotal: 200000 kB\nSwapFree: 200000 kB\n")
    (tmp_path / "proc/mounts").write_text("/dev/sda1 / ext4 rw,relatime 0 0\n")
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
    ],
)
def test_file_systems_that_lose_data(machine: Path, mount: str, says: str) -> None:
    (machine / "proc/mounts").write_text(f"{mount}\n")
    assert says in about_files(machine)["file system"]


def test_the_nearest_mount_counts(machine: Path) -> None:
    (machine / "proc/mounts").write_text(f"tmpfs / tmpfs rw 0 0\n/dev/sdb1 {machine} xfs rw 0 0\n")
    assert about_files(machine) == {}


def test_memory_that_is_swapped_out(machine: Path) -> None:
    (machine / "proc/meminfo").write_text("SwapTotal: 900000 kB\nSwapFree: 100000 kB\n")
    assert "swapped out" in about_files(machine)["swap"]


def test_another_system_is_not_guessed_at(tmp_path: Path) -> None:
    found = {each.name: each.found for each in host_checks(tmp_path, tmp_path / "nothing")}
    assert {found[name] for name in ("vm.swappiness", "swap", "file system", "disk")} == {"not known on this system"}
    assert found["sync"].startswith("fdatasync takes ")

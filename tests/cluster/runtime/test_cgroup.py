"""Bounds of a control group, as both versions write them, and what a node makes of them."""

from __future__ import annotations

from pathlib import Path

from cluster.config.loading import load
from cluster.runtime.host.cgroup import bounds, fit_memory, machine_memory_bytes, memory_bytes
from tests.support.rows import each_row

MIB = 1 << 20


def machine(root: Path, groups: str, **files: str) -> Path:
    """A root with /proc/self/cgroup and files below /sys/fs/cgroup, __ for /."""
    for name, text in {"proc__self__cgroup": groups, **{f"sys__fs__cgroup__{k}": v for k, v in files.items()}}.items():
        path = root.joinpath(*name.replace("_DOT_", ".").split("__"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_version_2(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/a/b\n", a__b__memory_DOT_max=f"{700 * MIB}\n", a__b__cpu_DOT_max="150000 100000\n")
    assert bounds(root) == (700 * MIB, 1.5)


def test_the_group_above_bounds_too(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/a/b\n", a__b__memory_DOT_max="max\n", a__memory_DOT_max=f"{600 * MIB}\n")
    assert bounds(root) == (600 * MIB, None)
    assert memory_bytes(root) == 600 * MIB


def test_version_1_in_a_container_whose_path_lies_outside(tmp_path: Path) -> None:
    groups = "5:memory:/docker/4711\n3:cpu,cpuacct:/docker/4711\n"
    root = machine(
        tmp_path,
        groups,
        memory__memory_DOT_limit_in_bytes=f"{512 * MIB}",
        cpu__cpu_DOT_cfs_quota_us="50000",
        cpu__cpu_DOT_cfs_period_us="100000",
    )
    assert bounds(root) == (512 * MIB, 0.5)


@each_row("text", ["max", "-1", "", "9223372036854771712", "seven"])
def test_what_is_no_bound(tmp_path: Path, text: str) -> None:
    files = {"memory_DOT_max": text, "memory__memory_DOT_limit_in_bytes": text, "cpu_DOT_max": "max 100000"}
    root = machine(tmp_path, "0::/\n4:memory:/\n", **files)
    assert bounds(root) == (None, None)
    assert memory_bytes(root) == machine_memory_bytes()


def test_a_node_holds_no_more_in_memory_than_its_group_allows() -> None:
    config = load(overrides={"node": {"id": 1, "data_dir": "/nowhere"}, "listeners": [{"name": "b", "port": 1}]})
    fitted = fit_memory(config, 512 * MIB)
    assert fitted.limits.node_inflight_bytes_max == 64 * MIB
    assert fitted.log.page_cache_bytes_max == 64 * MIB
    assert fitted.limits.node_unsent_bytes_max <= 64 * MIB
    tiny = fit_memory(config, 16 * MIB).limits
    assert tiny.node_inflight_bytes_max == tiny.connection_inflight_bytes_max, "one connection still fits"
    assert fit_memory(config, 64 << 30) == config

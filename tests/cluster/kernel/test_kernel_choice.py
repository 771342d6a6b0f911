"""Which kernel a process takes, and what it says about it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cluster import kernel
from cluster.kernel import Kernel
from tests.support.kernels import kernel_named

ROOT = Path(__file__).parents[3]
TELL = "import json; from cluster import kernel; print(json.dumps([kernel.NAME, kernel.WHY, kernel.frames(b'', 1)]))"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """cluster.kernel alone, with the native module."""
    kernel_named("native")
    for name in ("cluster", "cluster/kernel"):
        (tmp_path / name).mkdir()
    shutil.copy(ROOT / "cluster/__init__.py", tmp_path / "cluster")
    for path in (ROOT / "cluster/kernel").glob("*.*"):
        shutil.copy2(path, tmp_path / "cluster/kernel")
    return tmp_path


def told(tree: Path, **variables: str) -> tuple[str, str]:
    """NAME and WHY of a process in that tree."""
    env = {key: value for key, value in os.environ.items() if key != kernel.VARIABLE} | variables
    done = subprocess.run(
        [sys.executable, "-c", TELL], cwd=tree, env=env | {"PYTHONPATH": str(tree)}, capture_output=True, timeout=60
    )
    name, why, found = json.loads(done.stdout)
    assert found == [[], 0, None]
    return name, why


def native_of(tree: Path) -> Path:
    (path,) = (tree / "cluster/kernel").glob("_native.*.so")
    return path


def test_the_native_kernel_is_taken_where_it_is(tree: Path) -> None:
    assert told(tree) == ("native", "")


def test_the_variable_takes_the_one_in_python(tree: Path) -> None:
    assert told(tree, RAFTMQ_KERNEL="python") == ("python", "RAFTMQ_KERNEL=python")


def test_it_was_not_built(tree: Path) -> None:
    native_of(tree).unlink()
    name, why = told(tree)
    assert name == "python"
    assert "was not built; `make setup`" in why


def test_it_was_built_for_another_python(tree: Path) -> None:
    path = native_of(tree)
    path.rename(path.with_name("_native.cpython-310-x86_64-linux-gnu.so"))
    name, why = told(tree)
    assert name == "python"
    assert "built for another Python (_native.cpython-310" in why


def test_it_does_not_load(tree: Path) -> None:
    native_of(tree).write_bytes(b"no library")
    name, why = told(tree)
    assert name == "python"
    assert "does not load" in why


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        ("_python.py", "\nVERSION = ", "\nVERSION = 1", "the native kernel has version"),
        ("_native.pyx", "\nVERSION = ", "\nVERSION =  ", "was built from another _native.pyx"),
    ],
)
def test_it_belongs_to_another_tree(tree: Path, file: str, old: str, new: str, reason: str) -> None:
    path = tree / "cluster/kernel" / file
    path.write_text(path.read_text().replace(old, new, 1))
    name, why = told(tree)
    assert name == "python"
    assert reason in why


def test_where_there_is_no_source_it_need_not_agree(tree: Path) -> None:
    """As in an installed wheel."""
    (tree / "cluster/kernel/_native.pyx").unlink()
    assert told(tree) == ("native", "")


def test_both_have_the_same_functions(each_kernel: Kernel) -> None:
    """And no caller takes one from the modules themselves."""
    names = {name for name in vars(Kernel) if not name.startswith("_")}
    assert {name for name in vars(each_kernel) if not name.startswith("_")} >= names
    assert set(vars(kernel)) >= names | {"VERSION"}

"""The kernel that a process takes, and what it says about it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from raftmq_wire import kernel
from tests.support.kernels import native_kernel, twins
from tests.support.pace import at_most

ROOT = Path(__file__).parents[3]
TELL = """
import json
from raftmq_wire import kernel

def frames(data, limit):
    return "the twin"

used = kernel.twin(frames)(b"", 1)
print(json.dumps([kernel.NAME, kernel.WHY, used]))
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """raftmq_wire.kernel alone, with the native module of this Python."""
    native_kernel()
    (tmp_path / "raftmq_wire/kernel").mkdir(parents=True)
    shutil.copy(ROOT / "raftmq_wire/__init__.py", tmp_path / "raftmq_wire")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for path in (ROOT / "raftmq_wire/kernel").glob("*.*"):
        if path.suffix == ".so" and path.name != f"_native{suffix}":
            continue  # of another Python
        shutil.copy2(path, tmp_path / "raftmq_wire/kernel")
    return tmp_path


def told(tree: Path, **variables: str) -> tuple[str, str]:
    """NAME and WHY of a process in that tree."""
    env = {key: value for key, value in os.environ.items() if key != kernel.VARIABLE} | variables
    done = subprocess.run(
        [sys.executable, "-c", TELL],
        cwd=tree,
        env=env | {"PYTHONPATH": str(tree)},
        capture_output=True,
        timeout=at_most(60),
    )
    name, why, used = json.loads(done.stdout)
    assert used == ("the twin" if name == "python" else [[], 0, None])
    return name, why


def native_of(tree: Path) -> Path:
    (path,) = (tree / "raftmq_wire/kernel").glob("_native.*.so")
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


def test_an_installed_wheel_has_none(tree: Path) -> None:
    native_of(tree).unlink()
    (tree / "raftmq_wire/kernel/_native.pyx").unlink()
    name, why = told(tree)
    assert name == "python"
    again = "pip install --force-reinstall --no-deps"
    assert f"without the native kernel: {again} --no-binary raftmq raftmq, which builds the source" in why
    assert f"from a folder of wheels: {again} --no-index --find-links FOLDER raftmq" in why


def test_an_installed_wheel_is_of_another_python(tree: Path) -> None:
    path = native_of(tree)
    path.rename(path.with_name("_native.cpython-310-x86_64-linux-gnu.so"))
    (tree / "raftmq_wire/kernel/_native.pyx").unlink()
    name, why = told(tree)
    assert name == "python"
    assert "for another Python (_native.cpython-310-x86_64-linux-gnu.so): pip install" in why


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
        ("__init__.py", "\nVERSION = ", "\nVERSION = 1", "the native kernel has version"),
        ("_native.pyx", "\nVERSION = ", "\nVERSION =  ", "was built from another _native.pyx"),
    ],
)
def test_it_belongs_to_another_tree(tree: Path, file: str, old: str, new: str, reason: str) -> None:
    path = tree / "raftmq_wire/kernel" / file
    path.write_text(path.read_text().replace(old, new, 1))
    name, why = told(tree)
    assert name == "python"
    assert reason in why


def test_where_there_is_no_source_it_need_not_agree(tree: Path) -> None:
    """An installed wheel has no source."""
    (tree / "raftmq_wire/kernel/_native.pyx").unlink()
    assert told(tree) == ("native", "")


def test_every_name_has_a_twin_or_is_a_shortcut_and_each_is_replaced() -> None:
    """What takes nothing in Python is no twin: it would be no reference."""
    module = native_kernel()
    own = {name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    assert {name for name in own if not name.startswith("_")} == set(twins()) | set(kernel.SHORTCUTS)
    assert set(kernel.SHORTCUTS) == {"Intake", "PlainBatches", "acknowledge", "add_sessions"}
    assert not set(kernel.SHORTCUTS) & set(twins())
    assert {twin.__name__ for twin in twins().values()} == set(twins()), "two twins of one name"

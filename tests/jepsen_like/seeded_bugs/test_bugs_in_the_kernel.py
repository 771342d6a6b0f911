"""A copy with a bug runs the kernel that has the bug."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from jepsen_like.seeded_bugs import kernels
from jepsen_like.seeded_bugs.catalogue import SOURCE_ROOT, Bug, BugError, Edit, load, make_copy
from raftmq_wire import kernel
from tests.support.pace import at_most
from tests.support.tools import needs

pytestmark = [pytest.mark.ci, needs("compiler")]

TELL = """
from cluster.runtime.framing import frames
from raftmq_wire import kernel

print(kernel.NAME, frames(bytes(4), 9)[1])
"""


SMALL = """
cdef extern from *:
    const char* RAFTMQ_KERNEL_SOURCE

VERSION = %d
SOURCE = RAFTMQ_KERNEL_SOURCE.decode()

def frames(data, limit):
    return [(4, 4)], 4, None
"""
"""A kernel that is compiled in no time."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The product with a small kernel."""
    root = tmp_path_factory.mktemp("root")
    for name in (*kernels.BUILD_FILES, "raftlog", "statemachine", "cluster", "raftmq", "jepsen_like"):
        (root / name).symlink_to(SOURCE_ROOT / name)
    copied = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(SOURCE_ROOT / "raftmq_wire", root / "raftmq_wire", ignore=copied)
    source = SMALL % kernel.VERSION
    (root / kernels.SOURCE).write_text(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(kernel.VARIABLE, raising=False)
        built = kernels.compiled(source, root)
    shutil.copy(built, root / "raftmq_wire/kernel" / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}")
    return root


@pytest.fixture
def root(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies are made from there, and the environment chooses no kernel."""
    monkeypatch.setattr("jepsen_like.seeded_bugs.catalogue.SOURCE_ROOT", tree)
    monkeypatch.delenv(kernel.VARIABLE, raising=False)
    return tree


def bug(file: str, find: str, replace: str, kernel: str = "") -> Bug:
    return Bug("K99", "", "", "full", ("protocol",), "", (Edit(file, find, replace),), kernel)


def told(copy: Path) -> str:
    """The kernel in use, and where frames() says that the first frame ends; 4 is right."""
    env = os.environ | {"PYTHONPATH": str(copy)}
    done = subprocess.run(
        [sys.executable, "-c", TELL], cwd=copy, env=env, capture_output=True, text=True, timeout=at_most(60)
    )
    return done.stdout.strip() or done.stderr


IN_TWIN = bug("cluster/runtime/framing.py", "    return found, at, None\n", "    return found, 77, None\n")
IN_NATIVE = bug("raftmq_wire/kernel/_native.pyx", "    return [(4, 4)], 4, None\n", "    return [(4, 4)], 78, None\n")
ELSEWHERE = bug("cluster/runtime/resource_budget.py", "from __future__ import annotations\n", "\n")
PASSED_BY = bug("cluster/remoting/handlers/send.py", "from __future__ import annotations\n", "\n")
BESIDE_IT = bug("cluster/runtime/resource_budget.py", "from __future__ import annotations\n", "\n", "python")


@pytest.mark.parametrize(
    ("bug", "expected"),
    [
        (None, "native 4"),
        (ELSEWHERE, "native 4"),
        (BESIDE_IT, "python 4"),
        (PASSED_BY, "python 4"),
        (IN_TWIN, "python 77"),
    ],
)
def test_the_kernel_of_a_copy(root: Path, tmp_path: Path, bug: Bug | None, expected: str) -> None:
    make_copy(tmp_path / "copy", bug)
    assert told(tmp_path / "copy") == expected


def test_the_files_that_it_passes_by_exist() -> None:
    assert [file for file in kernels.PASSED_BY if not (SOURCE_ROOT / file).exists()] == []


def test_a_bug_in_the_native_kernel_is_compiled_once(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_copy(tmp_path / "copy", IN_NATIVE)
    assert told(tmp_path / "copy") == "native 78"
    monkeypatch.setenv("CC", "no-such-compiler")
    make_copy(tmp_path / "another", IN_NATIVE)
    assert told(tmp_path / "another") == "native 78"
    monkeypatch.setenv(kernel.VARIABLE, "python")
    with pytest.raises(BugError, match="K99: the bug is in the native kernel, and RAFTMQ_KERNEL=python"):
        make_copy(tmp_path / "without", IN_NATIVE)


def test_a_bug_in_the_native_kernel_that_does_not_compile_is_an_error(root: Path, tmp_path: Path) -> None:
    """The copy must not run the twin instead, which has no bug."""
    broken = bug("raftmq_wire/kernel/_native.pyx", "    return [(4, 4)], 4, None\n", "    return no_such_name\n")
    with pytest.raises(BugError, match="undeclared name not builtin"):
        make_copy(tmp_path / "copy", broken)


def test_which_kernel_is_part_of_the_bugs_file(tmp_path: Path) -> None:
    fields = 'title = ""\npedigree = ""\nengine = "full"\ncheckers = ["a"]\nschedule = ""\nkernel = "{}"\n'
    edit = '[[edits]]\nfile = ""\nfind = ""\nreplace = ""\n'
    path = tmp_path / "K99.toml"
    path.write_text(fields.format("python") + edit)
    assert load(path).kernel == "python"
    path.write_text(fields.format("pyhton") + edit)
    with pytest.raises(BugError, match="kernel is python"):
        load(path)

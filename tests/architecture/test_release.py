"""`make release`: the same bytes in two places, nothing of runs inside, and a line for what was not made."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.rows import each_row
from tests.support.tools import needs

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", "node_modules", ".venv", ".git", ".mypy_cache", "build", "dist", "*.so"
)


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / ".ci")
        return runpy.run_path(str(ROOT / ".ci" / "release.py"))


def release(root: Path, *arguments: str, umask: int = 0o022) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", str(root / ".ci" / "release.py"), *arguments]
    return subprocess.run(
        command,
        cwd=root,
        env=os.environ | {"SOURCE_DATE_EPOCH": "1800000000"},
        umask=umask,
        capture_output=True,
        text=True,
    )


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("python", ["", pytest.param("{}.{}".format(*sys.version_info[:2]), marks=needs("compiler"))])
def test_two_builds_in_two_folders_give_the_same_files(tmp_path: Path, python: str) -> None:
    """Another folder, other times and owners of files, another umask."""
    shutil.copytree(ROOT, tmp_path / "elsewhere/copy", ignore=LEFT_OUT)
    for number, path in enumerate(sorted((tmp_path / "elsewhere").rglob("*.py"))):
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    pythons = f"--pythons={python or '3.99'}"
    here = ["--no-tools", pythons, f"--out={tmp_path / 'one'}", f"--work={tmp_path / 'work'}"]
    there = ["--no-tools", pythons]
    first, second = release(ROOT, *here), release(tmp_path / "elsewhere/copy", *there, umask=0o077)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    one, other = files(tmp_path / "one"), files(tmp_path / "elsewhere/copy/dist")
    assert [name for name in one if one[name] != other.get(name)] == []
    assert len(one) == (6 if python else 5)
    assert ("not run: no kernel wheel for CPython 3.99" in first.stdout) is not python


def test_an_archive_forgets_who_made_it_and_when(
    script: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1800000000")
    for name, order, rights in (("one", ("a", "b"), 0o600), ("two", ("b", "a"), 0o644)):
        with tarfile.open(tmp_path / f"{name}.tar.gz", "w:gz") as archive:
            for each in order:
                path = tmp_path / each
                path.write_text(each)
                path.chmod(rights)
                os.utime(path, (rights, rights))
                archive.add(path, each)
    one, two = (script["_same_everywhere"](tmp_path / f"{name}.tar.gz") for name in ("one", "two"))
    assert one == two


@each_row(
    ("names", "said"),
    [
        (["raftmq/client.py", "raftmq-1.dist-info/licenses/LICENSE"], ""),
        (["raftmq/client.py"], "has no licence"),
        (["raftmq/.raftmq/n1/log", "raftmq-1.dist-info/licenses/LICENSE"], "raftmq/.raftmq/n1/log"),
        (["raftmq_wire/kernel/_native.pyx", "raftmq-1.dist-info/licenses/LICENSE"], "_native.pyx"),
        (["tests/test_it.py", "raftmq-1.dist-info/licenses/LICENSE"], "tests/test_it.py"),
        (["raftmq_server/x.py", "raftmq-1.dist-info/licenses/LICENSE"], "is in raftmq and raftmq_server"),
    ],
)
def test_wheels_with_something_wrong_are_named(
    script: dict[str, Any], tmp_path: Path, names: list[str], said: str
) -> None:
    other = ["raftmq_server/x.py", "raftmq_server-1.dist-info/licenses/LICENSE"]
    for wheel, held in (("raftmq-1-py3-none-any.whl", names), ("raftmq_server-1-py3-none-any.whl", other)):
        with zipfile.ZipFile(tmp_path / wheel, "w") as archive:
            for name in held:
                archive.writestr(name, "")
    found = list(script["held"](tmp_path))
    assert len(found) == bool(said), found
    assert said in "".join(found)


def test_a_wheel_is_built_by_what_the_lock_file_pins(script: dict[str, Any]) -> None:
    pinned = script["pinned"]((ROOT / "requirements/base.lock").read_text())
    names = [line.partition("==")[0] for line in pinned.splitlines() if "==" in line]
    assert names == ["setuptools", "cython"]
    assert pinned.count("--hash=sha256:") > 10
    assert "# via" not in pinned

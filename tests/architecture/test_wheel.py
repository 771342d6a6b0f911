"""What is shipped: the wheel holds the product packages, their data, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = {"raftlog", "statemachine", "cluster", "jepsen_like", "raftmq", "pyspark_raftmq"}
BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
LEFT_OUT = shutil.ignore_patterns("__pycache__", "node_modules", ".*", "build", "dist", "*.egg-info")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy, without network: the backend is the installed setuptools."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, folder / "tree", ignore=LEFT_OUT)
    command = [sys.executable, "-W", "ignore", "-c", BUILD, str(folder)]
    subprocess.run(command, cwd=folder / "tree", check=True, capture_output=True, timeout=100)
    (path,) = folder.glob("raftmq-*.whl")
    return zipfile.ZipFile(path)


def test_it_holds_the_product_packages_only(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == PRODUCT


def test_it_holds_every_module(wheel: zipfile.ZipFile) -> None:
    modules = {path.relative_to(ROOT).as_posix() for package in PRODUCT for path in (ROOT / package).rglob("*.py")}
    assert modules - set(wheel.namelist()) == set()


def test_it_holds_the_data_files(wheel: zipfile.ZipFile) -> None:
    """Whatever lies in a product package and is not code is there to be read at run time."""
    skipped = {".py", ".pyc", ".toml"}
    data = {
        path.relative_to(ROOT).as_posix()
        for package in PRODUCT
        for path in (ROOT / package).rglob("*")
        if path.is_file()
        and path.suffix not in skipped
        and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    }
    assert data - set(wheel.namelist()) == set()
    assert {f"{package}/py.typed" for package in PRODUCT} <= data


USE = """
import raftmq

with raftmq.connect() as mq:
    mq.send("orders", "a str is no body")
    reveal_type(mq.send("orders", b"bytes are").queue_offset)
    reveal_type(mq.admin.topics())
"""


def test_a_users_type_checker_sees_the_types_of_the_installed_package(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """Where a package has no marker, everything that comes out of it is Any, and any call passes."""
    venv.create(tmp_path / "venv", with_pip=False)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    wheel.extractall(site)
    (tmp_path / "use.py").write_text(USE)
    python = tmp_path / "venv/bin/python"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--python-executable", str(python), "use.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert 'Argument 2 to "send" of "Client" has incompatible type "str"' in done.stdout
    assert 'Revealed type is "int"' in done.stdout.replace("builtins.int", "int")
    assert "Any" not in done.stdout


def test_it_carries_licence_type_marker_and_commands(wheel: zipfile.ZipFile) -> None:
    info = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")).rpartition("/")[0]
    metadata = wheel.read(f"{info}/METADATA").decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.11" in metadata
    assert f"{info}/licenses/LICENSE" in wheel.namelist()
    assert "raftmq = raftmq.__main__:main" in wheel.read(f"{info}/entry_points.txt").decode()


def test_every_command_of_the_entry_point_group_exists() -> None:
    """A name in pyproject.toml that points nowhere is found when somebody types it; here, earlier."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for target in (*project["scripts"].values(), *project["entry-points"]["raftmq.commands"].values()):
        module, _, attribute = target.partition(":")
        code = f"import importlib; assert callable(importlib.import_module({module!r}).{attribute})"
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)

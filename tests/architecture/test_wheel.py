"""The shipped files: the wheel holds the product packages, their data, and nothing else."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.pace import at_most
from tests.support.tools import is_here, needs

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[2]
PAGES = {"cluster/admin/static/runbooks.md": "runbooks.md", "cluster/config/data/configuration.md": "configuration.md"}
"""Links of the tree -> the pages below docs that they lead to."""
PRODUCT = {"raftmq_wire", "raftlog", "statemachine", "cluster", "jepsen_like", "raftmq", "pyspark_raftmq"}
BUILD = "import sys; from setuptools.build_meta import build_sdist, build_wheel; {}(sys.argv[1])"
SMALL_KERNEL = "VERSION = 1\n"
"""Compiled in a second instead of twenty. `make setup` compiles the real one with the same setup.py."""
LEFT_OUT = shutil.ignore_patterns("__pycache__", "node_modules", ".*", "build", "dist", "*.egg-info", "*.so")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    return zipfile.ZipFile(build("build_wheel", folder, kernel=SMALL_KERNEL))


def build(what: str, folder: Path, *, kernel: str = "", **variables: str) -> Path:
    """Built from a copy, without network: the backend is the installed setuptools. `kernel`: another source of it."""
    shutil.copytree(ROOT, folder / "tree", ignore=LEFT_OUT, symlinks=True)
    if kernel:
        (folder / "tree/raftmq_wire/kernel/_native.pyx").write_text(kernel)
    command = [sys.executable, "-W", "ignore", "-c", BUILD.format(what), str(folder)]
    env = os.environ | variables
    subprocess.run(command, cwd=folder / "tree", env=env, check=True, capture_output=True, timeout=at_most(100))
    (path,) = folder.glob("raftmq-*")
    return path


def test_it_holds_the_product_packages_only(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == PRODUCT


def test_it_holds_every_module(wheel: zipfile.ZipFile) -> None:
    modules = {path.relative_to(ROOT).as_posix() for package in PRODUCT for path in (ROOT / package).rglob("*.py")}
    assert modules - set(wheel.namelist()) == set()


def test_it_holds_the_native_kernel_and_not_its_source(wheel: zipfile.ZipFile) -> None:
    """If the compiler is missing, tests/architecture/test_setup.py tells what is built."""
    suffixes = {Path(name).suffix for name in wheel.namelist() if name.startswith("raftmq_wire/kernel/_native")}
    assert suffixes == {".pyi"} | ({".so"} if is_here("compiler") else set())
    assert ("-none-any" in Path(str(wheel.filename)).name) is not is_here("compiler")


@pytest.mark.slow
@needs("compiler")
def test_it_holds_the_kernel_of_this_tree(tmp_path: Path) -> None:
    built = zipfile.ZipFile(build("build_wheel", tmp_path))
    (name,) = (name for name in built.namelist() if name.endswith(".so"))
    digest = hashlib.sha256((ROOT / "raftmq_wire/kernel/_native.pyx").read_bytes()).hexdigest()
    assert digest.encode() in built.read(name)


def test_without_a_compiler_it_is_for_any_platform(tmp_path: Path) -> None:
    path = build("build_wheel", tmp_path, CC="no-such-compiler")
    assert path.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(path).namelist() if name.endswith((".so", ".pyx"))]


def test_the_source_distribution_holds_the_kernels_source(tmp_path: Path) -> None:
    """Even one that was made where nothing can be compiled."""
    with tarfile.open(build("build_sdist", tmp_path, CC="no-such-compiler")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"setup.py", "pyproject.toml", "raftmq_wire/kernel/_native.pyx", "raftmq_wire/kernel/_native.pyi"} <= names


def test_it_holds_the_data_files(wheel: zipfile.ZipFile) -> None:
    """Whatever lies in a product package and is not code is there to be read at run time."""
    skipped = {".py", ".pyc", ".pyx", ".so", ".toml"}
    data = {
        path.relative_to(ROOT).as_posix()
        for package in PRODUCT
        for path in (ROOT / package).rglob("*")
        if path.is_file()
        and path.suffix not in skipped
        and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    }
    assert data - set(wheel.namelist()) == set()
    for file, page in PAGES.items():
        assert (ROOT / file).is_symlink()  # so that there is one page; a wheel has its text
        assert wheel.read(file) == (ROOT / "docs" / page).read_bytes()
    assert {f"{package}/py.typed" for package in PRODUCT} <= data


USE = """
import raftmq

with raftmq.connect() as mq:
    mq.send("orders", "a str is no body")  # error
    reveal_type(mq.send("orders", b"bytes are"))
    reveal_type(mq.admin.topics())
    reveal_type(raftmq.Message)
    mq.transaction_producer("shops", check=lambda message: True)  # error
    with mq.transaction_producer("shops", check=lambda message: raftmq.Resolution.COMMIT) as producer:
        producer.transaction("orders", b"a half message waits for its commit", delay=5)  # error
        reveal_type(producer.transaction("orders", b"body", key="42").message_id)
"""
"""A user's program. The lines with a comment are wrong."""


@pytest.fixture(scope="module")
def user(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's Python with the wheel installed, without network; what it depends on comes from this environment."""
    folder = tmp_path_factory.mktemp("user")
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    install = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), "install"]
    command = [*install, "--quiet", "--no-index", "--no-deps", str(wheel.filename)]
    subprocess.run(command, check=True, capture_output=True, timeout=at_most(100))
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    return python


def check_types(python: Path, folder: Path) -> str:
    """Returns mypy's output about USE, were it a file of the user whose Python this is."""
    (folder / "use.py").write_text(USE)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--python-executable", str(python), "use.py"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # it may name this tree
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=at_most(100), check=False
    ).stdout


def test_a_users_type_checker_sees_the_types_of_the_installed_package(user: Path, tmp_path: Path) -> None:
    """If a package had no marker, everything that comes out of it would be Any, and any call would pass."""
    done = check_types(user, tmp_path)
    errors = [line for line in done.splitlines() if ": error: " in line]
    wrong = [number for number, line in enumerate(USE.splitlines(), 1) if line.endswith("# error")]
    assert sorted({int(line.split(":")[1]) for line in errors}) == wrong, done
    assert 'Argument 2 to "send" of "Client" has incompatible type "str"' in errors[0]
    assert done.count("Revealed type") == USE.count("reveal_type")
    assert "Any" not in done


def test_without_its_marker_it_would_not(user: Path, tmp_path: Path) -> None:
    """The test above reads the installed files, not this tree's."""
    (marker,) = user.parents[1].glob("lib/python*/site-packages/raftmq/py.typed")
    marker.rename(tmp_path / "py.typed")
    try:
        done = check_types(user, tmp_path)
    finally:
        (tmp_path / "py.typed").rename(marker)
    assert "incompatible type" not in done


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
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=at_most(60))

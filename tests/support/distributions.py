"""The two distributions as a user gets them: built from this tree, and installed into environments of their own."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.pace import at_most

ROOT = Path(__file__).resolve().parents[2]
STAGING: dict[str, Any] = runpy.run_path(str(ROOT / ".ci" / "staging.py"))
BUILD = "import sys; from setuptools.build_meta import build_sdist, build_wheel; {}(sys.argv[1])"


class Wheels(NamedTuple):
    """Both wheels, neither with a compiled kernel."""

    client: Path
    server: Path


def stage(folder: Path) -> tuple[Path, Path]:
    """Returns the source trees of the client and the server, written below `folder`."""
    trees: tuple[Path, Path] = STAGING["stage"](folder)
    return trees


def build(what: str, tree: Path, into: Path, **variables: str) -> Path:
    """Builds `build_wheel` or `build_sdist` of a source tree, without network: the backend is the installed one."""
    into.mkdir(parents=True, exist_ok=True)
    before = set(into.iterdir())
    command = [sys.executable, "-W", "ignore", "-c", BUILD.format(what), str(into)]
    subprocess.run(command, cwd=tree, env=os.environ | variables, check=True, capture_output=True, timeout=at_most(100))
    (path,) = set(into.iterdir()) - before
    return path


def plain_wheels(folder: Path) -> Wheels:
    """Builds both wheels for any platform."""
    client, server = stage(folder / "source")
    return Wheels(*(build("build_wheel", tree, folder / "dist", CC="none") for tree in (client, server)))


def environment(folder: Path, *wheels: Path) -> Path:
    """Returns the Python of a new environment with the wheels. What they depend on comes from this environment, but
    nothing of this tree does."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin/python"
    install = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), "install"]
    command = [*install, "--quiet", "--no-index", "--no-deps", *map(str, wheels)]
    subprocess.run(command, check=True, capture_output=True, timeout=at_most(100))
    # The folder alone: its own .pth files, among them that of this tree, are not read from there.
    (site_packages(python) / "dependencies.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    return python


def site_packages(python: Path) -> Path:
    """Returns the folder where that Python has its packages."""
    (folder,) = python.parents[1].glob("lib/python*/site-packages")
    return folder


def run(*command: str | Path, cwd: Path, timeout_s: float = at_most(100)) -> subprocess.CompletedProcess[str]:
    """Runs a command as a user would: without the variables that lead to this tree."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [str(each) for each in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout_s
    )


def users_folder(folder: Path) -> Path:
    """Returns a folder with a user's own cluster.py and statemachine/, which end a program that imports them."""
    (folder / "statemachine").mkdir(parents=True)
    (folder / "cluster.py").write_text("raise SystemExit('the cluster.py of the user was imported')\n")
    (folder / "statemachine/__init__.py").write_text("raise SystemExit('the statemachine of the user was imported')\n")
    return folder


def install_foreign(python: Path, package: str, distribution: str) -> Path:
    """Lays out what pip leaves of a foreign distribution that has `package`. Returns the package's folder."""
    site = site_packages(python)
    (site / package).mkdir(exist_ok=True)
    (site / package / "__init__.py").write_text("class StateMachine: ...\n")
    info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "RECORD").write_text(f"{package}/__init__.py,,\n{info.name}/METADATA,,\n{info.name}/RECORD,,\n")
    return site / package


def uninstall(python: Path, distribution: str) -> None:
    """Has pip uninstall it."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "uninstall", "--yes", "--quiet", distribution]
    subprocess.run(command, check=True, capture_output=True, timeout=at_most(100))

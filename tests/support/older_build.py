"""The older build: both wheels of the commit that docs/levels.toml names, built once and kept outside the tree."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.distributions import ROOT, build, environment

START = tomllib.loads((ROOT / "docs" / "levels.toml").read_text())["start"]


def cache() -> Path:
    """Returns the folder for builds of that commit: RAFTMQ_OLDER_BUILDS, else the user's cache."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raftmq-older-builds"
    return Path(os.environ.get("RAFTMQ_OLDER_BUILDS") or usual) / str(START["commit"])


def older_command(folder: Path) -> Path:
    """Returns the command `raftmq` of the older build, in a new environment in `folder`. Skips the test where the
    commit is not in the repository, as in a source distribution or a shallow copy."""
    return environment(folder, *older_wheels()).with_name("raftmq")


def older_wheels() -> tuple[Path, ...]:
    """Returns the wheels of client and server, built now unless they are there."""
    kept = cache()
    kept.mkdir(parents=True, exist_ok=True)
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (kept / "dist").is_dir():
            _build(kept)
    return tuple(sorted((kept / "dist").glob("*.whl")))


def _build(kept: Path) -> None:
    archive = subprocess.run(["git", "archive", START["commit"]], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"commit {START['commit'][:12]} is not in this copy of the repository")
    work = kept / "work"
    shutil.rmtree(work, ignore_errors=True)
    (work / "tree").mkdir(parents=True)
    subprocess.run(["tar", "-x"], cwd=work / "tree", input=archive.stdout, check=True)
    code = "import runpy, sys; runpy.run_path('.ci/staging.py')['stage'](__import__('pathlib').Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(work / "source")], cwd=work / "tree", check=True)
    for tree in sorted((work / "source").iterdir()):
        build("build_wheel", tree, work / "dist", CC="none")
    (work / "dist").rename(kept / "dist")
    shutil.rmtree(work)

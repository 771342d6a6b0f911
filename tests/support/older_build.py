"""The older build: both wheels of the last commit that knows one level less, built once and kept outside the tree.

A cluster is mixed across one level only. Git says which commit that is: the one before the newest level came into
docs/levels.toml, or HEAD if it is not committed yet.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.distributions import ROOT, build, environment

LEVELS = "docs/levels.toml"


def newest_level(text: str) -> int:
    """Returns the newest level in the text of docs/levels.toml."""
    return max(int(level["number"]) for level in tomllib.loads(text)["level"])


def older_commit(root: Path = ROOT) -> str | None:
    """Returns the last commit that knows one level less than this tree; None where it is not in the repository, as in a
    source distribution or a shallow copy."""
    newest = f"number = {newest_level((root / LEVELS).read_text())}"
    search = ["log", "--first-parent", "-m", "--format=%H", f"-S\n{newest}\n", "--", LEVELS]
    if (began := _git(root, *search)) is None:
        return None
    older = _git(root, "rev-parse", "--verify", "--quiet", f"{began.split()[-1]}^" if began.strip() else "HEAD")
    return older and older.strip()


def cache(commit: str) -> Path:
    """Returns the folder for builds of that commit: RAFTMQ_OLDER_BUILDS, else the user's cache."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raftmq-older-builds"
    return Path(os.environ.get("RAFTMQ_OLDER_BUILDS") or usual) / commit


def older_command(folder: Path) -> Path:
    """Returns the command `raftmq` of the older build, in a new environment in `folder`. Skips the test where the
    commit is not in the repository, as in a source distribution or a shallow copy."""
    return environment(folder, *older_wheels()).with_name("raftmq")


def older_wheels() -> tuple[Path, ...]:
    """Returns the wheels of client and server, built now unless they are there."""
    commit = older_commit()
    if commit is None:
        pytest.skip("the last commit that knows one level less is not in this copy of the repository")
    kept = cache(commit)
    kept.mkdir(parents=True, exist_ok=True)
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (kept / "dist").is_dir():
            _build(commit, kept)
    return tuple(sorted((kept / "dist").glob("*.whl")))


def _build(commit: str, kept: Path) -> None:
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
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


def _git(root: Path, *words: str) -> str | None:
    """Returns what git prints; None if it fails, or is not there."""
    with suppress(FileNotFoundError):
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else None
    return None

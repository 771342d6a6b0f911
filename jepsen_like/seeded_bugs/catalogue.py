"""The seeded bugs as data: reads their files, and applies one to a copy of the packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import jepsen_like
import raftlog
from jepsen_like.seeded_bugs import kernels

SOURCE_ROOT = Path(jepsen_like.__file__).resolve().parent.parent
"""Path of the folder that holds the packages."""
DATA = Path(__file__).resolve().parent / "data"
PACKAGES = ("raftmq_wire", "raftlog", "statemachine", "cluster", "raftmq", "jepsen_like")
ENGINES = ("core", "full")


class BugError(ValueError):
    """Raised if a bug's file is wrong, or its patch no longer fits the code. The message names file and remedy."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement of text: `find`, which occurs exactly once in `file`, becomes `replace`."""

    file: str
    """Path relative to the folder that holds the packages."""
    find: str
    replace: str


@dataclass(frozen=True, slots=True)
class Bug:
    """One planted bug, as its file describes it."""

    id: str
    title: str
    pedigree: str
    """Origin of the bug: an issue, a figure of a paper, or the rule of the paper that it breaks."""
    engine: str
    checkers: tuple[str, ...]
    """Names of checkers; the bug counts as caught if any of them reports. The first is the one expected from the
    schedule."""
    schedule: str
    """Script (`jepsen_like.script`) that kills the bug every time, without random choices."""
    edits: tuple[Edit, ...]
    kernel: str = ""
    """`python` if the bug needs the kernel in Python, because the native one never reaches the changed lines. Needed
    only if no changed file has a `@twin` or is in `kernels.PASSED_BY`."""


def load(path: Path) -> Bug:
    """Reads one bug's file. Raises BugError."""
    try:
        fields = tomllib.loads(path.read_text())
        edits = tuple(Edit(edit["file"], edit["find"], edit["replace"]) for edit in fields["edits"])
        bug = Bug(
            path.stem,
            fields["title"],
            fields["pedigree"],
            fields["engine"],
            tuple(fields["checkers"]),
            fields["schedule"],
            edits,
            fields.get("kernel", ""),
        )
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise BugError(f"{path}: {error!r}") from error
    if bug.kernel not in ("", "python"):
        raise BugError(f"{path}: kernel is python, or not given")
    if bug.engine not in ENGINES or not bug.checkers or not edits:
        raise BugError(f"{path}: engine is one of {ENGINES}, checkers and edits are not empty")
    return bug


def load_all() -> list[Bug]:
    """Reads every bug, in the order of ids."""
    return [load(path) for path in sorted(DATA.glob("*.toml"))]


def patched(bug: Bug, root: Path = SOURCE_ROOT) -> dict[str, str]:
    """Returns file -> its text with the bug in it. Raises BugError unless every `find` occurs exactly once."""
    texts: dict[str, str] = {}
    for edit in bug.edits:
        text = texts.get(edit.file) or (root / edit.file).read_text()
        count = text.count(edit.find)
        if count != 1:
            raise BugError(f"{bug.id}: `find` occurs {count} times in {edit.file}, not once\n{edit.find}")
        if edit.find == edit.replace:
            raise BugError(f"{bug.id}: the edit of {edit.file} changes nothing")
        texts[edit.file] = text.replace(edit.find, edit.replace)
    return texts


def run_inside(root: Path, module: str, *words: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Runs a module of this package against the packages under `root`. Raises TimeoutExpired."""
    return subprocess.run(
        [sys.executable, "-m", f"jepsen_like.seeded_bugs.{module}", *words],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def require_copy(root: str) -> None:
    """Exits the process unless it runs the code of the copy in `root`."""
    if not Path(raftlog.__file__).resolve().is_relative_to(Path(root).resolve()):
        sys.stderr.write(f"raftlog comes from {raftlog.__file__}, not from the copy {root}\n")
        raise SystemExit(3)


def make_copy(target: Path, bug: Bug | None) -> None:
    """Copies the packages to `target`, with `bug` in them (None: unchanged), and with the native kernel, if it was
    built and does not hide the bug. Raises BugError."""
    for package in PACKAGES:  # with the .pyc files: a worker then starts twice as fast
        shutil.copytree(SOURCE_ROOT / package, target / package, ignore=shutil.ignore_patterns("static"))
    texts = patched(bug, SOURCE_ROOT) if bug else {}
    for file, text in texts.items():
        path = target / file
        path.write_text(text)
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()
    try:
        kernels.settle(target, texts, SOURCE_ROOT)
    except kernels.KernelError as error:
        raise BugError(f"{bug.id if bug else ''}: {error}") from error
    if bug and bug.kernel == "python":
        kernels.remove(target)

"""`make bench-instructions`: counts the instructions that a message costs, in this tree and at the commit where this
branch began.

A stage that this tree alone has, such as that of sends under a quota, is compared with the plain stage at that commit.

Callgrind counts the stages of hot_path.py in both trees at the same time, with equal hash seeds, so a shared or slow
machine does not change the figures. Exit code 1 if a stage costs more than LIMIT_PERCENT more than before. With JSON=1
only {"base": ..., "rows": [...]} is printed. BASE names another commit to compare with.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.table import Table
from tables import console

ROOT = Path(__file__).parents[1]
DRIVER = Path("bench", "hot_path.py")
SOURCE = "*/kernel/_native.pyx"
BUILT = "*/kernel/_native.*.so"
"""Pattern of the native kernel's path; the kernel was in another package in older commits."""
LIMIT_PERCENT = 5.0
MARK = "getppid"
"""The function of libc that hot_path.py calls between stages, as a mark for callgrind. A function of Python itself
cannot be the mark, because it has no name in a build without symbols."""
UNDER_QUOTA = ", under a quota"
"""The end of the names of stages whose sends have a quota."""
PATIENCE_S = 900.0


def git(*arguments: str) -> str:
    """Runs git in this repository and returns what it prints."""
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def base_of(wanted: str | None) -> str:
    """Returns the commit to compare with: `wanted`, or the commit where this branch left main; on main itself the
    commit before."""
    if wanted:
        return git("rev-parse", wanted)
    main = "origin/main" if git("branch", "--remotes", "--list", "origin/main") else "main"
    base, head = git("merge-base", "HEAD", main), git("rev-parse", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "HEAD~1") if base == head and not changed else base


@contextlib.contextmanager
def tree_of(commit: str) -> Iterator[Path]:
    """Makes a work tree of the commit, with its native kernel if this tree has one; otherwise different kernels would
    be compared."""
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory, "old")
        git("worktree", "add", "--detach", str(tree), commit)
        try:
            if any(ROOT.glob(BUILT)) and any(tree.glob(SOURCE)):
                build = [sys.executable, "setup.py", "build_ext", "--inplace"]
                done = subprocess.run(build, cwd=tree, check=False, capture_output=True, text=True)
                if not any(tree.glob(BUILT)):
                    raise SystemExit(f"the kernel of {commit[:9]} was not built:\n{done.stderr}")
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def driver_of(tree: Path) -> Path:
    """Returns the path of this tree's hot_path.py, so that stages which are new in it are measured in the other tree as
    well; the other tree's own if this one does not fit its code."""
    check = "import runpy, sys; runpy.run_path(sys.argv[1])"
    fits = subprocess.run(
        [sys.executable, "-P", "-c", check, str(ROOT / DRIVER)],
        env={**os.environ, "PYTHONPATH": str(tree)},
        check=False,
        capture_output=True,
    )
    return (ROOT if fits.returncode == 0 else tree) / DRIVER


def start(tree: Path, counts: Path) -> subprocess.Popen[str]:
    """Starts callgrind over the stages in `tree`; the parts of its output become counts.1, counts.2, ..."""
    return subprocess.Popen(
        [
            "valgrind",
            "--tool=callgrind",
            f"--callgrind-out-file={counts}",
            f"--dump-before={MARK}",
            sys.executable,
            "-P",
            str(driver_of(tree)),
        ],
        env={**os.environ, "PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result(process: subprocess.Popen[str], counts: Path) -> dict[str, float]:
    """Waits for callgrind; returns stage -> instructions per message."""
    printed, errors = process.communicate(timeout=PATIENCE_S)
    if process.returncode:
        raise SystemExit(f"the stages ended with code {process.returncode}:\n{errors}")
    stages = [line.split("\t") for line in printed.splitlines()]
    found = {}
    for part, (name, messages) in enumerate(stages, start=1):
        if int(messages):
            found[name] = total(Path(f"{counts}.{part}")) / int(messages)
    return found


def total(part: Path) -> int:
    """Returns the total of one part of callgrind's counts. Raises SystemExit if callgrind did not write that part."""
    if not part.exists():
        raise SystemExit(f"callgrind wrote no {part.name}: does this Python hide the function {MARK}?")
    return next(int(line.split()[1]) for line in part.read_text().splitlines() if line.startswith("totals:"))


def main() -> None:
    """Counts the instructions in both trees and prints the comparison. Exits with 1 if a stage costs too much more."""
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is missing: install it with the system's package manager")
    base = base_of(os.environ.get("BASE"))
    with tree_of(base) as old, tempfile.TemporaryDirectory() as directory:
        made = Path(directory)
        if not (old / DRIVER).exists():
            raise SystemExit(f"{base[:9]} has no {DRIVER}: there is nothing to compare with")
        running = [start(tree, made / name) for tree, name in ((old, "before"), (ROOT, "now"))]
        before, now = (result(run, made / name) for run, name in zip(running, ("before", "now"), strict=True))
    rows = []
    for stage, count in now.items():
        beside = before.get(stage) or before.get(stage.removesuffix(UNDER_QUOTA))
        if beside is not None:
            rows.append({"stage": stage, "before": round(beside), "now": round(count), "ratio": count / beside})
    report(base, rows)
    worse = [row for row in rows if row["ratio"] > 1 + LIMIT_PERCENT / 100]
    if worse:
        raise SystemExit(f"more than {LIMIT_PERCENT:g} % dearer: {', '.join(str(row['stage']) for row in worse)}")


def report(base: str, rows: list[dict[str, object]]) -> None:
    """Prints the comparison with the commit `base`: a table, or JSON with JSON=1."""
    if os.environ.get("JSON"):
        print(json.dumps({"base": base, "rows": rows}))
        return
    table = Table("stage", "before", "now", "change", title=f"instructions per message, compared with {base[:9]}")
    for row in rows:
        table.add_row(str(row["stage"]), f"{row['before']:,}", f"{row['now']:,}", f"{row['ratio'] - 1:+.1%}")
    console().print(table)


if __name__ == "__main__":
    main()

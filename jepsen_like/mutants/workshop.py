"""A copy of the packages and their tests in which one mutant after the other is tried."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jepsen_like.seeded_bugs.catalogue import SOURCE_ROOT, make_copy
from jepsen_like.seeded_bugs.unit_tests import NOT_COPIED

CHECK_TIMEOUT_S = 300
MEMORY_MAX = 6 << 30
"""Address space of a process that runs a mutant, bytes (on Linux): an endless loop may fill a list."""
_LIMITED = ("prlimit", f"--as={MEMORY_MAX}") if shutil.which("prlimit") else ()
_ENDED_BY_PYTEST = "+ Timeout +"
_TYPED = ("raftlog", "statemachine", "cluster")


class Workshop:
    """One copy, used by one thread."""

    def __init__(self, root: Path) -> None:
        """Fills `root`, an empty folder, and checks the types once, so that later checks look at one file."""
        self.root = root
        self._written_s = int(time.time()) + 1
        make_copy(root, None, native=False)  # the native kernel would run in place of what is mutated
        shutil.copytree(SOURCE_ROOT / "tests", root / "tests", ignore=shutil.ignore_patterns(*NOT_COPIED))
        shutil.copytree(SOURCE_ROOT / "docs", root / "docs")  # some tests compare a page with the code
        shutil.copy(SOURCE_ROOT / "pyproject.toml", root)
        if (cache := SOURCE_ROOT / ".mypy_cache").is_dir():
            shutil.copytree(cache, root / ".mypy_cache")  # most of it fits
        found = self.type_errors()
        if found:
            raise RuntimeError(f"the unmutated packages do not type-check:\n{found}")

    @contextmanager
    def holding(self, file: str, text: str) -> Iterator[None]:
        """`file` has this text meanwhile."""
        path = self.root / file
        before = path.read_text()
        try:
            self._write(path, text)
            yield
        finally:
            self._write(path, before)

    def type_errors(self) -> str:
        """What mypy says, "" if nothing."""
        packages = [word for package in _TYPED for word in ("-p", package)]
        done = self._run(["-m", "mypy", "--no-error-summary", *packages], CHECK_TIMEOUT_S)
        return done.stdout.strip() if done.returncode else ""

    def import_error(self, file: str) -> str:
        """What importing the file's module says, "" if nothing."""
        module = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        done = self._run(["-c", f"import {module}"], CHECK_TIMEOUT_S)
        return (done.stderr.strip().splitlines() or ["?"])[-1] if done.returncode else ""

    def call(self, module: str, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Runs a module that takes (ROOT, JSON) and prints JSON in its last line.

        Raises TimeoutExpired, also where pytest ended it, and RuntimeError if it prints none.
        """
        done = self._run(["-m", module, str(self.root), json.dumps(request)], timeout_s)
        if _ENDED_BY_PYTEST in done.stdout:
            raise subprocess.TimeoutExpired(done.args, timeout_s)
        try:
            found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        except (ValueError, IndexError):
            raise RuntimeError((done.stderr or done.stdout).strip()[-300:] or "no output") from None
        return found

    def _run(self, arguments: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*_LIMITED, sys.executable, *arguments],
            cwd=self.root,
            env=os.environ | {"PYTHONPATH": str(self.root)},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def _write(self, path: Path, text: str) -> None:
        """mypy and the interpreter take a file of the same size and second for the one that they have looked at: no
        two versions share a second."""
        path.write_text(text)
        self._written_s = max(self._written_s + 1, int(time.time()))
        os.utime(path, (self._written_s, self._written_s))
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()

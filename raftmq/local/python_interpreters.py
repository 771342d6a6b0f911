"""The Python interpreters on PATH under which RaftMQ could run, and a comparison of their speed with the present
one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from cluster.runtime.host import python_speed

NAMES = ("python3", "python3.11", "python3.12", "python3.13", "python")
FASTER = 1.1
"""The least ratio of speeds at which another Python is recommended; `.ci/preflight` then uses it as well."""
TURNS = 3
"""Runs of each interpreter, taken in turns: other work on the machine then slows one run, or all alike."""
PATIENCE_S = 30.0
_PROBE = """
import ensurepip, json, os, sys, venv
file = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
print(json.dumps(["%d.%d.%d" % sys.version_info[:3], file, sys.version_info[:2] >= (3, 11)]))
"""


class Python(NamedTuple):
    """An interpreter."""

    version: str
    file: str
    """The path of the executable behind links, shims and environments."""

    def __str__(self) -> str:
        return f"{self.file} ({self.version})"


class Faster(NamedTuple):
    """Another interpreter of this machine that runs plain code faster."""

    python: Python
    times: float


def others(environ: Mapping[str, str] = os.environ) -> list[Python]:
    """Returns the interpreters on PATH that can make an environment for RaftMQ, without the one that runs this."""
    found = {own().file: own()}
    for file in _named(environ):
        told = _output(file, "-c", _PROBE)
        if told:
            version, path, is_new_enough = json.loads(told)
            if is_new_enough:
                found.setdefault(path, Python(version, path))
    return list(found.values())[1:]


def own() -> Python:
    """Returns the interpreter that runs this process; in a virtual environment, the interpreter that it was made
    from."""
    version = ".".join(map(str, sys.version_info[:3]))
    return Python(version, os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable))


def faster(candidates: list[Python]) -> Faster | None:
    """Returns the fastest candidate, if it runs the reference loop faster than this process's interpreter by a factor
    of FASTER; else None.

    Each candidate runs the loop in processes of its own; one that fails is left out.
    """
    asked = [own(), *candidates]
    times: dict[Python, list[int]] = {python: [] for python in asked}
    for _ in range(TURNS if candidates else 0):
        for python in asked:
            told = _output(python.file, "-I", "-S", str(Path(python_speed.__file__)))
            if told.isdecimal():
                times[python].append(int(told))
    least = {python: min(each) for python, each in times.items() if each}
    if own() not in least or len(least) < 2:
        return None
    fastest = min(least, key=least.__getitem__)
    ratio = least[own()] / least[fastest]
    return Faster(fastest, ratio) if ratio >= FASTER else None


def _named(environ: Mapping[str, str]) -> Iterator[str]:
    for name in NAMES:
        for folder in environ.get("PATH", "").split(os.pathsep):
            file = Path(folder, name)
            if folder and os.access(file, os.X_OK) and file.is_file():  # is_file raises where it may not look
                yield str(file)


def _output(*command: str) -> str:
    """Returns the output of a command; "" if it fails."""
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout.strip() if ended.returncode == 0 else ""

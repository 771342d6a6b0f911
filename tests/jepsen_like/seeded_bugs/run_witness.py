"""Runs one witness (see witnesses.py) against the packages under ROOT: exit code 0 holds, 1 fails.

python run_witness.py ROOT FILE NAME
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import raftlog
from raftlog.errors import RaftLogError
from statemachine.rows.kv import KVError


def main(root: str, file: str, name: str) -> int:
    if not Path(raftlog.__file__).is_relative_to(Path(root).resolve()):
        sys.exit(f"raftlog comes from {raftlog.__file__}")
    sys.path.append(str(Path(__file__).parents[3]))  # for tests.support; the packages come from ROOT, named before
    witness = runpy.run_path(file)[name]
    try:
        witness()
    except (AssertionError, RaftLogError, KVError):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

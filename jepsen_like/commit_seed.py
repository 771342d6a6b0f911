"""Test seeds that change with every commit: each commit's test runs explore new seeds, and anyone can repeat them.

`python -m jepsen_like.commit_seed` prints the number.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

WITHOUT_GIT = 20_000_000
_DIGITS = 7


class CommitSeed(NamedTuple):
    """The first seed to run, and the source from which it was made."""

    first_seed: int
    origin: str


def commit_of(root: Path = Path(__file__).parent) -> str:
    """Returns the name of the commit that is checked out at `root`; "" where there is no git."""
    command = ["git", "-C", str(root), "rev-parse", "--verify", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def commit_seed(root: Path = Path(__file__).parent) -> CommitSeed:
    """Returns the seed of the commit that is checked out at `root`; a fixed number where there is no git."""
    commit = commit_of(root)
    if not commit:
        return CommitSeed(WITHOUT_GIT, "no commit here, a fixed number")
    return CommitSeed(int(commit[:_DIGITS], 16), f"commit {commit[:_DIGITS]}")


if __name__ == "__main__":
    sys.stdout.write(f"{commit_seed().first_seed}\n")

"""Errors that a person at a terminal reads: what happened, why, and what to type; and the exit codes."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path

from raftlog.errors import IdentityError


class ExitCode(IntEnum):
    """Exit codes of the `raftmq` command. Scripts rely on the numbers: never renumber."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNKNOWN = 3
    """The request may or may not have been carried out."""
    UNREACHABLE = 4
    """No cluster answered."""
    REFUSED = 5
    """The cluster or the data directory is not in a state that allows it; nothing was changed."""
    LEFT = 8
    """Done, but something that was to happen before has not happened in the time allowed."""


class LocalError(Exception):
    """Three lines for a person, and the exit code. Nothing was lost; `fix` is what to type."""

    def __init__(self, what: str, why: str, fix: str, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(f"{what}\n{why}\n{fix}")
        self.what = what
        self.why = why
        self.fix = fix
        self.exit_code = exit_code


def directory_error(error: Exception, directory: Path) -> LocalError:
    """Returns the error that tells a person why a data directory cannot be made or read. Identity errors have three
    lines already."""
    lines = str(error).split("\n")
    if isinstance(error, IdentityError) and len(lines) >= 3:
        return LocalError(lines[0], lines[1], lines[2], ExitCode.REFUSED)
    return LocalError(
        f"{directory} cannot be used", str(error), f"ls -ld {directory}    (owner, space, read-only?)", ExitCode.FAILED
    )

"""The error for a data directory that cannot be made or read, in the words of a person at a terminal."""

from __future__ import annotations

from pathlib import Path

from raftlog.errors import IdentityError
from raftmq_wire.errors import ExitCode, LocalError


def directory_error(error: Exception, directory: Path) -> LocalError:
    """Returns the error that tells a person why a data directory cannot be made or read. Identity errors have three
    lines already."""
    lines = str(error).split("\n")
    if isinstance(error, IdentityError) and len(lines) >= 3:
        return LocalError(lines[0], lines[1], lines[2], ExitCode.REFUSED)
    return LocalError(
        f"{directory} cannot be used", str(error), f"ls -ld {directory}    (owner, space, read-only?)", ExitCode.FAILED
    )

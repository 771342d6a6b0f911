"""Errors for a person at a terminal (what happened, why, and what to type), and the command's exit codes."""

from __future__ import annotations

import re
from enum import IntEnum

_ASSIGNMENT = re.compile(r"[A-Z_]+=")
_LABEL = re.compile(r"^(because: |do: {6}|type: {4})")


class ExitCode(IntEnum):
    """Exit codes of the `raftmq` command. Scripts rely on the numbers: never renumber."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNKNOWN = 3
    """The request may or may not have been carried out."""
    UNREACHABLE = 4
    """No server of the cluster answered."""
    REFUSED = 5
    """The cluster or the data directory is not in a state that allows it; nothing was changed."""
    LEFT = 8
    """The command was carried out, except for a part that did not happen within the time allowed."""


def fix_label(fix: str) -> str:
    """Returns the label of the last line of an error: a sentence is nothing to type."""
    return "do:      " if fix[:1].isupper() and not _ASSIGNMENT.match(fix) else "type:    "


def without_label(line: str) -> str:
    """Returns a printed line of an error without the label that says which of the three it is."""
    return _LABEL.sub("", line)


class LocalError(Exception):
    """An error of three lines for a person, with the exit code. Nothing was lost; `fix` is what to type."""

    def __init__(
        self, what: str, why: str, fix: str, exit_code: ExitCode = ExitCode.FAILED, *, group: int | None = None
    ) -> None:
        """`group`: the group of brokers that it is about, if that is known; ids of nodes in `fix` are those there."""
        super().__init__(f"{what}\n{why}\n{fix}")
        self.what = what
        self.why = why
        self.fix = fix
        self.exit_code = exit_code
        self.group = group

    def of_group(self, group: int) -> LocalError:
        """Returns the error of one group of brokers among several, which it names."""
        return LocalError(f"group {group}: {self.what}", self.why, self.fix, self.exit_code, group=group)

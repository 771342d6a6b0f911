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
    """The cluster or the data directory is not in a state that allows the command; nothing was changed."""
    LEFT = 8
    """The command was carried out, except for a part that did not happen within the time allowed."""


def fix_label(fix: str) -> str:
    """Returns the label for the last line of an error. The label differs if `fix` is a sentence, and not a command to
    type."""
    return "do:      " if fix[:1].isupper() and not _ASSIGNMENT.match(fix) else "type:    "


def without_label(line: str) -> str:
    """Returns a printed line of an error without its label, which says which of the three lines it is."""
    return _LABEL.sub("", line)


class LocalError(Exception):
    """An error of three lines for a person: what happened, why, and what to do (`fix`). It has an exit code for the
    command."""

    def __init__(
        self, what: str, why: str, fix: str, exit_code: ExitCode = ExitCode.FAILED, *, group: int | None = None
    ) -> None:
        """`group`: the number of the group of brokers that the error is about, if known. Node ids in `fix` then refer
        to that group."""
        super().__init__(f"{what}\n{why}\n{fix}")
        self.what = what
        self.why = why
        self.fix = fix
        self.exit_code = exit_code
        self.group = group

    def after(self, done: str) -> LocalError:
        """Returns this error for a command that had carried out a part of its work before, which `done` names. Its exit
        code is UNKNOWN, because the other codes say that nothing was changed, or do not say it."""
        return LocalError(self.what, f"{self.why}; {done}", self.fix, ExitCode.UNKNOWN, group=self.group)

    def of_group(self, group: int) -> LocalError:
        """Returns this error with the group of brokers named in its text, for a cluster with several groups."""
        return LocalError(f"group {group}: {self.what}", self.why, self.fix, self.exit_code, group=group)

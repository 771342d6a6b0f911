"""Errors for Spark users, in three lines: what happened, why, and what to write instead."""

from __future__ import annotations


class SourceError(Exception):
    """The read cannot be done as asked. `what`, `why` and `hint` are the three lines of its text."""

    def __init__(self, what: str, why: str, hint: str) -> None:
        super().__init__(what, why, hint)  # all three in args: errors cross processes by pickle
        self.what, self.why, self.hint = what, why, hint

    def __str__(self) -> str:
        return f"{self.what}\n  why: {self.why}\n  do:  {self.hint}"


class OptionError(SourceError):
    """An option is missing, unknown or malformed; nothing was asked of the cluster."""


class PlanError(SourceError):
    """The cluster's answer does not fit the options: no such topic or queue, a range that does not exist, no answer."""


class ReadError(SourceError):
    """A planned message could not be read. The task fails, because rows are never left out silently."""


class UndecodedRead(ReadError):
    """A body could not be decoded, and the read is to fail then. Another attempt changes nothing."""


class WriteError(SourceError):
    """Rows could not be staged, or staged rows could not be committed."""


def write(name: str, value: str) -> str:
    """Returns the advice to write an option, with an example value."""
    return f"""write .option("{name}", "{value}")"""

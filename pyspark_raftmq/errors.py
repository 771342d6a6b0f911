"""Errors for Spark users, in three lines: what happened, why, and what to write instead."""

from __future__ import annotations


class SourceError(Exception):
    """Base class of the errors of the source and the sink. `what`, `why` and `hint` are the three lines of its text."""

    def __init__(self, what: str, why: str, hint: str) -> None:
        super().__init__(what, why, hint)  # pickle passes all three to another process
        self.what, self.why, self.hint = what, why, hint

    def __str__(self) -> str:
        return f"{self.what}\n  why: {self.why}\n  do:  {self.hint}"


class OptionError(SourceError):
    """An option is missing, unknown or malformed; no request was sent to the cluster."""


class PlanError(SourceError):
    """The read or write cannot be planned: there is no such topic, queue or range, or the cluster does not answer."""


class ReadError(SourceError):
    """A planned message could not be read. The task fails, because rows are never left out silently."""


class UndecodedRead(ReadError):
    """A body could not be decoded, and the options demand that the read fails then. Repeating the read does not
    help."""


class WriteError(SourceError):
    """Rows could not be staged, or staged rows could not be committed."""


def write(name: str, value: str) -> str:
    """Returns advice in words to set the option `name`, with `value` as an example."""
    return f"""write .option("{name}", "{value}")"""

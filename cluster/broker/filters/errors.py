"""What can be wrong with a filter, and with the values that it compares."""

from __future__ import annotations


class FilterError(ValueError):
    """The text is not a filter; `at` is the character where it stops to be one, counted from 1."""

    def __init__(self, reason: str, at: int) -> None:
        super().__init__(f"at character {at}: {reason}")
        self.reason = reason
        self.at = at


class IncomparableError(ValueError):
    """Two values cannot be compared: a property that is no number with a number, above all."""

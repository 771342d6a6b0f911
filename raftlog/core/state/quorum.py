"""The quorum's arithmetic: majority, agreed value, median. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable


def majority(voters: int) -> int:
    """Returns the number of votes that make a majority of `voters` voters."""
    return voters // 2 + 1


def agreed_value(values: Iterable[int]) -> int:
    """Returns the largest value that a majority of the voters has reached; `values` has one number per voter."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def lower_median(values: Iterable[int]) -> int:
    """Returns the middle value; the lower of the two middle ones for an even count, so that log time runs late rather
    than early."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]

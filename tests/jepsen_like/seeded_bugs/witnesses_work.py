"""Witnesses of the planted bugs that let a turn of the loop be long; see witnesses.py.

Only the simulator's bound on a turn sees them, so each witness is the bug's own schedule.
"""

from __future__ import annotations

from tests.support.bug_schedules import holds


def witness_U01() -> None:
    holds("U01")


def witness_U02() -> None:
    holds("U02")


def witness_U03() -> None:
    holds("U03")


def witness_U04() -> None:
    holds("U04")


def witness_U05() -> None:
    holds("U05")


def witness_U06() -> None:
    holds("U06")


def witness_U07() -> None:
    holds("U07")


def witness_U08() -> None:
    holds("U08")


def witness_U09() -> None:
    holds("U09")

"""Witnesses of the planted bugs that let a turn of the loop be long; see witnesses.py.

Only the simulator's bound on a turn sees them, so each witness is the bug's own schedule.
"""

from __future__ import annotations

from tests.support.bug_schedules import holds


def witness_U01() -> None:
    holds("U01")


def witness_U02() -> None:
    holds("U02")

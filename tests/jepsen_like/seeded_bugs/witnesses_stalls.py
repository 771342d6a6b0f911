"""Witnesses of the planted bugs about long turns of a loop; see witnesses.py."""

from __future__ import annotations

from tests.support.bug_schedules import holds


def witness_Z01() -> None:
    holds("Z01")


def witness_Z02() -> None:
    holds("Z02")

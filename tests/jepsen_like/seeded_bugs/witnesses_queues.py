"""Witnesses of the planted bugs about the number of queues and offsets beyond the end: each is the bug's own schedule;
see witnesses.py."""

from __future__ import annotations

from tests.support.bug_schedules import holds


def witness_AQ01() -> None:
    holds("AQ01")


def witness_AQ02() -> None:
    holds("AQ02")


def witness_AQ03() -> None:
    holds("AQ03")

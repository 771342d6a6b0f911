"""Witnesses of the planted bugs about the tier: each is the bug's own schedule, see witnesses_requests.py."""

from __future__ import annotations

from tests.support.bug_schedules import holds


def witness_V20() -> None:
    holds("V20")


def witness_V21() -> None:
    holds("V21")


def witness_V22() -> None:
    holds("V22")


def witness_V23() -> None:
    holds("V23")


def witness_V01() -> None:
    holds("V01")


def witness_V02() -> None:
    holds("V02")


def witness_V03() -> None:
    holds("V03")


def witness_V04() -> None:
    holds("V04")


def witness_V05() -> None:
    holds("V05")


def witness_V06() -> None:
    holds("V06")


def witness_V07() -> None:
    holds("V07")


def witness_V08() -> None:
    holds("V08")


def witness_V09() -> None:
    holds("V09")


def witness_V10() -> None:
    holds("V10")


def witness_V11() -> None:
    holds("V11")


def witness_V30() -> None:
    holds("V30")


def witness_V31() -> None:
    holds("V31")


def witness_V32() -> None:
    holds("V32")

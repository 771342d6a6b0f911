"""Witnesses of the planted bugs about the order of sends and about overloads: each is the bug's own schedule; see
witnesses.py."""

from __future__ import annotations

from tests.support.bug_schedules import holds


def witness_FL01() -> None:
    holds("FL01")


def witness_FL02() -> None:
    holds("FL02")


def witness_FL03() -> None:
    holds("FL03")


def witness_FL04() -> None:
    holds("FL04")


def witness_FL05() -> None:
    holds("FL05")


def witness_FL06() -> None:
    holds("FL06")


def witness_FL07() -> None:
    holds("FL07")


def witness_FL08() -> None:
    holds("FL08")


def witness_FL09() -> None:
    holds("FL09")


def witness_FL10() -> None:
    holds("FL10")


def witness_FL11() -> None:
    holds("FL11")


def witness_FL12() -> None:
    holds("FL12")


def witness_FL14() -> None:
    holds("FL14")


def witness_FL15() -> None:
    holds("FL15")

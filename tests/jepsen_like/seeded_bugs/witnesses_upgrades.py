"""Witnesses of the planted bugs about levels and upgrades: each is the bug's own schedule; see witnesses.py."""

from __future__ import annotations

from tests.support.bug_schedules import holds


def witness_UP01() -> None:
    holds("UP01")


def witness_UP02() -> None:
    holds("UP02")


def witness_UP03() -> None:
    holds("UP03")


def witness_UP04() -> None:
    holds("UP04")


def witness_UP06() -> None:
    holds("UP06")


def witness_UP07() -> None:
    holds("UP07")


def witness_UP08() -> None:
    holds("UP08")


def witness_UP09() -> None:
    holds("UP09")


def witness_GR01() -> None:
    holds("GR01")


def witness_GR02() -> None:
    holds("GR02")


def witness_GR03() -> None:
    holds("GR03")


def witness_GR04() -> None:
    holds("GR04")


def witness_GR05() -> None:
    holds("GR05")


def witness_GR06() -> None:
    holds("GR06")


def witness_GR07() -> None:
    holds("GR07")


def witness_GR08() -> None:
    holds("GR08")


def witness_GR09() -> None:
    holds("GR09")


def witness_GR10() -> None:
    holds("GR10")


def witness_GR11() -> None:
    holds("GR11")


def witness_GR12() -> None:
    holds("GR12")


def witness_GR13() -> None:
    holds("GR13")


def witness_GR14() -> None:
    holds("GR14")


def witness_GR15() -> None:
    holds("GR15")


def witness_GR16() -> None:
    holds("GR16")


def witness_GR17() -> None:
    holds("GR17")


def witness_GR18() -> None:
    holds("GR18")


def witness_GR19() -> None:
    holds("GR19")


def witness_GR20() -> None:
    holds("GR20")


def witness_GR21() -> None:
    holds("GR21")


def witness_GR22() -> None:
    holds("GR22")


def witness_GR23() -> None:
    holds("GR23")


def witness_GR24() -> None:
    holds("GR24")


def witness_RS01() -> None:
    holds("RS01")


def witness_RS02() -> None:
    holds("RS02")


def witness_RS03() -> None:
    holds("RS03")

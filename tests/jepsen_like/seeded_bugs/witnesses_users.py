"""Witnesses of the planted bugs about users and rules: each is the bug's own schedule; see witnesses.py."""

from __future__ import annotations

from tests.support.bug_schedules import holds


def witness_AU01() -> None:
    holds("AU01")


def witness_AU02() -> None:
    holds("AU02")


def witness_AU03() -> None:
    holds("AU03")


def witness_AU04() -> None:
    holds("AU04")


def witness_AU05() -> None:
    holds("AU05")


def witness_AU06() -> None:
    holds("AU06")


def witness_AU07() -> None:
    holds("AU07")


def witness_AU08() -> None:
    holds("AU08")


def witness_AU09() -> None:
    holds("AU09")


def witness_AU10() -> None:
    holds("AU10")


def witness_AU11() -> None:
    holds("AU11")


def witness_AU12() -> None:
    holds("AU12")


def witness_AU13() -> None:
    holds("AU13")


def witness_AU14() -> None:
    holds("AU14")


def witness_AU15() -> None:
    holds("AU15")


def witness_AU16() -> None:
    holds("AU16")


def witness_AU17() -> None:
    holds("AU17")


def witness_AU18() -> None:
    holds("AU18")


def witness_AU19() -> None:
    holds("AU19")


def witness_AU20() -> None:
    holds("AU20")


def witness_AU21() -> None:
    holds("AU21")


def witness_AU22() -> None:
    holds("AU22")


def witness_AU23() -> None:
    holds("AU23")


def witness_AU24() -> None:
    holds("AU24")


def witness_AU25() -> None:
    holds("AU25")


def witness_AU26() -> None:
    holds("AU26")


def witness_AU27() -> None:
    holds("AU27")


def witness_AU28() -> None:
    holds("AU28")


def witness_AU29() -> None:
    holds("AU29")


def witness_AU30() -> None:
    holds("AU30")


def witness_AU31() -> None:
    holds("AU31")


def witness_AU32() -> None:
    holds("AU32")


def witness_AU33() -> None:
    holds("AU33")


def witness_AU34() -> None:
    holds("AU34")


def witness_AU35() -> None:
    holds("AU35")


def witness_AU36() -> None:
    holds("AU36")

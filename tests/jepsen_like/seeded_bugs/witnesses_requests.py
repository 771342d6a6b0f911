"""Witnesses of the planted bugs about requests, and of those that one side alone had seen; see witnesses.py.

What these bugs change shows only between a client and a whole node, so each witness is the bug's own schedule.
"""

from __future__ import annotations

from tests.support.bug_schedules import holds


def witness_A01() -> None:
    holds("A01")


def witness_A03() -> None:
    holds("A03")


def witness_A04() -> None:
    holds("A04")


def witness_A06() -> None:
    holds("A06")


def witness_A07() -> None:
    holds("A07")


def witness_A08() -> None:
    holds("A08")


def witness_A14() -> None:
    holds("A14")


def witness_A15() -> None:
    holds("A15")


def witness_A16() -> None:
    holds("A16")


def witness_A17() -> None:
    holds("A17")


def witness_A18() -> None:
    holds("A18")


def witness_A19() -> None:
    holds("A19")


def witness_A20() -> None:
    holds("A20")


def witness_A21() -> None:
    holds("A21")


def witness_A22() -> None:
    holds("A22")


def witness_A23() -> None:
    holds("A23")


def witness_A24() -> None:
    holds("A24")


def witness_A29() -> None:
    holds("A29")


def witness_A30() -> None:
    holds("A30")


def witness_A32() -> None:
    holds("A32")


def witness_A35() -> None:
    holds("A35")


def witness_A37() -> None:
    holds("A37")


def witness_B01() -> None:
    holds("B01")


def witness_B02() -> None:
    holds("B02")


def witness_B03() -> None:
    holds("B03")


def witness_B04() -> None:
    holds("B04")


def witness_B05() -> None:
    holds("B05")


def witness_B06() -> None:
    holds("B06")


def witness_B07() -> None:
    holds("B07")


def witness_D01() -> None:
    holds("D01")


def witness_D02() -> None:
    holds("D02")


def witness_D03() -> None:
    holds("D03")


def witness_D04() -> None:
    holds("D04")


def witness_D05() -> None:
    holds("D05")


def witness_D06() -> None:
    holds("D06")


def witness_D07() -> None:
    holds("D07")


def witness_D08() -> None:
    holds("D08")


def witness_E01() -> None:
    holds("E01")


def witness_E02() -> None:
    holds("E02")


def witness_E03() -> None:
    holds("E03")


def witness_E04() -> None:
    holds("E04")


def witness_E05() -> None:
    holds("E05")


def witness_E06() -> None:
    holds("E06")


def witness_E07() -> None:
    holds("E07")


def witness_H01() -> None:
    holds("H01")


def witness_H02() -> None:
    holds("H02")


def witness_H03() -> None:
    holds("H03")


def witness_B08() -> None:
    holds("B08")


def witness_B09() -> None:
    holds("B09")


def witness_B10() -> None:
    holds("B10")


def witness_F01() -> None:
    holds("F01")


def witness_F02() -> None:
    holds("F02")


def witness_F03() -> None:
    holds("F03")


def witness_F04() -> None:
    holds("F04")


def witness_F05() -> None:
    holds("F05")


def witness_F06() -> None:
    holds("F06")


def witness_H04() -> None:
    holds("H04")


def witness_H05() -> None:
    holds("H05")


def witness_H06() -> None:
    holds("H06")


def witness_H07() -> None:
    holds("H07")


def witness_H08() -> None:
    holds("H08")


def witness_J01() -> None:
    holds("J01")


def witness_J02() -> None:
    holds("J02")


def witness_J03() -> None:
    holds("J03")


def witness_J04() -> None:
    holds("J04")


def witness_J05() -> None:
    holds("J05")


def witness_J06() -> None:
    holds("J06")


def witness_T08() -> None:
    holds("T08")


def witness_T09() -> None:
    holds("T09")


def witness_T10() -> None:
    holds("T10")


def witness_AP01() -> None:
    holds("AP01")

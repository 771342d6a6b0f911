"""The bugs of all tables beside unit tests: each fits the code, and the test that is named notices it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rows import each_row
from tests.support.unit_bugs import Planted, assert_fits, assert_noticed, planted_in

TABLES = sorted(Path(__file__).parent.rglob("*_bugs.toml"))
FOUND = [each for table in TABLES for each in planted_in(table)]
IDS = [each["id"] for each in FOUND]


def test_all_tables_are_found_and_each_bug_has_a_name_of_its_own() -> None:
    assert {table.stem for table in TABLES} >= {"kept_bugs", "quota_bugs", "registry_bugs"}
    assert len(set(IDS)) == len(IDS)


@each_row("planted", FOUND, ids=IDS)
def test_a_planted_bug_fits_the_code(planted: Planted) -> None:
    assert_fits(planted)


@pytest.mark.slow
@pytest.mark.parametrize("planted", FOUND, ids=IDS)
def test_a_planted_bug_is_noticed(planted: Planted, tmp_path: Path) -> None:
    assert_noticed(planted, tmp_path)

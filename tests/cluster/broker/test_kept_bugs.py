"""The bugs of kept_bugs.toml: each fits the code, and the test that is named notices it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rows import each_row
from tests.support.unit_bugs import Planted, assert_fits, assert_noticed, planted_in

FOUND = planted_in(Path(__file__).with_name("kept_bugs.toml"))
IDS = [each["id"] for each in FOUND]


@each_row("planted", FOUND, ids=IDS)
def test_a_planted_bug_of_what_is_kept_fits_the_code(planted: Planted) -> None:
    assert_fits(planted)


@pytest.mark.slow
@pytest.mark.parametrize("planted", FOUND, ids=IDS)
def test_a_planted_bug_of_what_is_kept_is_noticed(planted: Planted, tmp_path: Path) -> None:
    assert_noticed(planted, tmp_path)

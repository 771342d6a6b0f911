"""The bugs of limit_bugs.toml: each fits the code, and the test that is named notices it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.unit_bugs import Planted, assert_fits, assert_noticed, planted_in

FOUND = planted_in(Path(__file__).with_name("limit_bugs.toml"))
IDS = [each["id"] for each in FOUND]


@pytest.mark.parametrize("planted", FOUND, ids=IDS)
def test_a_planted_bug_of_limits_fits_the_code(planted: Planted) -> None:
    assert_fits(planted)


@pytest.mark.slow
@pytest.mark.parametrize("planted", FOUND, ids=IDS)
def test_a_planted_bug_of_limits_is_noticed(planted: Planted, tmp_path: Path) -> None:
    assert_noticed(planted, tmp_path)

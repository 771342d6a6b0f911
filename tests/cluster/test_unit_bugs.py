"""The bugs of all tables beside unit tests: the named test notices each. tests/architecture checks that they fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.unit_bugs import Planted, all_planted, assert_noticed

FOUND = all_planted()
IDS = [each["id"] for each in FOUND]


@pytest.mark.slow
@pytest.mark.parametrize("planted", FOUND, ids=IDS)
def test_a_planted_bug_is_noticed(planted: Planted, tmp_path: Path) -> None:
    assert_noticed(planted, tmp_path)

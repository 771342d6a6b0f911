"""Copies of the log of one node, made once."""

from __future__ import annotations

import pytest

from tests.support.left_copies import Left, leave


@pytest.fixture(scope="session")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    return leave(tmp_path_factory.mktemp("left"))

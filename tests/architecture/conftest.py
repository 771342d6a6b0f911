"""The sources of the tree are read once for all tests of this folder, and forgotten after them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tree import forget


def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """After the last test of the folder. Syntax trees of the whole product are hundreds of MiB."""
    if nextitem is None or not nextitem.path.is_relative_to(Path(__file__).parent):
        forget()

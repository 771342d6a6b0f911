"""Logs for the states of tests of cluster/truth/."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.statemachine.conftest import LogBuilder


@pytest.fixture(scope="session")
def new_log() -> Callable[..., LogBuilder]:
    """Makes an empty log."""
    return LogBuilder

"""The matrix with few messages, as a test runs it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.matrix.programs import FEATURES, is_installed, parts
from tests.compat.matrix.run import SETTINGS, Plan, run_plan
from tests.support.tools import lack

RATE, SENDING_S, ENOUGH = 8.0, 30.0, 100


def check_features(
    client: str,
    mode: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    chance: random.Random,
    tell: Callable[[str], None],
    size: tuple[int, int] = (1, 3),
) -> None:
    """Runs every feature of a client, and fails unless all cells pass. `size`: groups of brokers, nodes of each."""
    if not is_installed(client):
        lack("go" if client.startswith("go") else "mvn", why="make test-compat builds this client with it")
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    for number, features in enumerate(parts(client, mode, FEATURES)):
        plan = Plan(client, features, mode, chance.randrange(1 << 32), RATE, SENDING_S, ENOUGH, *size)
        results = run_plan(plan, home / f"run-{number}", tell)
        assert {result.feature: result.reason for result in results if not result.passed} == {}

"""Every client, every feature of the matrix, in clusters of several groups of brokers, with few messages: calm in four
groups, and while leaders of any of two groups are killed (`python -m tests.compat.matrix --groups 2`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.matrix.programs import COMMANDS, FEATURES, is_installed, parts
from tests.compat.matrix.run import SETTINGS, Plan, run_plan
from tests.support.tools import lack

pytestmark = [pytest.mark.compat, pytest.mark.timeout(1800)]
RATE, SENDING_S, ENOUGH = 8.0, 30.0, 100
RUNS = [
    *((client, "kills", (2, 3)) for client in COMMANDS),
    *((client, "calm", (4, 1)) for client in COMMANDS),
    ("java-5.5.0", "secured", (2, 3)),
]


@pytest.mark.parametrize(("client", "mode", "size"), RUNS, ids=lambda value: value if isinstance(value, str) else "")
def test_features(
    client: str,
    mode: str,
    size: tuple[int, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    chance: random.Random,
    tell: Callable[[str], None],
) -> None:
    if not is_installed(client):
        lack("go" if client.startswith("go") else "mvn", why="make test-compat builds this client with it")
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    for number, features in enumerate(parts(client, mode, FEATURES)):
        plan = Plan(client, features, mode, chance.randrange(1 << 32), RATE, SENDING_S, ENOUGH, *size)
        results = run_plan(plan, tmp_path / f"run-{number}", tell)
        assert {result.feature: result.reason for result in results if not result.passed} == {}

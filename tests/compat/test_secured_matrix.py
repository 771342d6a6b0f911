"""Every client, every feature, as users who have only what docs/security.md says, through two killed leaders: the
matrix's secured mode (`python -m tests.compat.matrix --modes secured`), with few messages."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.matrix.programs import COMMANDS, FEATURES, is_installed, parts
from tests.compat.matrix.run import SETTINGS, Plan, run_plan
from tests.support.tools import lack

pytestmark = [pytest.mark.compat, pytest.mark.timeout(900)]
RATE, SENDING_S, ENOUGH = 8.0, 30.0, 100


@pytest.mark.parametrize("client", COMMANDS)
def test_users_with_documented_rights_use_every_feature(
    client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chance: random.Random, tell: Callable[[str], None]
) -> None:
    if not is_installed(client):
        lack("go" if client.startswith("go") else "mvn", why="make test-compat builds this client with it")
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    for number, features in enumerate(parts(client, "secured", FEATURES)):
        plan = Plan(client, features, "secured", chance.randrange(1 << 32), RATE, SENDING_S, ENOUGH)
        results = run_plan(plan, tmp_path / f"run-{number}", tell)
        assert {result.feature: result.reason for result in results if not result.passed} == {}

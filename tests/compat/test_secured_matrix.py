"""Every client, every feature, as users who have only what docs/security.md says, through two killed leaders: the
matrix's secured mode (`python -m tests.compat.matrix --modes secured`), with few messages."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.matrix.few import check_features
from tests.compat.matrix.programs import COMMANDS

pytestmark = [pytest.mark.compat, pytest.mark.timeout(900)]


@pytest.mark.parametrize("client", COMMANDS)
def test_users_with_documented_rights_use_every_feature(
    client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chance: random.Random, tell: Callable[[str], None]
) -> None:
    check_features(client, "secured", tmp_path, monkeypatch, chance, tell)

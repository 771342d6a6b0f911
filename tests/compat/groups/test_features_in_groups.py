"""Every client, every feature of the matrix, in clusters of several groups of brokers, with few messages: calm in four
groups, while leaders of any of two groups are killed, and then as users who have only the rights that they need
(`python -m tests.compat.matrix --groups 2`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.matrix.few import check_features
from tests.compat.matrix.programs import COMMANDS

pytestmark = [pytest.mark.compat, pytest.mark.timeout(1800)]
RUNS = [
    *((client, "kills", (2, 3)) for client in COMMANDS),
    *((client, "calm", (4, 1)) for client in COMMANDS),
    *((client, "secured", (2, 3)) for client in COMMANDS),
]


@pytest.mark.parametrize(("client", "mode", "size"), RUNS, ids=lambda value: value if isinstance(value, str) else "")
def test_every_client_uses_every_feature(
    client: str,
    mode: str,
    size: tuple[int, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    chance: random.Random,
    tell: Callable[[str], None],
) -> None:
    check_features(client, mode, tmp_path, monkeypatch, chance, tell, size)

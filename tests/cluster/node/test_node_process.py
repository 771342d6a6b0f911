"""What the process around a node hands to it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from cluster.config.config import Config
from cluster.node import __main__ as process
from cluster.node import life
from cluster.runtime import python_speed
from cluster.runtime.environment import Environment


async def test_the_node_is_told_of_a_slow_python(monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[Environment] = []

    class Life:
        def __init__(self, config: Config, environment: Environment, started: Any) -> None:
            handed.append(environment)

        async def run(self) -> None:
            return None

    monkeypatch.setattr(python_speed, "finding_at_start", lambda: "python is slow")
    monkeypatch.setattr(life, "NodeLife", Life)
    assert await process.run(cast(Config, None)) == 0
    assert [environment.python_finding for environment in handed] == ["python is slow"]

"""The shared fixtures of the tests of local clusters: `own_cluster`, and `run` for one command in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from raftmq import cli
from tests.support.node_commands import own_cluster

__all__ = ["Run", "own_cluster", "run"]

Run = Callable[..., tuple[int, Any]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command with --json; returns its exit code, and what it said: loaded JSON, or all its output as text."""

    def ran(*words: str) -> tuple[int, Any]:
        code = cli.run([*words, "--json"])
        told = capfd.readouterr()
        try:
            return code, json.loads(told.out)
        except ValueError:
            return code, told.out + told.err

    return ran

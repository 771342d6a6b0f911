"""`raftmq sim`: what it prints and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cluster.replication.raft_driver import RaftDriver
from jepsen_like.sim_cli import sim

SEED = "7002"


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(sim, arguments, standalone_mode=False)
    assert result.exception is None, result.exception
    return int(result.return_value or 0), result.output


@pytest.mark.ci
def test_run_as_json() -> None:
    code, output = invoke("run", "--first-seed", SEED, "--seeds", "1", "--json")
    row = json.loads(output)
    assert code == 0
    assert row["violations"] == 0
    assert row["seeds"] == 1
    assert row["acked"] >= 200


@pytest.mark.ci
def test_replay_writes_the_trace_to_a_file(tmp_path: Path) -> None:
    code, output = invoke("replay", SEED, "--trace", str(tmp_path / "trace.txt"))
    assert code == 0
    assert output.startswith(f"options: seed={SEED} ")
    assert "no violation" in output
    assert "leads term" in (tmp_path / "trace.txt").read_text()


def test_a_violation_prints_how_to_replay_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RaftDriver, "_serve_reads", lambda driver: 1 / 0)
    code, output = invoke("run", "--first-seed", SEED, "--seeds", "1")
    assert code == 1
    assert f"raftmq sim replay {SEED}" in output
    assert "1 violations" in output or "violations" in output.splitlines()[-1]

"""Tracebacks on request, defects in three lines, and what `down --purge` deletes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cluster.config.local_layout import ClusterFile, write_cluster
from cluster.config.node_files import plan_nodes, write_configs
from raftmq.cli import cli, main
from tests.support.pace import at_most


def command(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAFTMQ_")} | variables
    line = [sys.executable, "-m", "raftmq.cli", *words]
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=at_most(60))


def test_a_traceback_is_printed_on_request(tmp_path: Path) -> None:
    assert "Traceback" not in command(tmp_path, "topic", "list").stderr
    assert "Traceback" in command(tmp_path, "--debug", "topic", "list").stderr
    shown = command(tmp_path, "topic", "list", RAFTMQ_DEBUG="1")
    assert "Traceback" in shown.stderr
    assert shown.stderr.splitlines()[-1].startswith("type:    raftmq up")


def test_a_defect_is_told_in_three_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> None:
        raise KeyError("leader")

    monkeypatch.setattr("raftmq.commands.messages.topic.AdminApi", fail)
    monkeypatch.setattr(sys, "argv", ["raftmq", "topic", "list", "--admin", "127.0.0.1:1"])
    with pytest.raises(SystemExit) as ended:
        main()
    what, why, fix = capsys.readouterr().err.splitlines()
    assert ended.value.code == 1
    assert what == "raftmq ended with KeyError: 'leader'"
    assert "defect" in why
    assert "RAFTMQ_DEBUG=1" in fix
    monkeypatch.setenv("RAFTMQ_DEBUG", "1")
    with pytest.raises(KeyError):
        main()


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    line = f"{sys.executable} -m raftmq.cli config explain --output yaml | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=at_most(60))
    assert (done.returncode, done.stdout, done.stderr) == (0, "---\n", "")


def test_purge_deletes_the_nodes_and_nothing_else(tmp_path: Path) -> None:
    data = tmp_path / ".raftmq"
    nodes = plan_nodes(data, 3, 29000)
    write_configs(nodes)
    write_cluster(data, ClusterFile(nodes))
    (data / "removed" / "n4").mkdir(parents=True)
    for folder in ("backups", "tls"):
        (data / folder).mkdir()
    for name in ("users.key", "first-user"):
        (data / name).touch()

    def down(*words: str, stdin: str = "") -> tuple[int, str]:
        result = CliRunner().invoke(cli, ["down", *words, "--data", str(data)], input=stdin)
        return result.exit_code, result.output

    assert down("--yes")[0] == 2
    assert "would be deleted" in down("--purge", "--dry-run")[1]
    assert down("--purge", stdin="n\n")[0] == 130
    assert (data / "n1").exists()
    assert down("--purge", "--yes")[0] == 0
    assert [path.name for path in data.iterdir()] == ["backups"]
    assert down("--purge", "--yes")[0] == 4

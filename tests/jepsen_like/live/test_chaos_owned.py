"""A run that was killed: the next one ends and removes exactly what its file lists."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from jepsen_like.live.subjects.owned_resources import FOLDER_VARIABLE, Owned, state_folder, sweep
from raftmq_wire.errors import LocalError


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield child
    child.kill()
    child.wait()
    assert child.stdin is not None
    child.stdin.close()


def listed(path: Path, processes: list[dict[str, float]], directories: list[str]) -> None:
    dead = {"pid": 2**22 - 3, "started": 1.0}
    path.write_text(json.dumps({"run": dead, "processes": processes, "directories": directories}))


def test_a_dead_run_s_processes_and_directories_go(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    mine, others = tmp_path / "nodes", tmp_path / "history"
    mine.mkdir()
    others.mkdir()
    started = psutil.Process(sleeper.pid).create_time()
    listed(tmp_path / "1.json", [{"pid": sleeper.pid, "started": started}], [str(mine)])
    swept = sweep(tmp_path)
    assert (swept.processes, swept.directories) == ([sleeper.pid], [str(mine)])
    assert not psutil.pid_exists(sleeper.pid)
    assert not mine.exists()
    assert others.exists()
    assert not list(tmp_path.glob("*.json"))


def test_a_pid_that_belongs_to_another_by_now_is_left_alone(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    started = psutil.Process(sleeper.pid).create_time() - 60
    listed(tmp_path / "1.json", [{"pid": sleeper.pid, "started": started}], [])
    assert sweep(tmp_path).processes == []
    assert sleeper.poll() is None


def test_a_living_run_is_left_alone(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    folder = tmp_path / "nodes"
    folder.mkdir()
    owned = Owned(tmp_path)
    owned.add_directory(folder)
    owned.add_process(sleeper.pid)
    swept = sweep(tmp_path)
    assert (swept.processes, swept.directories) == ([], [])
    assert folder.exists()
    owned.close()
    assert not owned.path.exists()


def test_what_is_kept_is_not_listed_any_more(tmp_path: Path) -> None:
    owned = Owned(tmp_path)
    owned.add_directory(tmp_path / "nodes")
    assert str(tmp_path / "nodes") in owned.path.read_text()
    owned.keep_directory(tmp_path / "nodes")
    assert str(tmp_path / "nodes") not in owned.path.read_text()
    owned.close()


def test_a_damaged_file_is_set_aside_and_not_obeyed(tmp_path: Path) -> None:
    (tmp_path / "7.json").write_text('{"run":')
    swept = sweep(tmp_path)
    assert (swept.processes, swept.directories) == ([], [])
    assert (tmp_path / "7.damaged").exists()


def test_the_folder_is_private(tmp_path: Path) -> None:
    folder = state_folder({FOLDER_VARIABLE: str(tmp_path / "state")})
    assert folder.stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(LocalError, match="is not ours"):
        state_folder({FOLDER_VARIABLE: str(tmp_path / "link")})
    assert os.getuid() == folder.stat().st_uid

"""Our processes keep what they make from other users, and work that nobody waits for goes last."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cluster.runtime.host import helper_process
from cluster.runtime.host.private_files import as_the_user_has_it, private


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode_of_new(path: Path) -> int:
    path.touch()
    return path.stat().st_mode & 0o777


def test_what_a_program_makes_is_private_but_for_what_the_user_named(tmp_path: Path) -> None:
    with private():
        assert mode_of_new(tmp_path / "a") == 0o600
        with private():  # `raftmq serve` runs a node
            assert mode_of_new(tmp_path / "b") == 0o600
            with as_the_user_has_it():
                assert mode_of_new(tmp_path / "c") == 0o644
        assert mode_of_new(tmp_path / "d") == 0o600
    assert mode_of_new(tmp_path / "e") == 0o644
    with as_the_user_has_it():
        assert mode_of_new(tmp_path / "f") == 0o644


def test_a_stricter_umask_stays(tmp_path: Path) -> None:
    os.umask(0o277)
    with private():
        assert mode_of_new(tmp_path / "a") == 0o400


def test_background_work_goes_last_from_its_first_import(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(
        "import json, os, sys\nimport psutil\nown = psutil.Process()\n"
        "disk = own.ionice().ioclass if hasattr(own, 'ionice') else None\n"
        "print(json.dumps([own.nice(), disk, __name__, sys.argv[1:]]))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = helper_process.background("work", "a", "b")
    told = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    assert told == [19, int(psutil.IOPRIO_CLASS_IDLE), "__main__", ["a", "b"]]

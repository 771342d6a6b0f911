"""Files of a folder that shares something costly run in one process, one after the other; long files come early."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.conftest import in_turns
from tests.support.pace import at_most
from tests.support.tree import ROOT
from tests.support.wait_until import wait

NOTES = """
from pathlib import Path
def test_notes(worker_id): (Path(__file__).parents[2] / f"{Path(__file__).stem}.txt").write_text(worker_id)
"""


def test_files_of_a_shared_folder_run_in_one_process(tmp_path: Path) -> None:
    for name in ("architecture/test_a.py", "architecture/test_b.py", "cluster/test_c.py", "cluster/test_d.py"):
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(NOTES)
    (tmp_path / "tests" / "support").mkdir()
    for name in ("conftest.py", "support/pace.py", "support/tools.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests" / name)
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:schemathesis", "-n", "2"]
    command += ["--dist", "loadfile"]
    output = tmp_path / "output"
    with (
        output.open("wb") as file,
        subprocess.Popen(command, cwd=tmp_path, stdout=file, stderr=file, start_new_session=True) as run,
    ):
        # Only who ran what is asked: the workers may take their time to end.
        try:
            wait(lambda: len(notes(tmp_path)) == 4 or run.poll() is not None, output.read_text, patience_s=at_most(120))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
    ran = notes(tmp_path)
    assert len(ran) == 4, output.read_text()
    assert ran["test_a"] == ran["test_b"]
    assert ran["test_c"] != ran["test_d"], "what shares nothing runs side by side"


def notes(folder: Path) -> dict[str, str]:
    """Returns each file's stem with the worker that ran it, as far as they are written."""
    return {path.stem: worker for path in folder.glob("test_?.txt") if (worker := path.read_text())}


def a_test(file: str, number: int, *marks: str) -> Any:
    return SimpleNamespace(nodeid=f"tests/{file}::test_{number}", get_closest_marker=lambda name: name in marks)


def test_long_files_come_in_turns_with_short_ones_and_not_at_the_end() -> None:
    short = [a_test(f"cluster/test_{name}.py", number) for name in "abcdef" for number in range(2)]
    lone = [a_test("jepsen_like/sim/test_script.py", 0), a_test("raftmq/test_up.py", 0, "live")]
    shared = [a_test("architecture/test_a.py", 0), a_test("architecture/test_b.py", 0)]
    given = short + lone + shared
    files = list(dict.fromkeys(item.nodeid.partition("::")[0].removeprefix("tests/") for item in in_turns(given)))
    assert files[:2] == ["architecture/test_a.py", "architecture/test_b.py"]
    assert "".join("s" if file.startswith("cluster") else "L" for file in files[2:]) == "LssLssss"
    ordered = [item.nodeid for item in in_turns(given)]
    assert sorted(ordered) == sorted(item.nodeid for item in given)
    assert ordered.index("tests/cluster/test_a.py::test_0") + 1 == ordered.index("tests/cluster/test_a.py::test_1")

"""Files of a folder that shares something costly run in one process, one after the other."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.pace import at_most
from tests.support.tree import ROOT

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
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:schemathesis", "-n", "3"]
    command += ["--dist", "loadfile"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=at_most(60))
    ran = {path.stem: path.read_text() for path in tmp_path.glob("*.txt")}
    assert ran["test_a"] == ran["test_b"]
    assert ran["test_c"] != ran["test_d"], "what shares nothing runs side by side"

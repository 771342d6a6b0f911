"""README's own commands and its program, run as a reader types them, in a folder of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftmq.local.process import free_base_port
from tests.support.pace import at_most

pytestmark = pytest.mark.live
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NOT_RUN = {"make demo": "tests/jepsen_like/test_demo_live.py runs it", "make test": "this is it"}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    run(tmp_path, [sys.executable, "-P", "-m", "raftmq", "down"])


def run(folder: Path, command: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    free = {name: value for name, value in os.environ.items() if not name.startswith("RAFTMQ_")}
    return subprocess.run(
        command, cwd=folder, env=free, input=stdin, capture_output=True, text=True, timeout=at_most(90)
    )


def test_each_command_and_the_program_do_what_the_page_says(place: Path) -> None:
    """The ports are others, so that the test can run beside a cluster; all else is as it stands there."""
    for kind, body in FENCE.findall(PAGE):
        if kind == "python":
            (place / "program.py").write_text(body)
            done = run(place, [sys.executable, "program.py"])
            assert done.returncode == 0, done.stderr
            assert "two teas" in done.stdout
            assert "tea" in done.stdout
            continue
        for line in body.splitlines():
            if any(line.startswith(known) for known in NOT_RUN):
                continue
            typed = line.replace(".venv/bin/raftmq", f"{sys.executable} -P -m raftmq")
            if " up " in typed:
                typed += f" --base-port {free_base_port(12)}"
            done = run(place, ["bash", "-c", typed])
            assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
            if " up " in typed:
                assert "dashboard    http://127.0.0.1:" in done.stdout


def test_the_chinese_page_has_the_same_blocks_and_figures() -> None:
    chinese = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")
    whole = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
    assert whole.findall(chinese) == whole.findall(PAGE)
    assert re.findall(r"[\d,.]+ \|", chinese) == re.findall(r"[\d,.]+ \|", PAGE)
    assert chinese.count("\n## ") == PAGE.count("\n## ")


def test_the_picture_of_the_dashboard_is_small() -> None:
    """tests/browser/test_dashboard_pages.py opens what it shows."""
    picture = ROOT / "docs" / "img" / "dashboard.png"
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert picture.stat().st_size <= 150_000


def test_the_picture_needs_nothing_from_another_host() -> None:
    picture = (ROOT / "docs" / "img" / "demo.svg").read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\"\s)]+", picture)) == {"http://www.w3.org/2000/svg"}

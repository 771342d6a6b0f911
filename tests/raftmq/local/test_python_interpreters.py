"""The Pythons that are found on PATH, and the one of them that is called faster."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from raftmq.local import python_interpreters
from raftmq.local.python_interpreters import Faster, Python, faster, others, own


def put(path: Path, version: str = "3.11.9", *, file: str = "", is_new: bool = True, times_ns: str = "") -> Python:
    """A program that answers as a Python does, or fails if it has no version. Each time serves once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    answer = f'["{version}", "{file or path}", {str(is_new).lower()}]'
    path.write_text(
        f"""#!/bin/sh
case "$*" in
*ensurepip*) {f"echo '{answer}'" if version else "exit 1"} ;;
*python_speed.py) set -- {times_ns}
  shift "$(wc -l <'{path}.log')"; echo run >>'{path}.log'; echo "$1" ;;
esac
"""
    )
    path.chmod(0o755)
    Path(f"{path}.log").touch()
    return Python(version, file or str(path))


def test_others_on_path(tmp_path: Path) -> None:
    first = put(tmp_path / "a" / "python3")
    second = put(tmp_path / "b" / "python3.12", "3.12.1")
    put(tmp_path / "a" / "python3.11", file=first.file)  # a link to the first
    put(tmp_path / "a" / "python", file=own().file)
    put(tmp_path / "b" / "python3", "3.9.2", is_new=False)
    put(tmp_path / "b" / "python3.13", "")  # a shim without a Python behind it, or one without venv
    (tmp_path / "b" / "python3.11").write_text("no program")
    assert others({"PATH": f"{tmp_path / 'a'}::{tmp_path / 'b'}:{tmp_path / 'none'}"}) == [first, second]
    assert others({}) == []


def test_this_python_is_not_among_the_others(tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    assert others({"PATH": str(tmp_path)}) == []


@pytest.fixture
def slow_self(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Python:
    """The Python of this process takes 1100 ns at best."""
    python = put(tmp_path / "self", times_ns="1500 1100 9000")
    monkeypatch.setattr(python_interpreters, "own", lambda: python)
    return python


@pytest.mark.usefixtures("slow_self")
@pytest.mark.parametrize(("time_ns", "times"), [(550, 2.0), (1000, 1.1), (1001, None), (1100, None), (5000, None)])
def test_another_is_faster_from_a_tenth_on(tmp_path: Path, time_ns: int, times: float | None) -> None:
    slower = put(tmp_path / "slower", times_ns="1090 1090 1090")
    other = put(tmp_path / "other", times_ns=f"7000 {time_ns} 7000")
    assert faster([slower, other]) == (times and Faster(other, 1100 / time_ns))


@pytest.mark.usefixtures("slow_self")
def test_one_that_cannot_run_the_loop_is_left_out(tmp_path: Path) -> None:
    broken = put(tmp_path / "broken", times_ns="")
    assert faster([broken, Python("3.12.0", str(tmp_path / "gone"))]) is None


def test_nothing_runs_without_others(slow_self: Python) -> None:
    assert faster([]) is None
    assert Path(f"{slow_self.file}.log").read_text() == ""


def test_a_folder_on_path_that_cannot_be_looked_into_is_passed_over() -> None:
    assert others({"PATH": "/" + "f" * 300}) == []

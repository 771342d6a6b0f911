"""The reference loop, and what is said of an interpreter that is slow at it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cluster.runtime.host import python_speed
from cluster.runtime.host.python_speed import OPTIMISED, RUNS, RUNS_AT_START, SLOW, finding, finding_at_start, slowness
from tests.support.pace import at_most


def test_the_loop_does_the_same_each_time() -> None:
    assert python_speed.reference() == python_speed.reference() > 0


def test_as_a_script_it_needs_no_packages() -> None:
    command = [sys.executable, "-I", "-S", python_speed.__file__]
    assert int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=at_most(60)).stdout) > 0


def test_slowness_divides_the_least_times(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([9000, 100, 4200, 300, 5000, 900])
    monkeypatch.setattr(python_speed, "time_ns", lambda work: next(times))
    assert slowness(3) == pytest.approx(4200 / 100 / OPTIMISED)


def test_the_yardstick_takes_time() -> None:
    assert 0 < slowness(2) < 1000


def test_a_clock_that_stands_still_says_nothing_about_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([4_000_000, 0, 0, 0, 0, 4_000_000])
    monkeypatch.setattr(python_speed, "time_ns", lambda work: next(times))
    assert slowness(3) == 0
    assert finding(0) == ""


def test_only_a_slow_python_is_named() -> None:
    assert finding(SLOW - 0.01) == ""
    said = finding(3.44)
    assert sys.executable in said
    assert "3.4 times as long" in said
    assert "make setup PYTHON=" in said


@pytest.mark.parametrize(
    ("seems", "proves", "is_named"), [(SLOW - 0.1, None, False), (SLOW, SLOW - 0.1, False), (SLOW, SLOW, True)]
)
def test_at_start_only_what_seems_slow_is_measured_for_longer(
    monkeypatch: pytest.MonkeyPatch, seems: float, proves: float | None, is_named: bool
) -> None:
    measured = {RUNS_AT_START: seems, RUNS: proves}
    monkeypatch.setattr(python_speed, "slowness", lambda runs=RUNS: measured.pop(runs))
    assert bool(finding_at_start()) is is_named
    assert measured == ({RUNS: None} if proves is None else {})

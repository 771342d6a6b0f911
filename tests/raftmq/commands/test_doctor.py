"""`raftmq doctor` says what to change, and exits with 1 only then."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster import kernel
from cluster.runtime import python_speed, versions
from raftmq import cli
from raftmq.local import pythons
from raftmq.local.pythons import Faster, Python

OTHER = Python("3.11.2", "/usr/bin/python3.11")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the checks find: all is well, until a test changes it."""
    found: dict[str, Any] = {"times": 1.0, "faster": None, "why": "", "zlib": "1.1.0"}
    monkeypatch.setattr(python_speed, "slowness", lambda: found["times"])
    monkeypatch.setattr(pythons, "others", lambda: [OTHER])
    monkeypatch.setattr(pythons, "faster", lambda candidates: found["faster"])
    monkeypatch.setattr(kernel, "WHY", "")
    monkeypatch.setattr(versions, "versions", lambda: {"zlib-ng": found["zlib"]})
    return found


def examined(capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    code = cli.run(["doctor", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert [check["name"] for check in told["checks"]] == ["python", "kernel", "checksums"]
    return code, told["findings"]


@pytest.mark.usefixtures("machine")
def test_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert examined(capsys) == (0, [])


def test_a_faster_python_is_named(machine: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    machine["faster"] = Faster(OTHER, 1.44)
    code, (said,) = examined(capsys)
    assert code == 1
    assert said == (
        "/usr/bin/python3.11 (3.11.2) runs plain code 1.4 times as fast: make distclean, "
        "make setup PYTHON=/usr/bin/python3.11"
    )


def test_a_slow_python_without_a_better_one(machine: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    machine["times"] = 3.4
    assert examined(capsys) == (1, [python_speed.finding(3.4)])


def test_a_kernel_that_was_not_built(monkeypatch: pytest.MonkeyPatch, machine: object, capsys: Any) -> None:
    monkeypatch.setattr(kernel, "WHY", "no C compiler")
    assert examined(capsys) == (1, ["no C compiler"])


def test_slow_checksums(machine: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    machine["zlib"] = "not installed"
    code, (said,) = examined(capsys)
    assert code == 1
    assert said.startswith("make setup installs it")


@pytest.mark.usefixtures("machine")
def test_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["python", "kernel", "checksums"]

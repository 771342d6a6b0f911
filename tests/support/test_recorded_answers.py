"""Recordings of a few requests: two of one tree are equal, and a difference is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import recorded_answers

SCENES = ("off/leader/31 ", "off/leader/odd 700005", "enforce/follower/34 ", "off/follower/http /v1/members")


@pytest.mark.parametrize("scene", [SCENES[0], *(pytest.param(scene, marks=pytest.mark.ci) for scene in SCENES[1:])])
def test_the_same_requests_get_the_same_answers(scene: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (str(tmp_path / name) for name in ("one", "other"))
    assert recorded_answers.main(["record", one, "--only", scene]) == 0
    assert recorded_answers.main(["record", other, "--requests", one]) == 0
    assert recorded_answers.main(["compare", one, other]) == 0
    rows = [json.loads(line) for line in Path(one).read_text().splitlines()]
    assert all(scene in row["scene"] for row in rows)
    answered = [row for row in rows if row["answer"]["said"]]
    assert len(answered) > len(rows) / 2
    assert "0 differences" in capsys.readouterr().out


def test_a_difference_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"scene": "off/leader/x", "number": 0, "port": "broker", "opaque": 1, "asked": "YQ=="}
    for name, code, more in (("one", 0, 1), ("other", 16, 0)):
        rows = [row | {"answer": {"said": [{"code": code}], "closed": False}}, *[row | {"number": 1}] * more]
        (tmp_path / name).write_text("".join(json.dumps(each) + "\n" for each in rows))
    assert recorded_answers.main(["compare", str(tmp_path / "one"), str(tmp_path / "other")]) == 1
    told = capsys.readouterr().out
    assert "answer.said[0].code: 0 -> 16" in told
    assert f"off/leader/x #1: only in {tmp_path / 'one'}" in told
    assert "2 differences" in told

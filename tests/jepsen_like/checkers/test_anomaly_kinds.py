"""docs/checkers.md, the vocabulary and the kinds that checkers report are one and the same list."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import jepsen_like.checkers
from jepsen_like.checkers import VOCABULARY, WORKLOADS, history_steps
from jepsen_like.checkers.anomaly_kinds import KINDS, gravity
from jepsen_like.checkers.verdict import Findings

PAGE = (Path(__file__).parents[3] / "docs" / "checkers.md").read_text(encoding="utf-8")


def table(title: str) -> list[list[str]]:
    """The rows of the first table below a title, as cells."""
    rows = re.findall(r"^\| (`.*) \|$", PAGE.split(f"## {title}")[1].split("\n## ")[0], re.MULTILINE)
    return [[cell.strip() for cell in row.split(" |")] for row in rows]


def test_the_page_lists_every_kind_in_order_with_its_meaning() -> None:
    assert [(row[0].strip("`"), row[1].removeprefix("| ")) for row in table("Kinds of anomaly")] == list(KINDS.items())


def test_the_page_lists_every_step() -> None:
    assert {row[0].strip("`") for row in table("What a history holds")} == VOCABULARY
    assert history_steps.__doc__ is not None
    assert set(re.findall(r"^    (\w+) {2,}\w", history_steps.__doc__, re.MULTILINE)) == VOCABULARY | {"f"}


def test_the_page_lists_every_workload() -> None:
    assert [row[0].strip("`") for row in table("Workloads")] == list(WORKLOADS)


def test_every_kind_is_reported_by_some_checker() -> None:
    sources = "".join(path.read_text() for path in Path(jepsen_like.checkers.__path__[0]).glob("*.py"))
    sources = sources.replace(Path(jepsen_like.checkers.__path__[0], "anomaly_kinds.py").read_text(), "")
    for kind in KINDS:
        assert f'"{kind}"' in sources or f'"{{kind}}-{kind.rpartition("-")[2]}"' in sources, kind


def test_an_undeclared_kind_is_a_defect_of_the_checker() -> None:
    with pytest.raises(AssertionError):
        Findings().add("surprise", "", ())
    with pytest.raises(KeyError):
        gravity("surprise")

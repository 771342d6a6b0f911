"""Which tests can notice a mutant: those that run its statement."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from jepsen_like.mutants import reach
from jepsen_like.mutants.reach import Reach, chunk_name, place
from jepsen_like.mutants.records import Row, row_of
from jepsen_like.mutants.workshop import Workshop

FILE = "raftlog/core/quorum.py"
TEXT = """LIMIT = 3


def double(n: int) -> int:
    return n * 2


def capped(n: int) -> int:
    try:
        if n < 0:
            raise ValueError(n)
        elif n > LIMIT:
            n = (
                LIMIT
            )
    except ValueError:
        return 0
    return n
"""
TESTS = {
    "tests/test_one.py": "from raftlog.core.quorum import double\n\ndef test_it():\n    assert double(1) == 2\n",
    "tests/test_two.py": "from raftlog.core.quorum import capped\n\ndef test_it():\n    assert capped(9) == 3\n",
    "tests/test_both.py": """import pytest
from raftlog.core.quorum import capped

@pytest.fixture(scope="session")
def zero() -> int:
    return capped(-1)

def test_it(zero: int) -> None:
    assert capped(1) == 1
""",
}


def rows() -> dict[str, Row]:
    changes = {
        "limit": ("LIMIT = 3", "LIMIT = 4"),
        "double": ("n * 2", "n / 2"),
        "high": ("elif n > LIMIT", "elif n < LIMIT"),
        "inner": ("                LIMIT", "                -LIMIT"),
        "caught": ("return 0", "return 1"),
    }
    return {name: row_of(FILE, name, TEXT, TEXT.replace(*change)) for name, change in changes.items()}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (1, None),
        (4, None),
        (5, "return n * 2"),
        (10, "if n < 0:"),
        (11, "raise ValueError(n)"),
        (12, "if n > LIMIT:"),
        (14, "n = LIMIT"),
        (16, "try:"),
        (17, "return 0"),
    ],
)
def test_a_mark_stands_in_front_of_the_innermost_statement(line: int, expected: str | None) -> None:
    found = place(ast.parse(TEXT), line)
    assert (found and ast.unparse(found[0][found[1]]).split("\n")[0]) == expected


def test_a_test_file_that_does_not_run_the_statement_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Workshop, "type_errors", lambda _: "")
    workshop = Workshop(tmp_path / "copy")
    (workshop.root / FILE).write_text(TEXT)
    (workshop.root / "raftlog/core/__init__.py").write_text("")
    for name, text in TESTS.items():
        (workshop.root / name).write_text(text)
    of = rows()
    chunk, kept = chunk_name("core", 1, 0), tmp_path / "kept" / "reach.json"
    Reach(kept).measure(of.values(), list(TESTS), [chunk], workshop)
    assert (workshop.root / FILE).read_text() == TEXT

    known = Reach(kept)
    asked = {name: {Path(test).stem for test in known.tests(row, list(TESTS))} for name, row in of.items()}
    assert asked == {
        "limit": {"test_one", "test_two", "test_both"},
        "double": {"test_one"},
        "high": {"test_two", "test_both"},
        "inner": {"test_two"},
        "caught": {"test_one", "test_two", "test_both"},
    }
    assert [known.reaches(of[name], chunk) for name in ("limit", "double", "inner")] == [True, False, False]
    assert known.reaches(of["double"], "tests/test_of_nobody_knows_what.py")

    asked_again: list[list[str]] = []

    def noted(texts: object, request: dict[str, list[str]], workshop: object) -> dict[str, object]:
        asked_again.append(request["tests"])
        return {}

    monkeypatch.setattr(reach, "_run", noted)
    known.measure(of.values(), list(TESTS), [chunk], workshop)
    (workshop.root / "tests/test_two.py").write_text(TESTS["tests/test_one.py"])
    known.measure(of.values(), list(TESTS), [chunk], workshop)
    assert asked_again == [["tests/test_two.py"]], "only what has changed is run again"

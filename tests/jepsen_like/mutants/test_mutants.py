"""Drawing, trying and noting mutants."""

from __future__ import annotations

import ast
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner

from jepsen_like.mutants import records
from jepsen_like.mutants.__main__ import main
from jepsen_like.mutants.drawing import FAKES, REPLICATION, Mutant, Site, drawn, files
from jepsen_like.mutants.judging import ALSO, KILLED, SURVIVED, TIMED_OUT, Judgement, change, judges_of
from jepsen_like.mutants.operators import operators
from jepsen_like.mutants.workshop import Workshop
from jepsen_like.seeded_bugs.catalogue import SOURCE_ROOT

FILE = "raftlog/core/quorum.py"
TEXT = '''"""Words."""

def f(self, xs: list[int]) -> int:
    """More words."""
    self.n = 1
    total = 0
    for x in xs:
        if x > 3:
            total += x
    self.close()
    return total
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for file in (*files(SOURCE_ROOT), *FAKES):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / FILE).write_text(TEXT)
    return tmp_path


def test_what_is_mutated_exists_and_is_no_fake() -> None:
    found = files(SOURCE_ROOT)
    assert len(found) > 100
    assert all((SOURCE_ROOT / file).is_file() for file in found)
    assert not set(found) & set(FAKES)
    assert all((SOURCE_ROOT / name).exists() for name in (*REPLICATION, *FAKES))


def test_every_mutant_is_another_program_and_changes_one_place(tree: Path) -> None:
    found = list(drawn(tree, 7))
    texts = [mutant.applied(TEXT) for mutant in found]
    assert len(found) == len({mutant.site for mutant in found}) >= 8
    assert len(set(texts)) == len(texts)
    for text in texts:
        ast.parse(text)
        assert len([line for line in change(TEXT, text) if line[0] == "-"]) == 1


def test_a_seed_draws_the_same_mutants_again_and_another_one_others(tree: Path) -> None:
    assert list(drawn(tree, 7)) == list(drawn(tree, 7))
    assert list(drawn(tree, 7)) != list(drawn(tree, 8))
    assert list(islice(drawn(tree, 7, ["raftlog/frame.py"]), 1)) == []


def test_statements_are_left_out_and_docstrings_and_new_names_are_not() -> None:
    operator = operators()["LeaveOut"]
    left_out = []
    for occurrence in range(3):
        try:
            left_out.append(change(TEXT, Mutant(Site("x", 1, 1), "LeaveOut", occurrence).applied(TEXT))[0])
        except ValueError:
            break
    assert left_out == ["- self.n = 1", "- self.close()"]
    assert [example.post_mutation_code for example in operator.examples()] == ["pass\n", "pass\n"]


def test_a_mutant_of_another_text_is_refused() -> None:
    with pytest.raises(ValueError, match="changes nothing"):
        Mutant(Site("x", 1, 1), "LeaveOut", 99).applied(TEXT)


def test_mutants_of_a_folder_are_judged_by_its_own_tests_too() -> None:
    assert judges_of("cluster/peer/links.py", ["tests/x"]) == ["tests/cluster/peer", "tests/x"]
    assert judges_of("cluster/modes/early.py", ["tests/x"]) == ["tests/cluster/modes", "tests/x"]
    assert judges_of("raftlog/frame.py", ["tests/x"]) == ["tests/x"]
    assert all((SOURCE_ROOT / tests).is_dir() for tests in ALSO.values())


def test_no_two_texts_of_a_file_share_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mypy believes size and second: it told of a mutant that was gone, and so fourteen others did not count."""
    monkeypatch.setattr(Workshop, "type_errors", lambda _: "")
    workshop = Workshop(tmp_path)
    path, seconds = tmp_path / FILE, []
    for text in ("a = 1\n", "a = 2\n", "a = 3\n"):
        with workshop.holding(FILE, text):
            assert path.read_text() == text
            seconds.append(int(path.stat().st_mtime))
        seconds.append(int(path.stat().st_mtime))
    assert sorted(set(seconds)) == seconds


def judgement(name: str, status: str, by: str = "", lines: tuple[str, ...] = ("- a", "+ b")) -> Judgement:
    return Judgement(name, FILE, lines, status, by, 1.0)


def test_records_are_read_back_and_a_torn_line_is_judged_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "mutants.jsonl"
    assert records.load(path) == {}
    for name in ("one", "two"):
        records.append(path, judgement(name, KILLED))
    path.write_text(path.read_text() + '{"name": "thr')
    assert records.load(path) == {name: judgement(name, KILLED) for name in ("one", "two")}


def test_the_summary_names_survivors_and_counts_what_lived_without_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "reasons", lambda: {(FILE, ("- a", "+ b")): "a log line"})
    lines = records.summary(
        [
            judgement("k", KILLED, "unit tests: test_x"), judgement("s", KILLED, "full simulator: seed 1: log"),
            judgement("a", SURVIVED), judgement("b", SURVIVED, lines=("- c",)), judgement("t", TIMED_OUT, lines=()),
        ]
    )  # fmt: skip
    assert "survived: a" in lines
    assert "    harmless: a log line" in lines
    assert "timed out: t" in lines
    assert lines[-1].startswith("4 judged, 2 killed (50 %; 1 by the simulator alone), 2 survived (1 without a reason)")


def test_the_reasons_on_record_belong_to_lines_that_exist() -> None:
    for (file, lines), why in records.reasons().items():
        assert why
        text = (SOURCE_ROOT / file).read_text()
        for line in lines:
            assert line[0] == "+" or line[2:] in text, f"{file}: {line}: the line has changed, judge its mutant again"


def test_a_seed_that_is_no_number_is_refused() -> None:
    result = CliRunner().invoke(main, ["--seed", "xyz"])
    assert result.exit_code == 2
    assert "not a hexadecimal number" in result.output


@pytest.mark.slow
def test_a_mutant_that_matters_is_killed(tmp_path: Path) -> None:
    out = tmp_path / "mutants.jsonl"
    result = CliRunner().invoke(main, ["--file", FILE, "--count", "2", "--out", str(out)])
    assert "killed" in result.output
    assert records.load(out)

"""Drawing, trying and noting mutants."""

from __future__ import annotations

import ast
import subprocess
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner

from jepsen_like.mutants import __main__ as campaigns
from jepsen_like.mutants import records
from jepsen_like.mutants.__main__ import main
from jepsen_like.mutants.drawing import REPLICATION, Mutant, Site, drawn, files
from jepsen_like.mutants.judging import ALSO, judges_of
from jepsen_like.mutants.operators import operators
from jepsen_like.mutants.records import DRAWN, KILLED, SURVIVED, TIMED_OUT, Row, row_of
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
    for file in files(SOURCE_ROOT):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / FILE).write_text(TEXT)
    return tmp_path


def test_what_is_mutated_exists() -> None:
    found = files(SOURCE_ROOT)
    assert len(found) > 100
    assert all((SOURCE_ROOT / file).is_file() for file in found)
    assert all((SOURCE_ROOT / name).exists() for name in REPLICATION)


def test_every_mutant_is_another_program_and_changes_one_place(tree: Path) -> None:
    found = list(drawn(tree, 7))
    texts = [mutant.applied(TEXT) for mutant in found]
    assert len(found) == len({mutant.site for mutant in found}) >= 8
    assert len(set(texts)) == len(texts)
    for text in texts:
        ast.parse(text)
        assert len(row_of(FILE, "", TEXT, text).old) == 1


def test_a_seed_draws_the_same_mutants_again_and_another_one_others(tree: Path) -> None:
    assert list(drawn(tree, 7)) == list(drawn(tree, 7))
    assert list(drawn(tree, 7)) != list(drawn(tree, 8))
    assert list(islice(drawn(tree, 7, ["raftlog/frame.py"]), 1)) == []


def test_statements_are_left_out_and_docstrings_and_new_names_are_not() -> None:
    operator = operators()["LeaveOut"]
    left_out = []
    for occurrence in range(3):
        try:
            after = Mutant(Site("x", 1, 1), "LeaveOut", occurrence).applied(TEXT)
            left_out.append(row_of(FILE, "", TEXT, after).change[0])
        except ValueError:
            break
    assert left_out == ["- self.n = 1", "- self.close()"]
    assert [example.post_mutation_code for example in operator.examples()] == ["pass\n", "pass\n"]


def test_a_mutant_of_another_text_is_refused() -> None:
    with pytest.raises(ValueError, match="changes nothing"):
        Mutant(Site("x", 1, 1), "LeaveOut", 99).applied(TEXT)


def test_mutants_of_a_folder_are_judged_by_its_own_tests_too() -> None:
    assert judges_of("cluster/peer/links.py", ["tests/x"]) == ["tests/cluster/peer", "tests/x"]
    assert judges_of("cluster/replication/early_answers.py", ["tests/x"]) == ["tests/cluster/replication", "tests/x"]
    assert judges_of("raftlog/frame.py", ["tests/x"]) == ["tests/x"]
    assert all((SOURCE_ROOT / tests).is_dir() for tests in ALSO.values())


def test_no_two_texts_of_a_file_share_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mypy believes size and second: it told of a mutant that was gone, and those that followed did not count."""
    monkeypatch.setattr(Workshop, "type_errors", lambda _: "")
    workshop = Workshop(tmp_path)
    path, seconds = tmp_path / FILE, []
    for text in ("a = 1\n", "a = 2\n", "a = 3\n"):
        with workshop.holding(FILE, text):
            assert path.read_text() == text
            seconds.append(int(path.stat().st_mtime))
        seconds.append(int(path.stat().st_mtime))
    assert sorted(set(seconds)) == seconds


def test_a_test_that_pytest_ended_is_a_timeout_and_not_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Workshop, "type_errors", lambda _: "")
    workshop = Workshop(tmp_path)
    (tmp_path / "tests" / "test_endless.py").write_text("def test_it():\n    while True:\n        pass\n")
    request = {
        "paths": ["tests/test_endless.py"],
        "ignored": [],
        "failures_max": 1,
        "test_timeout_s": 0.5,
        "timeout_method": "thread",
    }
    with pytest.raises(subprocess.TimeoutExpired):
        workshop.call("jepsen_like.seeded_bugs.unit_tests", request, 60)


def row(name: str, status: str = DRAWN, by: str = "", old: str = "    total = 0", new: str = "    total = 1") -> Row:
    return Row(FILE, name, ("    self.n = 1",), (old,), (new,), ("    for x in xs:",), status, by, 1.0, "abc")


def test_a_mutant_is_found_by_its_lines_wherever_they_are_now() -> None:
    found = row("x").applied(TEXT)
    assert found == TEXT.replace("total = 0", "total = 1")
    more = '"""Words."""\n\nimport sys\n' + TEXT
    assert row("x").applied(more) == more.replace("total = 0", "total = 1")
    assert row("x").applied(TEXT.replace("total = 0", "total = 2")) is None
    assert row("x").applied(TEXT.replace("for x in xs", "for x in list(xs)")) is None


def test_whole_statements_are_told_apart_from_what_surrounds_them() -> None:
    before = "a\nb\nf(\n  1,\n)\nc\nd\ne\n"
    after = "a\nb\npass\nc\nd\ne\n"
    found = row_of(FILE, "x", before, after)
    assert (found.above, found.old, found.new, found.below) == (("a", "b"), ("f(", "  1,", ")"), ("pass",), ("c", "d"))
    assert found.applied(before) == after
    assert row_of(FILE, "x", "a\na\na\n", "a\na\n").applied("a\na\na\n") == "a\na\n"
    assert found.change == ("- f(", "- 1,", "- )", "+ pass")


def test_a_record_is_read_back_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "mutants.jsonl"
    assert records.load(path) == {}
    rows = [row("one", KILLED, "test_x", new="    pass"), row("two")]
    records.save(path, rows)
    assert list(records.load(path).values()) == rows
    assert [each.name for each in path.parent.iterdir()] == ["mutants.jsonl"]


def test_the_summary_names_survivors_and_counts_what_lived_without_a_reason(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived = row("a", SURVIVED)
    monkeypatch.setattr(records, "reasons", lambda: {(FILE, lived.change): "a log line"})
    lines = records.summary(
        [
            row("k", KILLED, "unit tests: test_x"),
            row("s", KILLED, "full simulator: seed 1: log"),
            lived,
            row("b", SURVIVED, new="    total = 2"),
            row("c", SURVIVED, old="    gone = 0"),
            row("t", TIMED_OUT, new="x"),
            row("d"),
        ],
        tree,
    )
    assert [line for line in lines if line.startswith(("survived", "timed out"))] == [
        "survived: a",
        "survived: b",
        "survived: c",
        "timed out: t",
    ]
    assert "    harmless: a log line" in lines
    assert "    its lines are no longer there" in lines
    assert lines[-1].startswith("5 judged, 2 killed (40 %; 1 by the simulator alone), 3 survived (1 without a reason)")
    assert lines[-1].endswith("1 left")


def test_what_is_on_record_is_not_judged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what nobody judged is, where its lines still are; survivors only when asked to, without a reason."""
    text = (SOURCE_ROOT / FILE).read_text()
    old = next(line for line in text.split("\n") if line.startswith("def "))
    here = [row_of(FILE, name, text, text.replace(old, f"{old}  # {name}")) for name in "abcd"]
    statuses = {"a": KILLED, "b": SURVIVED, "c": DRAWN, "d": SURVIVED}
    rows = [each._replace(status=statuses[each.name]) for each in here]
    out = tmp_path / "mutants.jsonl"
    records.save(out, [*rows, row("gone", old="no such line")])
    monkeypatch.setattr(records, "reasons", lambda: {(FILE, rows[3].change): "a comment"})
    monkeypatch.setattr(campaigns, "Workshop", lambda root: root)
    monkeypatch.setattr(campaigns, "measure", lambda *_: None)
    monkeypatch.setattr(campaigns, "judge", lambda each, *_: each._replace(status=KILLED, by="now"))
    assert CliRunner().invoke(main, ["--out", str(out), "--count", "5"]).exit_code == 3
    judged = {each.name: (each.status, each.by) for each in records.load(out).values()}
    assert judged == {
        "a": (KILLED, ""),
        "b": (SURVIVED, ""),
        "c": (KILLED, "now"),
        "d": (SURVIVED, ""),
        "gone": (DRAWN, ""),
    }
    CliRunner().invoke(main, ["--out", str(out), "--count", "4", "--again"])
    assert records.load(out)[rows[1].key].by == "now"
    assert records.load(out)[rows[3].key].status == SURVIVED


def test_the_record_says_where_each_was_judged_and_leaves_no_survivor_without_a_reason() -> None:
    rows = list(records.load(records.RECORD).values())
    assert len(rows) > 300
    known = records.reasons()
    for row in rows:
        assert (row.status == DRAWN) == (row.commit == "")
        assert row.status != KILLED or row.by
        assert row.status != SURVIVED or records.answer(row, SOURCE_ROOT, known), row.name


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
    assert KILLED in {row.status for row in records.load(out).values()}

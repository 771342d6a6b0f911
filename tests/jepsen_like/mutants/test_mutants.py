"""Drawing, judging and listing mutants."""

from __future__ import annotations

import resource
import subprocess
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cosmic_ray.commands import init
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import TestOutcome as Outcome
from cosmic_ray.work_item import WorkerOutcome, WorkResult

from jepsen_like.mutants import __main__ as mutants
from jepsen_like.mutants.__main__ import CONFIG, HARMLESS, draw, judge_here, main, requests_of, summary, verdict
from jepsen_like.seeded_bugs.catalogue import SOURCE_ROOT, make_copy

FILE = "raftlog/core/state/quorum.py"
TEXT = """def f(xs: list[int]) -> int:
    total = 0
    for x in xs:
        if x > 3:
            total += x
    return total
"""
ENDLESS = "def test_it():\n    while True:\n        pass\n"


def items(folder: Path, *texts: str) -> list[Any]:
    """Returns Cosmic Ray's findings in files of these texts."""
    paths = [folder / f"{place}.py" for place in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    with use_db(str(folder / "session.sqlite")) as database:
        init(paths, database, {})
        return list(database.work_items)


def result(said: str, *, lived: bool = False, diff: str = "") -> WorkResult:
    outcome = Outcome.SURVIVED if lived else Outcome.KILLED
    return WorkResult(WorkerOutcome.NORMAL, output=f"noise\n{said}\n", test_outcome=outcome, diff=diff)


def test_what_is_mutated_exists() -> None:
    config = tomllib.loads(CONFIG.read_text())["cosmic-ray"]
    assert len(config["module-path"]) > 5
    assert [name for name in config["module-path"] if not (SOURCE_ROOT / name).exists()] == []
    assert config["test-command"] == "python -m jepsen_like.mutants --judge"


def test_a_seed_draws_the_same_places_again_each_once_and_another_seed_others(tmp_path: Path) -> None:
    found = items(tmp_path, TEXT, TEXT.replace("x > 3", "x < 3"))
    places = {(item.mutations[0].module_path, item.mutations[0].start_pos) for item in found}
    assert len(found) > len(places) > 8
    drawn = draw(found, 7, 8)
    assert draw(reversed(found), 7, 8) == drawn
    assert draw(found, 8, 8) != drawn
    assert len({(item.mutations[0].module_path, item.mutations[0].start_pos) for item in drawn}) == 8
    assert len(draw(found, 7, 1000)) == len(places)


@pytest.mark.parametrize(
    ("file", "first", "engines"),
    [
        ("cluster/peer/links.py", "tests/cluster/peer", ["full"]),
        ("cluster/replication/acks/early_answers.py", "tests/cluster/replication", ["full"]),
        ("raftlog/core/state/quorum.py", "tests/raftlog/core", ["core", "full"]),
        ("statemachine/rows/kv.py", "tests/statemachine", ["full"]),
    ],
)
def test_a_mutant_is_judged_by_the_tests_of_its_folder_then_by_the_simulator(
    file: str, first: str, engines: list[str]
) -> None:
    (judge, tests), *searches = requests_of(file, SOURCE_ROOT)
    assert (judge, tests["paths"][0]) == ("unit_tests", first)
    assert all((SOURCE_ROOT / path).exists() for path in (*tests["paths"], *mutants.LAYERS))
    assert [(judge, request["engine"]) for judge, request in searches] == [("worker", each) for each in engines]


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the packages, in which `verdict` runs without looking at the types of all of it."""
    root = tmp_path / "copy"
    make_copy(root, None, native=False)
    (root / "tests").mkdir()
    monkeypatch.chdir(root)
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.setattr(mutants, "TYPES", ("-c", "pass"))
    return root


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("def test_it():\n    pass\n", ""),
        ("def test_it():\n    assert False\n", "killed: unit_tests:  ['test_one.py::test_it']"),
        (ENDLESS, "timeout: unit_tests"),
        ("import os\n\ndef test_it():\n    os._exit(7)\n", "killed: unit_tests:  crash: "),
    ],
)
def test_what_becomes_of_a_mutant(copy: Path, monkeypatch: pytest.MonkeyPatch, test: str, said: str) -> None:
    (copy / "tests" / "test_one.py").write_text(test)
    request = {"paths": ["tests/test_one.py"], "ignored": [], "failures_max": 1}
    limits = {"test_timeout_s": 0.5, "timeout_method": "thread"}
    monkeypatch.setattr(mutants, "requests_of", lambda *_: [("unit_tests", request | limits)])
    found = verdict(FILE, copy)
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_one_that_does_not_import_or_type_check_does_not_count(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "requests_of", lambda *_: [])
    monkeypatch.setattr(mutants, "TYPES", ("-c", "raise SystemExit('an error')"))
    assert verdict(FILE, copy) == "not counted: types: an error"
    (copy / FILE).write_text("import no_such_module\n")
    assert verdict(FILE, copy).startswith("not counted: import: ModuleNotFoundError")


def test_the_changed_file_is_judged_and_mypy_never_takes_it_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """mypy believes size and time: it told of a mutant that was gone, and those that followed did not count."""
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("a = 1\n")
    (tmp_path / "b.py").write_text("b = 1\n")
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@localhost")
    for command in (("init", "-q"), ("add", "."), ("commit", "-qm", "all")):
        subprocess.run([*git, *command], check=True)
    asked: list[str] = []
    monkeypatch.setattr(mutants, "verdict", lambda file, _: asked.append(file) or "killed: a test")
    with pytest.raises(SystemExit, match="1"):
        judge_here()
    assert capsys.readouterr().out == "not counted: no change\n"
    (tmp_path / "b.py").write_text("b = 2\n")
    with pytest.raises(SystemExit, match="1"):
        judge_here()
    assert (asked, capsys.readouterr().out) == (["b.py"], "killed: a test\n")
    assert Path("b.py").stat().st_mtime < time.time() - 1e5
    monkeypatch.setattr(mutants, "verdict", lambda *_: "")
    with pytest.raises(SystemExit, match="0"):
        judge_here()
    assert capsys.readouterr().out == "survived\n"


def test_the_summary_names_survivors_with_their_reason_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harmless = tmp_path / "harmless.toml"
    one, two, three, four, five, six = items(tmp_path, TEXT)[:6]
    file = str(one.mutations[0].module_path)
    harmless.write_text(f'[[mutant]]\nfile = "{file}"\nchange = ["- total = 0", "+ total = 1"]\nwhy = "a log line"\n')
    monkeypatch.setattr(mutants, "HARMLESS", harmless)
    diff = "--- mutation diff ---\n--- a/f.py\n+++ b/f.py\n@@ -1 +1 @@\n def f():\n-    total = 0\n+    total = 1\n"
    judged = [
        (one, result("survived", lived=True, diff=diff)),
        (two, result("survived", lived=True, diff=diff.replace("1\n", "2\n"))),
        (three, result("killed: unit_tests:  ['test_x']")),
        (four, WorkResult(WorkerOutcome.NORMAL, output="timeout", test_outcome=Outcome.KILLED, diff=diff)),
        (five, result("not counted: types: no")),
        (six, WorkResult(WorkerOutcome.NO_TEST)),
    ]
    lines, enough = summary(judged, 3)
    assert lines[-1] == "1 killed, 2 survived, 1 timeout, 2 not counted, 3 left"
    assert [line.partition(":")[0] for line in lines if not line.startswith(("-", "+"))][:-1] == ["survived"] * 2 + [
        "timeout"
    ]
    assert [line.endswith("a log line") for line in lines if line.startswith("survived")] == [True, False]
    assert lines[1:3] == ["- total = 0", "+ total = 1"]
    assert not enough
    assert summary(judged[2:3], 0)[1]


def test_a_run_goes_on_with_what_was_drawn_and_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "build" / "mutants" / "abc-2"
    (folder / "clone").mkdir(parents=True)
    first, second = items(folder, TEXT)[:2]
    with use_db(str(folder / "session.sqlite")) as database:
        database.clear()
        database.add_work_items([first, second])
        database.set_result(first.job_id, result("killed: a test"))
    ran: list[list[str]] = []
    monkeypatch.setattr(mutants, "SOURCE_ROOT", tmp_path)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: ran.append(list(command[:2])))
    done = CliRunner().invoke(main, ["--seed", "abc", "--count", "2"])
    assert ran == [["git", "checkout"], ["cosmic-ray", "exec"]]
    assert done.output == "1 killed, 0 survived, 0 timeout, 0 not counted, 1 left\n"
    assert done.exit_code == 0


def test_a_clone_in_which_the_unmutated_tests_fail_draws_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every mutant would be killed. The native kernel is not there, and its tests must not miss it."""
    ran: list[list[str]] = []

    def run(command: tuple[str, ...], env: dict[str, str] | None = None, **_: object) -> None:
        ran.append(list(command))
        if "pytest" in command:
            assert env
            assert env["CC"] == "no-such-compiler"
            raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(mutants, "SOURCE_ROOT", tmp_path)
    monkeypatch.setattr(mutants, "requests_of", lambda file, _: [("unit_tests", {"paths": [f"tests/{file}"]})])
    monkeypatch.setattr(subprocess, "run", run)
    assert isinstance(CliRunner().invoke(main).exception, subprocess.CalledProcessError)
    assert [command[0] for command in ran[:2]] == ["git", "git"]
    assert ran[-1][-len(mutants.LAYERS) :] == [f"tests/{file}" for file in mutants.LAYERS]


def test_the_reasons_on_record_belong_to_lines_that_exist() -> None:
    rows = tomllib.loads(HARMLESS.read_text())["mutant"]
    assert len(rows) > 5
    for row in rows:
        assert row["why"]
        text = (SOURCE_ROOT / row["file"]).read_text()
        for line in row["change"]:
            assert line[0] == "+" or line[2:] in text, (
                f"{row['file']}: {line}: the line has changed, judge its mutant again"
            )


def test_a_seed_that_is_no_number_is_refused() -> None:
    done = CliRunner().invoke(main, ["--seed", "xyz"])
    assert done.exit_code == 2
    assert "not a hexadecimal number" in done.output


@pytest.mark.slow
def test_a_mutant_that_matters_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--shared", str(SOURCE_ROOT), str(clone)], check=True)
    monkeypatch.chdir(clone)
    monkeypatch.setenv("PYTHONPATH", str(clone))
    text = (clone / FILE).read_text()
    assert text.count("// 2 + 1") == 1
    (clone / FILE).write_text(text.replace("// 2 + 1", "// 2 + 2"))
    assert verdict(FILE, clone).startswith("killed: unit_tests: ")

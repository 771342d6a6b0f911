"""The planted bugs: every patch applies, every schedule is clean on the product, and the harness finds them."""

from __future__ import annotations

import json
import os
import re
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from jepsen_like.commit_seed import commit_seed
from jepsen_like.core_sim.scripted import CoreStage
from jepsen_like.core_sim.violation import PromiseBroken
from jepsen_like.script import ScriptError
from jepsen_like.seeded_bugs import kernels, matrix
from jepsen_like.seeded_bugs.catalogue import Bug, BugError, Edit, load, load_all, patched
from jepsen_like.seeded_bugs.cli import bugs as bugs_command
from jepsen_like.seeded_bugs.engines import ENGINES
from raftmq_wire import kernel
from tests.support.rows import each_row
from tests.support.tools import needs

BUGS = load_all()
REPRESENTATIVE = ["C03", "C20", "R02", "Q07", "S03"]
"""One each of commit rule, liveness and read; acknowledgement and storage."""

DRAWN = 4
"""Other bugs that each commit plays: none goes blunt unseen for a hundred commits."""

SHORT_SEED = 7012
"""A random run of whole nodes that takes two seconds."""

WHOLE_NODES = [bug for bug in BUGS if bug.engine == "full"]
INSTEAD = {"B01": "B09", "E02": "E03", "J01": "J03", "V01": "V10"}
"""Letters whose first schedule takes seconds -> one that is played in less than one."""
FIRST_OF_EACH = {min(bug.id for bug in bugs) for _, bugs in groupby(WHOLE_NODES, lambda bug: bug.id[0])}
STANDING_FOR_ALL = {INSTEAD.get(name, name) for name in FIRST_OF_EACH}
"""One bug of each letter whose schedule plays whole nodes. `-m slow` plays the others."""


def played(bug: Bug) -> Any:
    """The core's bugs all run by default: milliseconds each."""
    is_long = bug.engine == "full" and bug.id not in STANDING_FOR_ALL
    return pytest.param(bug, id=bug.id, marks=[pytest.mark.slow] if is_long else [])


PLAYED = list(map(played, BUGS))

PYTHON_CHOSEN = os.environ.get(kernel.VARIABLE) == "python"
COMPILED = [needs("compiler"), pytest.mark.skipif(PYTHON_CHOSEN, reason="the bug is in the native kernel")]
PLANTED = [
    pytest.param(bug, id=bug.id, marks=COMPILED if any(edit.file == kernels.SOURCE for edit in bug.edits) else [])
    for bug in BUGS
]
"""The parameters of tests that make a copy with each bug."""


def test_every_bug_is_another_change() -> None:
    edits = [bug.edits for bug in BUGS]
    assert len(set(edits)) == len(edits)


@pytest.mark.parametrize("bug", PLAYED)
def test_the_schedule_is_clean_on_the_product(bug: Bug) -> None:
    fired = ENGINES[bug.engine].play(bug.schedule, bug.checkers)
    assert fired.checker is None, fired.detail


@pytest.mark.ci
def test_representative_bugs_are_caught() -> None:
    bugs = [bug for bug in BUGS if bug.id in REPRESENTATIVE]
    rows = list(matrix.rows(bugs, {"core": 1, "full": 0}, jobs=1))
    assert [(row.name, row.caught, row.scheduled) for row in rows] == [(bug.id, True, True) for bug in bugs]
    assert [row.checker for row in rows] == [bug.checkers[0] for bug in bugs]


@pytest.mark.ci
@pytest.mark.timeout(600)
def test_bugs_drawn_by_the_commit_are_caught_by_their_schedules() -> None:
    """A change may take the fault out of a schedule, which then proves nothing. The whole matrix takes an hour."""
    in_python = [bug for bug in BUGS if all(edit.file != kernels.SOURCE for edit in bug.edits)]
    bugs = Random(commit_seed().first_seed).sample(in_python, DRAWN)
    rows = matrix.rows(bugs, {"core": 0, "full": 0}, jobs=1)
    assert [(row.name, row.scheduled) for row in rows] == [(bug.id, True) for bug in bugs]


@pytest.mark.slow
def test_the_matrix_as_json_names_the_engine_and_runs_the_unmutated_code_too() -> None:
    chosen = ["--only", "Q09", "--only", "C29", "--seeds", "1", "--first-seed", str(SHORT_SEED)]
    result = CliRunner().invoke(bugs_command, [*chosen, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert [(row["name"], row["engine"], row["caught"]) for row in found["bugs"]] == [
        ("Q09", "full", True),
        ("C29", "core", True),
    ]
    assert all({"seed", "seconds", "checker", "kills_per_1000"} <= row.keys() for row in found["bugs"])
    assert found["clean"] == {"first_seed": SHORT_SEED, "seeds": {"full": 1, "core": 1}, "alarms": []}


def test_bugs_of_one_engine_only() -> None:
    result = CliRunner().invoke(bugs_command, ["--only", "Q09", "--engine", "core"])
    assert result.exit_code == 2
    assert "none of these bugs is of engine core" in result.output


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("bug", PLANTED)
def test_every_bug_is_caught_by_its_schedule(bug: Bug) -> None:
    row = matrix.row(bug, 0)
    assert row.scheduled, row


def test_a_patch_that_no_longer_fits_is_an_error(tmp_path: Path) -> None:
    bug = BUGS[0]
    wrong = Bug(bug.id, "", "", "core", ("x",), "", (Edit(bug.edits[0].file, "no such text", "x"),))
    with pytest.raises(BugError, match="occurs 0 times"):
        patched(wrong)
    twice = Bug(bug.id, "", "", "core", ("x",), "", (Edit("raftlog/core/raft.py", "self.term", "x"),))
    with pytest.raises(BugError, match=r"times in raftlog/core/raft\.py"):
        patched(twice)
    path = tmp_path / "X.toml"
    path.write_text('title = "no more than that"\n')
    with pytest.raises(BugError, match=r"X\.toml"):
        load(path)


@each_row("black_box", [False, True])
def test_a_copy_that_cannot_run_catches_nothing(black_box: bool) -> None:
    broken = Bug(
        "X",
        "",
        "",
        "core",
        ("election-safety",),
        "nodes 3\ncampaign 1\nrun\n",
        (Edit("raftlog/core/state/quorum.py", "    return voters // 2 + 1", "    return voters[0]"),),
    )
    row = matrix.row(broken, 1, black_box=black_box)
    assert not row.caught
    assert re.search("schedule: crash.* also: .*crash", row.note), "the schedule, and the search"


def test_scripts_name_the_line_they_do_not_understand() -> None:
    with pytest.raises(ScriptError, match="line 2: no command 'fly'"):
        CoreStage().play("nodes 3\nfly 1\n")
    with pytest.raises(ScriptError, match="line 2"):
        CoreStage().play("nodes 3\ncampaign 9\n")


def test_figure_8_is_quiet_only_because_of_the_commit_rule() -> None:
    """The schedule of C03 is the Raft paper's figure 8: the old entry is on a majority and yet not committed."""
    bug = next(bug for bug in BUGS if bug.id == "C03")
    stage = CoreStage()
    before, after = bug.schedule.split("# (d)")
    stage.play(before.rsplit("\n", 1)[0])
    held = [node for node, disk in stage.disks.items() if disk.tail.index >= 2 and disk.entries[2].term == 1]
    assert len(held) == 3, "the entry of term 1 is on a majority's disks"
    assert all(member.raw.commit_index < 2 for member in stage.machines.values() if member.up)
    try:
        stage.play("campaign 5" + after[after.index("\n") :])
    except PromiseBroken as violation:  # pragma: no cover - only on a broken core
        pytest.fail(str(violation))
    assert all(disk.entries[2].term == 2 for disk in stage.disks.values())

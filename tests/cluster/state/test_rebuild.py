"""rebuild: a plan that changes nothing, and what is done when a person says yes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cluster.state import suspect_state
from cluster.state.overlay_fs import OverlayFileSystem
from cluster.state.rebuild import SEGMENT, START, Rebuild, RebuildPlan
from raftlog.storage.files import vote_withheld
from raftmq.cli import run as raftmq
from statemachine.rows.digest import digest

Place = Any


def planned(place: Place, back: str = "checkpoint") -> RebuildPlan:
    work = Rebuild(OverlayFileSystem(), place.path, 5)
    try:
        return work.plan(back)
    finally:
        work.close()


def names(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*"))


def test_a_plan_changes_nothing_and_yes_does_what_it_said(
    place: Place, replay_all: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    place.run(30, checkpoint=True)
    place.run(10, kill=True)
    before = names(place.path)
    assert raftmq(["rebuild", str(place.path)]) == 0
    assert "nothing was changed; to do it: raftmq rebuild" in capsys.readouterr().out
    assert names(place.path) == before
    assert raftmq(["rebuild", str(place.path), "--yes", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["plan"]["replay_from"] == 31
    assert told["plan"]["entries"] == 10
    assert Path(told["set_aside_as"]).name == "000001-state"
    storage = place.open()
    status = storage.recovery.status(storage.checkpointer.run)
    assert (status.state_found, status.replay_index, status.replay_target) == ("behind", 30, 40)
    replay_all(storage)
    assert digest(storage.kv) == place.expected(40)
    storage.close(clean=True)


def test_from_start_replays_everything(place: Place, replay_all: Any) -> None:
    place.run(30, checkpoint=True)
    plan = planned(place, START)
    assert (plan.checkpoint, plan.replay_from, plan.position, plan.entries) == ("", 0, 0, 31)
    assert raftmq(["rebuild", str(place.path), "--yes", "--from", "start"]) == 0
    storage = place.open()
    assert storage.state.applied.index == -1
    replay_all(storage)
    assert digest(storage.kv) == place.expected(30)
    storage.close(clean=True)


def test_from_segment_goes_back_to_the_third_last_after_an_orderly_stop(place: Place) -> None:
    for _ in range(2):
        place.run(120, checkpoint=True)
    place.run(600)
    shutil.rmtree(place.path / "checkpoints" / place.checkpoints().names()[0])
    bases = sorted(int(file.stem) for file in (place.path / "log").glob("*.seg"))
    assert len(bases) >= 4
    plan = planned(place, SEGMENT)
    assert f"back to the third-last segment, at position {bases[-3]}" in plan.because[0]
    assert plan.position <= bases[-3]
    assert plan.checkpoint


def test_from_segment_walks_back_to_a_sound_one_after_an_unclean_stop(place: Place) -> None:
    place.run(120, checkpoint=True)
    place.run(600, kill=True)
    bases = sorted(int(file.stem) for file in (place.path / "log").glob("*.seg"))
    assert f"newest segment that reads soundly, at {bases[-1]}" in planned(place, SEGMENT).because[0]
    for base in bases[-2:]:
        place.flip(f"log/{base:020d}.seg", 4096 + 200)
    assert f"newest segment that reads soundly, at {bases[-3]}" in planned(place, SEGMENT).because[0]


def test_a_state_newer_than_its_log_is_rebuilt_and_the_vote_withheld(place: Place, replay_all: Any) -> None:
    place.run(10, checkpoint=True)
    shutil.copytree(place.path / "log", place.path.with_name("log10"))
    place.run(10, checkpoint=True)
    shutil.rmtree(place.path / "log")
    place.path.with_name("log10").rename(place.path / "log")
    plan = planned(place)
    assert (plan.withholds_vote, plan.replay_to, plan.applied) == (True, 10, 20)
    assert any("newer than the log" in reason for reason in plan.because)
    assert raftmq(["rebuild", str(place.path), "--yes"]) == 0
    withheld = vote_withheld.load(place.fs, place.path, 1)
    assert withheld is not None
    assert withheld.index == 20
    assert sorted(name.partition("-")[2].partition("-")[0] for name, _ in place.trash()) == [f"{20:020d}", "state"]
    storage = place.open()
    replay_all(storage)
    assert digest(storage.kv) == place.expected(10)
    storage.close(clean=True)


def test_checkpoints_that_others_contradict_are_passed_over(place: Place, replay_all: Any) -> None:
    place.run(10, checkpoint=True)
    place.run(10, checkpoint=True)
    newer, older = place.checkpoints().names()
    suspect_state.mark_suspect(place.fs, place.path, "its rows (cq) differ", 1, 15)
    plan = planned(place)
    assert plan.checkpoint == older
    assert any(f"{newer} may hold the same wrong rows" in reason for reason in plan.because)
    work = Rebuild(place.fs, place.path, 5)
    work.carry_out(plan)
    work.close()
    assert place.checkpoints().names() == [older]
    assert f"000002-{newer}" in [name for name, _ in place.trash()]
    storage = place.open()
    replay_all(storage)
    assert digest(storage.kv) == place.expected(20)
    storage.close(clean=True)


def test_bad_input_is_explained(place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place.run(10)
    assert raftmq(["rebuild", str(place.path), "--plan", "--yes"]) == 2
    assert raftmq(["rebuild", str(tmp_path / "none")]) == 5
    storage = place.open()
    assert raftmq(["rebuild", str(place.path), "--yes"]) == 5
    assert "in use by process" in capsys.readouterr().err
    storage.close(clean=True)

"""`raftmq chaos`: what is refused, what is unsupported, and the exit codes that scripts rely on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jepsen_like.live.conclusion import Conclusion
from jepsen_like.live.nemeses.scenarios import NEMESES, SCENARIOS, Scenario, nemeses_named, scenario_named
from jepsen_like.live.plan import HOSTILE, ONE_BY_ONE, Deck, choose
from jepsen_like.live.run_lifecycle import RunRequest, check_space, run_folder, space_needed
from jepsen_like.live.stories.story_table import STORIES
from jepsen_like.live.subjects.owned_resources import FOLDER_VARIABLE
from jepsen_like.live.subjects.subject import Capability
from raftmq.cli import run
from raftmq_wire.errors import LocalError

WAITING = Scenario("waiting", "a scenario that waits", waits_for="a feature that is planted here")


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Scenario:
    """A scenario that waits for a feature; at times there is none."""
    monkeypatch.setitem(SCENARIOS, WAITING.name, WAITING)
    return WAITING


def test_exit_codes_are_fixed() -> None:
    assert {verdict: verdict.exit_code for verdict in Conclusion} == {
        Conclusion.VALID: 0,
        Conclusion.INVALID: 1,
        Conclusion.UNKNOWN: 3,
        Conclusion.UNSUPPORTED: 6,
    }


def test_a_scenario_that_waits_for_a_feature_is_unsupported(
    waiting: Scenario, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["chaos", "run", "--scenario", waiting.name, "--json"]) == 6
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "unsupported"
    assert str(waiting.waits_for) in told["reasons"][0]


def test_what_a_subject_cannot_do_is_unsupported(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chaos", "run", "--scenario", "power-loss", "--subject", "pysyncobj"]) == 6
    assert "cannot be played on pysyncobj" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (["--scenario", "kil-leader"], "kill-leader"),
        (["--nemesis", "kill-leader,slow-netwerk"], "slow-network"),
        (["--subject", "raftmg"], "raftmq"),
    ],
)
def test_an_unknown_name_names_the_nearest(
    arguments: list[str], nearest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["chaos", "run", *arguments]) == 2
    assert nearest in capsys.readouterr().err.splitlines()[-1]


def test_scenario_and_nemesis_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chaos", "run", "--scenario", "pause", "--nemesis", "kill-one"]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_list_names_everything_and_what_it_waits_for(waiting: Scenario, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chaos", "list", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    waits = {scenario["name"]: scenario["waits_for"] for scenario in told["scenarios"]}
    assert {name for name, feature in waits.items() if feature} == {waiting.name}
    assert {nemesis["name"] for nemesis in told["nemeses"]} == set(NEMESES)
    assert run(["chaos", "list"]) == 0
    assert f"[waits for {waiting.waits_for}]" in capsys.readouterr().out


def test_every_scenario_names_faults_that_there_are() -> None:
    for scenario in SCENARIOS.values():
        assert set(scenario.nemeses) <= NEMESES.keys()
        assert scenario_named(scenario.name) is scenario
        assert not (scenario.nemeses and scenario.waits_for)


def test_scale_is_for_scripted_scenarios(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chaos", "run", "--scenario", "pause", "--scale", "0.5"]) == 2
    assert "--scale is for scripted scenarios" in capsys.readouterr().err
    assert run(["chaos", "run", "--scenario", "report-001", "--scale", "2"]) == 2
    assert {name for name, scenario in SCENARIOS.items() if scenario.is_scripted} == set(STORIES) - {
        HOSTILE,
        ONE_BY_ONE,
    }


def test_a_scripted_scenario_says_what_disk_it_needs() -> None:
    wish = RunRequest("raftmq", SCENARIOS["report-001"], (), 60.0, 7, None, 0.1)
    assert wish.story is STORIES["report-001"]
    assert space_needed(wish) == 2 << 30
    assert space_needed(wish._replace(scenario=None)) == 2 << 30


def test_a_full_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("x")
    assert run(["chaos", "run", "--out", str(tmp_path), "--time", "1"]) == 5
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    with pytest.raises(LocalError):
        run_folder(tmp_path / "mine", 1)


def test_too_little_disk_is_refused(tmp_path: Path) -> None:
    check_space(tmp_path, 2 << 30)
    with pytest.raises(LocalError, match=r"only 2\.00 GiB are free") as caught:
        check_space(tmp_path / "not" / "there", (2 << 30) - 1)
    assert caught.value.exit_code == 5


def test_what_cannot_be_played_is_skipped_with_the_reason() -> None:
    asked = tuple(nemeses_named("power-loss-one, kill-one,kill-one"))
    assert [nemesis.name for nemesis in asked] == ["power-loss-one", "kill-one"]
    choice = choose(frozenset(), {Capability.POWER: "there is no gcc"}, asked)
    assert [nemesis.name for nemesis in choice.nemeses] == ["kill-one"]
    assert choice.skipped == {"power-loss-one": "there is no gcc"}
    with pytest.raises(LocalError, match="none of these faults"):
        choose(frozenset(), {}, tuple(nemeses_named("power-loss-one")))
    every = choose(frozenset(Capability), {}, None)
    apart = {nemesis.name for nemesis in nemeses_named("membership,hostile")}
    assert {nemesis.name for nemesis in every.nemeses} == set(NEMESES) - apart
    assert [n.name for n in nemeses_named("membership,member-grow,kill-one")][-2:] == ["member-learner", "kill-one"]
    assert choose(frozenset(), {}, ()).nemeses == ()


def test_each_fault_comes_before_any_comes_again() -> None:
    import random

    deck = Deck(tuple(NEMESES.values()), random.Random(1), {})
    dealt = [deck.deal() for _ in range(2 * len(NEMESES))]
    first, second = dealt[: len(NEMESES)], dealt[len(NEMESES) :]
    assert set(first) == set(second) == set(NEMESES.values())
    assert first != second
    again = Deck(tuple(NEMESES.values()), random.Random(1), {})
    assert [again.deal() for _ in range(len(NEMESES))] == first, "the seed draws the order"
    heavy = Deck(tuple(nemeses_named("kill-one,kill-all")), random.Random(1), {"kill-all": 3})
    assert sorted(each.name for _ in range(4) if (each := heavy.deal())) == ["kill-all"] * 3 + ["kill-one"]
    assert Deck((), random.Random(1), {}).deal() is None


def test_the_state_folder_is_read_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jepsen_like.live.subjects.owned_resources import state_folder

    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "s"))
    assert state_folder() == tmp_path / "s"

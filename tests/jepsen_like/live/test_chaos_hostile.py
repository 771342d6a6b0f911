"""Hostile clients as a run: what is judged, on pretended numbers, and a rehearsal on three real nodes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jepsen_like.chaos_cli import with_at_once
from jepsen_like.history import Op
from jepsen_like.hostile.attack import EVERY_S
from jepsen_like.hostile.attacks import ATTACKS
from jepsen_like.live.harm.attack_process import AttackRound
from jepsen_like.live.nemeses import nemesis_hostile
from jepsen_like.live.nemeses.scenarios import FAMILIES, NEMESES, SCENARIOS, nemeses_named
from jepsen_like.live.plan import HOSTILE, ONE_BY_ONE, Plan
from jepsen_like.live.probes.honest_clients import seen_in
from jepsen_like.live.probes.long_turns import TURN_MAX_S, Turns
from jepsen_like.live.probes.node_watch import NodeChange, Watch
from jepsen_like.live.run_lifecycle import RunRequest, space_needed
from jepsen_like.live.stories import story_hostile, story_one_by_one
from jepsen_like.live.stories.concurrent_events import BESIDE, WAVES
from jepsen_like.live.stories.story import Scene
from jepsen_like.live.stories.story_table import STORIES
from jepsen_like.live.subjects.owned_resources import FOLDER_VARIABLE
from raftmq.cli import run
from tests.support.pace import at_most
from tests.support.rows import each_row


def plan_of(names: str, time_s: float = 600, scale: float = 1.0) -> Plan:
    return Plan("raftmq", None, tuple(nemeses_named(names)), time_s, 1, 2000, True, scale)


class Quiet(Scene):
    """Its acts are not recorded."""

    def act(self, name: str) -> contextlib.nullcontext[list[str]]:  # type: ignore[override]
        return contextlib.nullcontext([])


def scene_of(tmp_path: Path, names: str = "hostile", at_once: int | None = 2, kind: type[Scene] = Scene) -> Scene:
    plan: Any = plan_of(names)._replace(at_once=at_once)
    stage: Any = SimpleNamespace(rng=random.Random(1))
    return kind(stage, stage, stage, tmp_path, 1.0, lambda _: None, lambda _: True, plan)


def test_every_attack_is_a_fault_and_all_of_them_are_the_family() -> None:
    assert FAMILIES["hostile"] == tuple(ATTACKS)
    assert all(NEMESES[name].is_hostile and not NEMESES[name].is_mixed for name in ATTACKS)
    assert SCENARIOS["hostile"].nemeses == FAMILIES["hostile"]
    assert SCENARIOS["hostile-few-files"].files_max == 256


def test_hostile_clients_alone_are_a_story_and_among_others_are_dealt() -> None:
    assert plan_of("hostile").story == plan_of("twins").story == HOSTILE
    assert plan_of("twins,kill-leader").story is None
    assert (plan_of("hostile").gates_count, plan_of("hostile", scale=0.1).gates_count) == (True, False)
    assert plan_of("hostile", 30, 0.1).command.endswith("--scale 0.1 --at-once 2")
    wish = RunRequest("raftmq", None, tuple(nemeses_named("hostile")), 600, 1, None)
    assert wish.story is STORIES[HOSTILE]
    assert space_needed(wish) > space_needed(wish._replace(time_s=60))


def test_scale_is_for_hostile_clients_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chaos", "run", "--nemesis", "kill-leader", "--scale", "0.5"]) == 2
    assert "hostile clients" in capsys.readouterr().err


def test_beside_something_each_attack_is_played_by_itself() -> None:
    plan = plan_of("turns", 20)._replace(beside=("nothing", "kills"))
    assert plan.story == ONE_BY_ONE
    assert plan.gates_count
    assert plan.command.endswith("--beside nothing,kills --scale 1")
    wish = RunRequest("raftmq", None, plan.nemeses, 20, 1, None, beside=plan.beside)
    assert wish.story is STORIES[ONE_BY_ONE]
    assert set(FAMILIES["turns"]) < set(FAMILIES["hostile"])
    assert set(FAMILIES["turns"]) > WAVES.keys()


@pytest.mark.parametrize("chosen", [["--nemesis", "kill-leader"], ["--scenario", "hostile-few-files"], []])
def test_beside_is_for_hostile_clients(chosen: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chaos", "run", *chosen, "--beside", "kills"]) == 2
    assert "--beside is for hostile clients" in capsys.readouterr().err


def test_what_is_unknown_beside_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chaos", "run", "--nemesis", "turns", "--beside", "nothing,kill"]) == 2
    told = capsys.readouterr().err
    assert "there is no 'kill'" in told
    assert "--beside kills" in told


def test_every_wave_is_told_by_a_metric() -> None:
    known = Path("docs/metrics.md").read_text()
    assert all(f"| `{metric}` | gauge |" in known for metric, _ in WAVES.values())


def judged(
    tmp_path: Path, beside: str, change: str = "", p99_ms: int = 1, turn_s: float = 0.0, grown: int = 0, wrong: str = ""
) -> tuple[dict[str, Any], list[str]]:
    scene = scene_of(tmp_path)
    scene.history = SimpleNamespace(ops=[op(1, "invoke", "send", 10), op(1, "ok", "send", 10 + 1000 * p99_ms)])  # type: ignore[assignment]
    watch: Any = SimpleNamespace(changes=[NodeChange(1.0, change)] if change else [], peak={1: 50 + grown})
    rounds = [
        AttackRound("crowd", 1, 0, sent=7, took_s=1.0, wrong=[wrong] if wrong else []),
        AttackRound("crowd", 1, 1, sent=9),
    ]
    cell = story_one_by_one.judged(
        scene, "crowd", BESIDE[beside], rounds, watch, {1: 50}, (0, 10**9), {2: Turns(turn_s, "a", {})}
    )
    return cell, scene.broken


def test_a_cell_of_the_table_tells_what_was_sent_and_met(tmp_path: Path) -> None:
    cell, broken = judged(tmp_path, "nothing", turn_s=0.03)
    assert not broken
    assert (cell["requests"], cell["leader_changes"], cell["p99_ms"]) == (7, 0, 1.0)
    head, _, row = story_one_by_one.table([cell])
    assert head.count("|") == row.count("|")
    assert row.startswith("| crowd | nothing | 7 | 0 | 1 ms | 30 ms of CPU in a |")


@each_row(
    ("beside", "met", "says"),
    [
        ("nothing", {"change": "node 2 leads term 4, after node 1 in term 3"}, "leads term 4"),
        ("checkpoint", {"change": "node 2 ended by itself"}, "ended by itself"),
        ("snapshot", {"change": "node 2 ended by itself"}, ""),
        ("snapshot", {"change": "node 2 leads term 4, after node 1 in term 3"}, "leads term 4"),
        ("kills", {"change": "node 2 leads term 4, after node 1 in term 3", "p99_ms": 251}, ""),
        ("snapshot", {"p99_ms": 251}, "the p99 of honest sends is 251 ms"),
        ("kills", {"turn_s": TURN_MAX_S + 0.001}, "a turn of node 2 took 251 ms"),
        ("kills", {"grown": story_hostile.MEMORY_MAX + 1}, "a node grew"),
        ("kills", {"wrong": "a pull was never answered"}, "never answered"),
    ],
)
def test_what_breaks_a_promise_depends_on_what_happens_meanwhile(
    tmp_path: Path, beside: str, met: dict[str, Any], says: str
) -> None:
    _, broken = judged(tmp_path, beside, **met)
    assert len(broken) == bool(says), broken
    assert all(f"crowd beside {beside}" in told and says in told for told in broken)


def test_a_cell_lasts_until_a_round_is_over_and_enough_was_sent() -> None:
    under_way, over = AttackRound("crowd", 1, 0), AttackRound("crowd", 1, 0, sent=5, took_s=1.0)
    assert story_one_by_one.goes_on([under_way], 5, 3.9)
    assert not story_one_by_one.goes_on([under_way], 5, 4.0)
    assert story_one_by_one.goes_on([under_way, over], 6, 1.4)
    assert not story_one_by_one.goes_on([under_way, over], 6, 1.5)
    assert not story_one_by_one.goes_on([over], 5, 1.0)


def op(process: int, kind: Any, f: str, time_us: int, **value: Any) -> Op:
    return Op(0, process, kind, f, value, 1000 * time_us)


def test_what_honest_clients_saw() -> None:
    ops = [
        op(1, "invoke", "send", 1),
        op(1, "ok", "send", 5),
        op(1, "invoke", "send", 10),
        op(2, "invoke", "poll", 11),
        op(1, "ok", "send", 40),
        op(2, "fail", "poll", 50, error="timed out"),
        op(3, "invoke", "send", 60),
        op(3, "info", "send", 70),
        op(4, "invoke", "phase", 20),
        op(1, "invoke", "send", 100),
        op(1, "ok", "send", 900),
    ]
    seen = seen_in(ops, [(90_000, 100_000), (10_000, 90_000)])
    assert seen.latencies_us == {"send": [30]}
    assert seen.p99_ms() == 0.03
    assert seen.unanswered == {"poll": 1, "send": 1}
    assert seen.first == "poll: timed out"


def test_a_change_is_charged_to_what_was_under_way(tmp_path: Path) -> None:
    scene, rounds, now = scene_of(tmp_path), story_hostile.Rounds(), time.monotonic()
    rounds.hear(AttackRound("twins", 1, 0, at_ns=1))
    rounds.hear(AttackRound("names", 2, 0, at_ns=1))
    rounds.over.append((now - 5, AttackRound("names", 2, 0, took_s=1.0)))
    watch = Watch(scene.subject)
    watch.changes.append(NodeChange(now + 1, "node 1 ended by itself"))
    watch.late += [(now - 5, 3.0), (now, 0.25)]
    story_hostile.judge_life(scene, watch, rounds, now - 10)
    (told,) = scene.broken
    assert told.startswith("node 1 ended by itself, 11.0 s after")
    assert "under way were: twins on node 1;" in told
    assert told.endswith("woke 250 ms too late")


def test_memory_has_a_bound(tmp_path: Path) -> None:
    scene, bound = scene_of(tmp_path), story_hostile.MEMORY_MAX
    story_hostile.judge_memory(scene, {1: 100, 2: 100}, {1: 100 + bound, 2: 101 + bound})
    assert len(scene.broken) == 1
    assert scene.broken[0].startswith("node 2 grew")


def test_the_longest_turn_of_a_node_has_a_bound(tmp_path: Path) -> None:
    scene, short, long = scene_of(tmp_path), Turns(TURN_MAX_S, "a", {}), Turns(TURN_MAX_S + 0.001, "b", {})
    story_hostile.judge_turns(scene, {1: short, 2: long, 3: Turns(0.0, "", {})})
    assert len(scene.broken) == 1
    assert scene.broken[0].startswith("node 2: a turn of its event loop took 251 ms of CPU in b")
    assert scene.measured["longest_turn_node_3"] == "below 20 ms of CPU"


def test_rounds_are_counted_and_their_finds_are_broken_promises(tmp_path: Path) -> None:
    scene, rounds = scene_of(tmp_path, "twins,names"), story_hostile.Rounds()
    for number in range(4):
        rounds.hear(AttackRound("twins", 1, number, sent=16, answered=16, took_s=0.1))
    rounds.hear(AttackRound("names", 1, 0, sent=5, wrong=["never answered"], took_s=0.1))
    hands = story_hostile.Layout([("twins", "names")] * 2, 12.0, 4.0, 3.0)
    story_hostile.judge_rounds(scene, rounds, 20.0, hands)
    felt, gate = scene.gates
    assert (felt.value, felt.wanted, felt.told) == (1, 5, "twins 4 of 5, names 1 of 5")
    assert (gate.value, gate.wanted, gate.holds, gate.told) == (1, 4, False, "names 1 of 4")
    assert scene.broken == ["names, 1 times: never answered"]
    assert len(scene.played) == 5


@each_row("wrong", [[], ["a pull was never answered", "a pull was never answered"]])
def test_what_a_dealt_attack_finds_is_a_broken_promise(wrong: list[str]) -> None:
    rounds = [AttackRound("twins", 1, 0, sent=7, took_s=1.0, wrong=wrong), AttackRound("twins", 1, 1, sent=9)]
    effect = nemesis_hostile.effect_of(rounds)
    assert effect.happened
    assert effect.numbers == {"rounds": 1, "wrong": len(wrong)}
    assert effect.broken == (("2 times: a pull was never answered",) if wrong else ())
    assert effect.told.startswith("1 rounds, 7 requests")


@pytest.mark.parametrize("at_once", [2, 4, 8, None])
def test_a_full_run_has_time_to_feel_each_attack(tmp_path: Path, at_once: int | None) -> None:
    scene = scene_of(tmp_path, at_once=at_once)
    plan = story_hostile.layout(scene)
    each_s = plan.hand_s + plan.calm_s + (story_hostile.DRAIN_S if at_once is not None else 0)
    assert len(plan.hands) * each_s <= 1.1 * scene.time_s
    for name in scene.attacks:
        rounds = sum(name in hand for hand in plan.hands) * int(plan.hand_s / plan.every_s)
        assert rounds >= max(5, plan.due(name))
        assert plan.due(name) >= 4


def test_all_at_once_is_every_attack_in_each_hand(tmp_path: Path) -> None:
    plan = story_hostile.layout(scene_of(tmp_path, at_once=None))
    assert plan.hands == [tuple(ATTACKS)] * 6
    assert (plan.hand_s, plan.every_s, plan.due("twins")) == (100.0, EVERY_S, 120)


@pytest.mark.parametrize(
    ("begins_s", "ends_s"), [([1, 5, 9], 12), ([1, 5, 18], 18), ([1, 5], 30)], ids=["usual", "slow rounds", "too slow"]
)
def test_a_hand_lasts_until_each_attack_has_begun_its_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins_s: list[float], ends_s: float
) -> None:
    """On a clock of the test: `begins_s` of the rounds of one attack, beside one that begins at 0, 4 and 8 s."""
    now, dealt = [0.0], []
    monkeypatch.setattr(story_hostile, "time", SimpleNamespace(monotonic=lambda: now[0], monotonic_ns=lambda: 0))
    scene, rounds = scene_of(tmp_path, "twins,names", kind=Quiet), story_hostile.Rounds()
    due = sorted([(at, "names") for at in begins_s] + [(at, "twins") for at in (0.0, 4.0, 8.0)])

    def sleep(seconds: float) -> None:
        now[0] += seconds
        while due and due[0][0] <= now[0]:
            name = due.pop(0)[1]
            rounds.hear(AttackRound(name, 1, 0))
            rounds.hear(AttackRound(name, 1, 0, sent=1, took_s=0.1))

    stage: Any = scene.stage
    stage.sleep, stage.is_running, stage.node_ids = sleep, lambda node: True, [1]
    assault: Any = SimpleNamespace(deal=lambda names: dealt.append((round(now[0]), tuple(names))))
    plan = story_hostile.Layout([("twins", "names")], 12.0, 4.0, 3.0)
    story_hostile.play_hand(scene, assault, rounds, plan.hands[0], plan)
    assert dealt == [(0, ("twins", "names")), (ends_s, ())]


def test_every_honest_request_counts_and_latency_is_that_beside_hands(tmp_path: Path) -> None:
    scene = scene_of(tmp_path, "twins,names")
    asked = [(5, 30, "ok"), (105, 60, "ok"), (155, 9_000, "ok"), (160, 1, "fail"), (205, 20, "ok"), (305, 90, "ok")]
    ops = [op(number, "invoke", "send", 1000 * at_ms) for number, (at_ms, _, _) in enumerate(asked)]
    ops += [op(number, kind, "send", 1000 * (at_ms + ms)) for number, (at_ms, ms, kind) in enumerate(asked)]
    scene.history = SimpleNamespace(ops=ops)  # type: ignore[assignment]
    ms = 10**6
    calms, attacks = [(0, 100 * ms), (200 * ms, 300 * ms)], [(100 * ms, 150 * ms), (300 * ms, 350 * ms)]
    calms.append((360 * ms, 400 * ms))
    story_hostile.judge_honest(scene, calms, attacks, [("twins",), ("names",)])
    assert (scene.measured["calm_p99_ms"], scene.measured["attacked_p99_ms"]) == (30.0, 90.0)
    assert scene.measured["p99_ms_of_hands"] == [(60.0, "twins"), (90.0, "names")]
    (told,) = scene.broken
    assert told.startswith("1 honest requests were not answered"), "what failed while the nodes drained counts"
    assert [(gate.value, gate.holds) for gate in scene.gates] == [(90, True)]
    story_hostile.judge_honest(scene, calms, attacks, [("twins",), ("names",)], p99_max_ms=80.0)
    assert (scene.gates[-1].value, scene.gates[-1].wanted, scene.gates[-1].holds) == (90, 80, False)
    story_hostile.judge_honest(scene, calms, attacks, [("twins",), ("names",)], p99_max_ms=80.0, slower_max=3.0)
    assert (scene.gates[-1].wanted, scene.gates[-1].holds) == (90, True), "three times the 30 ms of the calms"


def test_the_number_at_once_is_one_a_core_unless_it_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    wish = RunRequest("raftmq", None, tuple(nemeses_named("hostile")), 600, 1, None)
    assert with_at_once(wish, None).at_once == max(2, len(os.sched_getaffinity(0)))
    assert with_at_once(wish, "4").at_once == 4
    assert with_at_once(wish, "all").at_once is None
    assert plan_of("hostile").command.endswith("--scale 1 --at-once 2")
    assert plan_of("hostile")._replace(at_once=None).command.endswith("--at-once all")
    for wrong in (["--nemesis", "hostile", "--at-once", "0"], ["--nemesis", "kill-one", "--at-once", "2"]):
        assert run(["chaos", "run", *wrong]) == 2
        assert "--at-once" in capsys.readouterr().err


def test_a_watch_sees_a_node_end_and_another_lead() -> None:
    state = {"running": True, "leads": 1, "term": 3}

    def states() -> dict[int, Any]:
        return {n: SimpleNamespace(leads=n == state["leads"], term=state["term"]) for n in (1, 2)}

    subject: Any = SimpleNamespace(
        node_ids=[1, 2],
        is_running=lambda node: bool(state["running"]) or node != 2,
        states=states,
        processes=SimpleNamespace(pid=lambda node: os.getpid()),
    )
    watch = Watch(subject, clock=lambda: 5.0)
    watch.look()
    state |= {"leads": 2, "term": 4, "running": False}
    watch.look()
    watch.look()
    assert [change.what for change in watch.changes] == [
        "node 2 ended by itself",
        "node 2 leads term 4, after node 1 in term 3",
    ]
    assert watch.peak[1] > 1 << 20


def _chaos(folder: Path, *arguments: str) -> tuple[int, str]:
    environment = os.environ | {FOLDER_VARIABLE: str(folder / "state")}
    command = [sys.executable, "-m", "raftmq.cli", "chaos", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=at_most(1200), check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.live
@pytest.mark.slow
def test_a_rehearsal_of_all_attacks_hurts_nobody(tmp_path: Path) -> None:
    code, told = _chaos(
        tmp_path,
        "run",
        "--nemesis",
        "hostile",
        "--time",
        "6",
        "--scale",
        "0.02",
        "--at-once",
        "all",
        "--rate",
        "200",
        "--seed",
        "1",
        "--out",
        "run",
        "--json",
    )
    assert code == 0, told
    outcome = json.loads(told.splitlines()[-1])
    assert outcome["verdict"] == "valid"
    assert all(each["played"] >= 1 for each in outcome["faults"].values())


@pytest.mark.live
@pytest.mark.slow
def test_a_rehearsal_of_hands_hurts_nobody(tmp_path: Path) -> None:
    few = ("--time", "45", "--scale", "0.02", "--rate", "200", "--seed", "1", "--at-once", "14")
    code, told = _chaos(tmp_path, "run", "--nemesis", "hostile", *few, "--out", "run", "--json")
    assert code == 0, told
    outcome = json.loads(told.splitlines()[-1])
    assert outcome["measured"]["hands"] == 2
    assert all(each["with_effect"] >= 1 for each in outcome["faults"].values())


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_rehearsal_of_attacks_one_by_one(tmp_path: Path) -> None:
    names = ("--nemesis", "large-topic,drawn-joins", "--beside", "all")
    few = ("--time", "4", "--scale", "0.02", "--rate", "200", "--seed", "1")
    code, told = _chaos(tmp_path, "run", *names, *few, "--out", "run", "--json")
    assert code == 0, told
    cells = json.loads(told.splitlines()[-1])["measured"]["cells"]
    assert [(cell["attack"], cell["beside"]) for cell in cells] == [
        (name, each) for name in ("large-topic", "drawn-joins") for each in BESIDE
    ]
    assert all(cell["leader_changes"] for cell in cells if cell["beside"] == "kills")


@pytest.mark.slow
@pytest.mark.live
def test_a_short_run_of_the_fuzzer_reaches_every_handler_and_finds_nothing(tmp_path: Path) -> None:
    code, told = _chaos(
        tmp_path, "fuzz", "--requests", "2000", "--target", "remoting", "--seed", "1", "--out", "run", "--json"
    )
    assert code == 0, told
    outcome = json.loads(told.splitlines()[-1])
    assert (outcome["found"], outcome["missed"]) == ([], [])


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_meter_knows_of_the_work_of_long_turns(tmp_path: Path) -> None:
    """The figures are of the CPU clock of the nodes' loops, which is nobody's wall clock; the text names the function
    that ran. The work of a library without a function of ours on the stack is told, but nobody has to charge it."""
    _, told = _chaos(tmp_path, "fuzz", "--requests", "5000", "--seed", "2", "--out", "run")
    assert told.count("longest turn of node") == 3, told
    assert not re.findall(r"not charged to the meter: (?:cluster|statemachine|raftlog)\.", told), told


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_ten_minutes_of_hands(tmp_path: Path) -> None:
    code, told = _chaos(tmp_path, "run", "--nemesis", "hostile", "--time", "600", "--out", "run", "--json")
    assert code in (0, 7), told

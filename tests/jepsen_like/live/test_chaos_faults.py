"""Faults on a pretended cluster: a fault that nobody felt must say so, and stories of losses come out right."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jepsen_like.history import HistoryWriter
from jepsen_like.live.conclusion import Conclusion
from jepsen_like.live.judge import judge
from jepsen_like.live.loss_explanation import explain, find_losses
from jepsen_like.live.nemeses.nemesis_interface import Counts, Effect, Stage
from jepsen_like.live.nemeses.scenarios import NEMESES
from jepsen_like.live.outcome import Played, conclude
from jepsen_like.live.plan import Plan
from jepsen_like.live.probes.leader_monitor import LeaderMonitor
from jepsen_like.live.probes.node_ends import NodeEnds
from jepsen_like.live.subjects.owned_resources import Owned
from jepsen_like.live.subjects.payload import SIZES, body_of, id_of
from jepsen_like.live.subjects.processes import Processes
from jepsen_like.live.subjects.proxy import EdgeTraffic, Pair
from jepsen_like.live.subjects.raftmq_subject import RaftMQSubject
from jepsen_like.live.subjects.subject import Capability, NodeState, is_caught_up, is_healthy, leader_of
from raftmq.local.waiting import until
from tests.support.pace import at_most
from tests.support.rows import each_row


def state(term: int, leads: bool, leader: int | None = 1, applied: int = 5, committed: int = 5) -> NodeState:
    return NodeState(term, leads, leads, leader, applied, committed)


class Fabric:
    """Edges that say `said` bytes per look and let `leak` of them through a cut."""

    def __init__(self, said: int, leak: int) -> None:
        self.pairs = [(a, b) for a in (1, 2, 3) for b in (1, 2, 3) if a != b]
        self.is_cut: set[Pair] = set()
        self.healed = 0
        self._said, self._leak, self._looks = said, leak, 0
        self._late: int | None = None

    def between(self, left: Any, right: Any) -> set[Pair]:
        a, b = set(left), set(right)
        return {(x, y) for x, y in self.pairs if (x in a and y in b) or (x in b and y in a)}

    def cut(self, pairs: Any) -> None:
        self.is_cut |= set(pairs)

    def slow(self, pairs: Any, delay_s: float, jitter_s: float) -> None:
        self._late = self._looks

    def heal(self, pairs: Any = None, *, reset: bool = False) -> None:
        self.healed += 1
        self.is_cut -= set(self.pairs if pairs is None else pairs)

    def traffic(self) -> dict[Pair, EdgeTraffic]:
        self._looks += 1
        return {
            pair: EdgeTraffic(self._looks * self._said, self._looks * self._leak, self._looks if self._late else 0, 1)
            for pair in self.pairs
        }


class Subject:
    """Three nodes, the first leads. `deaf` ones neither die nor stop."""

    capabilities = frozenset(Capability)

    def __init__(self, said: int = 10, leak: int = 0, *, deaf: bool = False) -> None:
        self.node_ids = [1, 2, 3]
        self.fabric = Fabric(said, leak)
        self.running = {1, 2, 3}
        self.paused: set[int] = set()
        self.hits = 0
        self.looks = 0
        self.waits = False
        self._deaf = deaf

    def is_running(self, node: int) -> bool:
        return node in self.running

    def aim(self, node: int) -> Callable[[], None]:
        return (lambda: None) if self._deaf else (lambda: self.running.discard(node))

    def start_node(self, node: int) -> None:
        self.running.add(node)

    def terminate(self, node: int) -> bool:
        self.running.discard(node)
        return not self._deaf

    def pause(self, node: int) -> bool:
        if not self._deaf:
            self.paused.add(node)
        return not self._deaf

    def resume(self, node: int) -> None:
        self.paused.discard(node)

    def states(self) -> dict[int, NodeState | None]:
        self.looks += not self._deaf
        index, alive = 5 + self.looks, self.running - self.paused
        return {
            n: state(1, n == self.node_ids[0], applied=index, committed=index) if n in alive else None
            for n in self.node_ids
        }

    def set_failpoint(self, node: int, point: str, action: str) -> None:
        self.hits += not self._deaf

    def failpoint_hits(self, node: int) -> dict[str, int]:
        return dict.fromkeys(("append.fdatasync", "append.write", "hardstate.fdatasync"), self.hits)

    def failpoint_waiting(self, node: int) -> dict[str, int]:
        return dict.fromkeys(("append.fdatasync", "append.write", "hardstate.fdatasync"), 0)

    def disk(self, node: int) -> tuple[int, bool]:
        return self.hits, self.waits

    def transfer(self, leader: int, to: int) -> bool:
        return not self._deaf


class Time:
    """Passes only by `sleep`, a little each time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.load: Load | None = None

    def sleep(self, seconds: float) -> None:
        self.now += seconds + 0.001
        if self.load is not None:
            self.load.go_on(seconds + 0.001)


class Load:
    """Acknowledges as many as the factor asks for, or always the same."""

    def __init__(self, *, follows: bool = True) -> None:
        self.factor = 1.0
        self._acked = 0.0
        self._follows = follows

    def go_on(self, seconds: float) -> None:
        self._acked += 1e6 * seconds * (self.factor if self._follows else 1.0)

    @property
    def counts(self) -> Counts:
        return Counts(int(self._acked), 0, 0, 7)


class Power:
    def __init__(self, subject: Subject, *, deaf: bool) -> None:
        self._subject = subject
        self._deaf = deaf

    def cut(self, nodes: list[int], rng: random.Random) -> dict[str, float]:
        if self._deaf:
            return dict.fromkeys(("nodes", "writes", "bytes", "names", "kept"), 0)
        self._subject.running -= set(nodes)
        return {"nodes": len(nodes), "writes": 3, "bytes": 30, "names": 0, "kept": 1}


class Clocks:
    def __init__(self, *, deaf: bool) -> None:
        self.offsets: list[int] = []
        self._deaf = deaf

    def skew(self, node: int, offset_ms: int) -> None:
        self.offsets.append(offset_ms)

    def skewed_readings(self, node: int) -> int:
        return 0 if self._deaf else len(self.offsets)


class Members:
    """A cluster whose joiners run and vote; the leader is the lowest id."""

    def __init__(self, subject: Subject, *, deaf: bool) -> None:
        self._subject = subject
        self._deaf = deaf
        self._next = 4
        self._learners: set[int] = set()

    def voters(self) -> list[int]:
        return [node for node in self._subject.node_ids if node not in self._learners]

    def join(self, *, manual: bool = False) -> int:
        if self._deaf:
            return 0
        node, self._next = self._next, self._next + 1
        self._subject.node_ids.append(node)
        self._subject.running.add(node)
        self._learners |= {node} if manual else set()
        return node

    def wait_voter(self, node: int) -> bool:
        return node not in self._learners

    def wait_caught_up(self, node: int) -> bool:
        return True

    def is_learner(self, node: int) -> bool:
        return node in self._learners

    def leave(self, node: int) -> bool:
        self._subject.node_ids = [each for each in self._subject.node_ids if each != node]
        self._subject.running.discard(node)
        return not self._deaf

    def lose(self, node: int) -> bool:
        return self.leave(node)


def stage(*, deaf: bool, seed: int, said: int = 10, leak: int = 0) -> Stage:
    subject: Any = Subject(said, leak, deaf=deaf)
    time = Time()
    load: Any = Load(follows=not deaf)
    time.load = load
    made = Stage(
        subject,
        load,
        random.Random(seed),
        power=Power(subject, deaf=deaf),
        clocks=Clocks(deaf=deaf),
        members=Members(subject, deaf=deaf),
        sleep=time.sleep,
        clock=lambda: time.now,
    )
    made.wait_healthy = lambda timeout_s: 0.0  # type: ignore[method-assign]
    return made


@each_row("name", [name for name, each in NEMESES.items() if not each.is_hostile])
@each_row("seed", range(4))
def test_a_fault_that_is_felt_says_so_and_takes_itself_back(name: str, seed: int) -> None:
    made = stage(deaf=False, seed=seed)
    effect = NEMESES[name].apply(made, 0.5)
    assert effect.happened, effect
    subject: Any = made.subject
    made.start_all()
    assert (subject.running, subject.paused, subject.fabric.is_cut) == (set(subject.node_ids), set(), set())
    assert len(subject.running) == 3
    assert made.load.factor == 1.0


DEAF = (
    "acks-lost",
    "pause-one",
    "pause-leader",
    "rolling-restart",
    "slow-disk",
    "full-disk",
    "held-disk",
    "power-loss-one",
    "power-loss-majority",
    "clock-skew",
    "traffic-x5",
    "leader-ping-pong",
    "member-grow",
    "member-replace-leader",
    "member-replace-dead",
    "member-replace-kills",
    "member-learner",
)


@pytest.mark.parametrize(
    "name",
    [
        # These two wait ten seconds for a change that nobody takes up.
        pytest.param(name, marks=[pytest.mark.slow] if name in {"member-learner", "member-replace-kills"} else [])
        for name in DEAF
    ],
)
def test_a_fault_that_nobody_feels_says_so(name: str) -> None:
    assert not NEMESES[name].apply(stage(deaf=True, seed=1), 0.5).happened


@each_row(
    "name",
    ["partition-halves", "partition-ring", "partition-one-way", "acks-lost", "isolate-leader", "flapping-leader"],
)
@each_row(("said", "leak"), [(0, 0), (10, 1)])
def test_a_cut_counts_if_something_was_said_and_nothing_heard(name: str, said: int, leak: int) -> None:
    made = stage(deaf=False, seed=1, said=said, leak=leak)
    assert not NEMESES[name].apply(made, 0.0).happened


def test_a_node_that_does_not_wait_for_space_and_go_on_fails_the_fault() -> None:
    made = stage(deaf=False, seed=2)
    subject: Any = made.subject
    subject.waits = True
    effect = NEMESES["full-disk"].apply(made, 0.5)
    assert not effect.happened
    assert "STILL WAITS" in effect.told
    assert [told.endswith("still waits for space, 15 s after there was some") for told in effect.broken] == [True]
    made = stage(deaf=False, seed=2)
    subject = made.subject
    subject.set_failpoint = lambda node, point, action: subject.running.discard(node)
    effect = NEMESES["full-disk"].apply(made, 0.5)
    assert not effect.happened
    assert "should have waited" in effect.told
    assert [told.endswith("ended when its disk was full: it should have waited") for told in effect.broken] == [True]


def test_a_node_that_does_not_answer_or_still_has_the_fault_has_not_broken_a_promise() -> None:
    for unanswered in ("disk", "set_failpoint"):
        made = stage(deaf=False, seed=2)
        subject: Any = made.subject
        subject.waits = True
        then = getattr(subject, unanswered)
        answers = iter([then])
        setattr(subject, unanswered, lambda *asked, answers=answers: next(answers, no_answer)(*asked))
        effect = NEMESES["full-disk"].apply(made, 0.5)
        assert not effect.happened
        assert not effect.broken


def no_answer(*asked: Any) -> Any:
    raise OSError("timed out")


def test_leader_and_health_of_a_cluster() -> None:
    old_and_new: dict[int, NodeState | None] = {1: state(3, True), 2: state(4, True, 2), 3: state(4, False, 2)}
    assert leader_of(old_and_new) == 2
    assert not is_healthy(old_and_new), "node 1 does not know yet"
    whole: dict[int, NodeState | None] = {1: state(4, False), 2: state(4, False), 3: state(4, False)}
    assert leader_of(whole) is None
    assert not is_healthy(whole)
    whole[1] = state(4, True)
    assert is_healthy(whole)
    assert is_caught_up(whole)
    whole[3] = state(4, False, applied=4)
    assert is_healthy(whole)
    assert not is_caught_up(whole)
    whole[3] = None
    assert not is_healthy(whole)


def test_two_leaders_of_one_term_are_noticed(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "h.jsonl") as history:
        monitor = LeaderMonitor(Subject(), history)  # type: ignore[arg-type]
        monitor.seen(1, 4)
        monitor.seen(1, 4)
        monitor.seen(2, 5)
        assert (monitor.changes, monitor.two_leaders) == (1, [])
        monitor.seen(3, 5)
        monitor.seen(3, 5)
        assert monitor.two_leaders == [], "node 2 was seen once, perhaps while it stepped down"
        monitor.seen(2, 5)
        monitor.seen(3, 5)
        assert monitor.two_leaders == ["node 2 and node 3 both led term 5"]
        assert [op.value["term"] for op in history.ops if op.f == "leader" and op.type == "ok"] == [4, 5]


def played(name: str, *, felt: bool = True, recovered_s: float | None = 0.1) -> Played:
    return Played(name, Effect(felt, "told"), 1.0, 0.5, recovered_s)


@each_row(
    ("counts", "faults", "broken", "doubts", "verdict"),
    [
        (Counts(98, 5, 2, 0), [played("kill-one")], [], [], Conclusion.VALID),
        (Counts(98, 5, 2, 0), [played("kill-one")], ["1 lost"], [], Conclusion.INVALID),
        (Counts(98, 5, 2, 0), [played("kill-one", recovered_s=None)], ["1 lost"], ["?"], Conclusion.INVALID),
        (Counts(98, 5, 2, 0), [played("kill-one")], [], ["not read to the end"], Conclusion.UNKNOWN),
        (Counts(98, 5, 2, 0), [played("kill-one", felt=False)], [], [], Conclusion.UNKNOWN),
        (Counts(98, 5, 2, 0), [played("kill-one", felt=False), played("kill-one")], [], [], Conclusion.VALID),
        (Counts(98, 5, 2, 0), [played("kill-one", recovered_s=None)], [], [], Conclusion.UNKNOWN),
        (Counts(98, 5, 2, 0), [], [], [], Conclusion.UNKNOWN),
        (Counts(97, 0, 3, 0), [played("kill-one")], [], [], Conclusion.UNKNOWN),
    ],
)
def test_the_verdict(
    counts: Counts, faults: list[Played], broken: list[str], doubts: list[str], verdict: Conclusion
) -> None:
    plan = Plan("raftmq", None, (NEMESES["kill-one"],), 60.0, 7, 100, True)
    found, reasons = conclude(plan, counts, faults, broken, doubts)
    assert found is verdict
    assert bool(reasons) == (verdict is not Conclusion.VALID)
    assert plan.command == "raftmq chaos run --subject raftmq --time 60 --seed 7 --rate 100 --nemesis kill-one"


def test_what_a_fault_saw_broken_makes_the_run_invalid() -> None:
    plan = Plan("raftmq", None, (NEMESES["kill-one"],), 60.0, 7, 100, True)
    for felt in (True, False):
        saw = played("twins")._replace(effect=Effect(felt, "told", broken=("2 times: a pull was never answered",)))
        found, reasons = conclude(plan, Counts(98, 5, 2, 0), [saw, played("twins")], [], [])
        assert found is Conclusion.INVALID
        assert reasons == ["twins at 1.0 s: 2 times: a pull was never answered"]


def test_any_damage_to_a_body_shows() -> None:
    bodies = [body_of(f"w1-{number:07d}") for number in range(50)]
    assert {len(body) for body in bodies} == set(SIZES)
    assert [id_of(body) for body in bodies] == [f"w1-{number:07d}" for number in range(50)]
    for body in bodies:
        for at in (0, len(body) // 2, len(body) - 1):
            assert "-damaged-" in id_of(body[:at] + b"~" + body[at + 1 :])
        assert "-damaged-" in id_of(body[:-1])


def recorded(path: Path, kept: list[str]) -> HistoryWriter:
    """Two sends, a fault, a leader, another send at the offset of the first; replicas hold `kept`."""
    history = HistoryWriter(path, clock=iter(range(0, 10**12, 10**9)).__next__)
    place = {"topic": "t", "queue_id": 0}
    lost = history.invoke(0, "send", {"topic": "t", "id": "a"})
    history.ok(lost, lost.value | place | {"queue_offset": 0})
    fault = history.invoke(9, "fault", {"kind": "kill-leader", "nodes": []})
    history.ok(fault, fault.value | {"detail": "kill -9 on node 1"})
    leader = history.invoke(8, "leader", {"node": 2, "term": 7})
    history.ok(leader, leader.value)
    other = history.invoke(0, "send", {"topic": "t", "id": "b"})
    history.ok(other, other.value | place | {"queue_offset": len(kept) - 1})
    for node in (1, 2):
        read = history.invoke(100 + node, "read", {"node": node, **place, "offset": 0})
        history.ok(read, {"messages": [[offset, each] for offset, each in enumerate(kept)], "end": True})
    history.close()
    return history


def test_the_story_of_a_lost_message(tmp_path: Path) -> None:
    history = recorded(tmp_path / "h.jsonl", ["b"])
    (loss,) = find_losses(history.ops)
    assert (loss.message_id, loss.missing_on) == ("a", [1, 2])
    story = "\n".join(explain(history.ops, ["node 1 printed: truncating"]))
    for words in (
        "client sends a",
        "t/0 at offset 0",
        "kill -9 on node 1",
        "node 2 leads term 7",
        "b is acknowledged at the very same offset",
        "missing on node 1, 2 of [1, 2]",
        "truncating",
        "1 acknowledged messages",
    ):
        assert words in story
    judgement = judge(history.ops, 2)
    assert any("lost-write" in line for line in judgement.broken)


def test_a_good_history_has_no_story(tmp_path: Path) -> None:
    history = recorded(tmp_path / "h.jsonl", ["a", "b"])
    assert explain(history.ops) == []
    assert judge(history.ops, 2).broken == []
    assert any("2 replicas" in doubt or "3" in doubt for doubt in judge(history.ops, 3).doubts)


def test_a_node_that_ends_by_itself_is_told_once(tmp_path: Path) -> None:
    processes = Processes(Owned(tmp_path))
    ends = NodeEnds(processes)
    for node, code in ((1, 3), (2, 4)):
        processes.start(node, [sys.executable, "-c", f"raise SystemExit({code})"], tmp_path / "log", {})
    processes.start(3, ["sleep", "60"], tmp_path / "log", {})
    assert until(lambda: not (processes.is_running(1) or processes.is_running(2)), at_most(20), 0.01)
    assert ends.since_last() == ["node 1 ended by itself with code 3", "node 2 ended by itself with code 4"]
    assert processes.kill(3)
    assert ends.since_last() == []
    processes.start(1, [sys.executable, "-c", "raise SystemExit(5)"], tmp_path / "log", {})
    processes.start(3, ["sleep", "60"], tmp_path / "log", {})
    assert until(lambda: not processes.is_running(1), at_most(20), 0.01)
    assert processes.terminate(3) is False, "sleep does not end with code 0"
    assert ends.since_last() == ["node 1 ended by itself with code 5"], "node 3 was told to end"


def test_processes_are_paused_killed_and_missed(tmp_path: Path) -> None:
    processes = Processes(Owned(tmp_path))
    command = [sys.executable, "-c", "input()"]
    with pytest.raises(KeyError):
        processes.aim(1)
    processes.start(1, ["sleep", "60"], tmp_path / "log", {})
    assert processes.pause(1)
    assert processes.is_running(1)
    processes.resume(1)
    assert processes.kill(1)
    assert not processes.kill(1)
    assert not processes.pause(1)
    processes.start(1, command, tmp_path / "log", {})
    deadline = 200
    while processes.is_running(1) and deadline:
        deadline -= 1
        import time

        time.sleep(0.02)
    assert processes.exits == {1: [1]}, "it ended by itself: nothing to read"
    processes.start(2, ["sleep", "60"], tmp_path / "log", {})
    assert processes.pause(2)
    processes.stop_all()
    assert not processes.is_running(2)


def test_a_node_that_runs_and_answers_nothing_is_named() -> None:
    asked: list[int] = []

    def print_stacks(node: int) -> bool:
        asked.append(node)
        return node == 1 and node in running

    nodes = [SimpleNamespace(id=number, log=f"n{number}/node.log") for number in (1, 2, 3)]
    running = {1, 2, 3}
    subject = SimpleNamespace(
        nodes=nodes,
        node_ids=[1, 2, 3],
        is_running=running.__contains__,
        states=lambda: {1: None, 2: state(1, True), 3: None} if running else 1 // 0,
        processes=SimpleNamespace(print_stacks=print_stacks, exits={}),
    )
    told = RaftMQSubject.evidence(cast(Any, subject))
    assert told == ["node 1 runs and answers nothing: n1/node.log ends with the stacks of its threads"]
    assert asked == [1, 3]
    running.clear()
    assert RaftMQSubject.evidence(cast(Any, subject)) == [], "after the run nobody can be asked"

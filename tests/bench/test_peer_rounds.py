"""Rounds of the benchmark beside peers: their order, what counts as a turn, medians, and what the report says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from bench.bench_disk_floor import Floor
from bench.peers import report, rounds
from bench.peers.rounds import Field, Sample, order, sample, spread
from bench.peers.system import Generator, Load, Node, NoLeader, Traits
from raftmq.commands.bench_load import Result
from raftmq.commands.open_arrivals import percentile

NAMES = ["a", "b", "c", "d"]
ROW = Load(1024, 1, 64, 0.0)


class FakeProcesses:
    """Notes what is asked of it; `died` are pids that ended by themselves."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.died: list[int] = []
        self.cpu_s = 0.0

    def pause(self, pid: int | None = None) -> None:
        self.said.append("pause")

    def resume(self, pid: int | None = None) -> None:
        self.said.append("resume" if pid is None else f"resume {pid}")

    def ended(self) -> list[int]:
        return self.died

    def end(self) -> None:
        self.said.append("end")

    def cpu_seconds(self) -> float:
        self.cpu_s += 1.0
        return self.cpu_s

    def memory_bytes(self) -> int:
        return 3 << 20


class FakeSystem:
    """A system without processes; `leaders` are who leads at each question, the last one for ever."""

    def __init__(self, *leaders: int, name: str = "fake") -> None:
        self.traits = Traits(name, "1", "nowhere", warm_s=60.0, batches=False)
        self.processes = FakeProcesses()
        self._leaders = list(leaders)

    @property
    def nodes(self) -> Sequence[Node]:
        return [Node(number, 0, 100 + number) for number in range(3)]

    def start(self, directory: Path) -> None:
        pass

    def leader(self) -> Node:
        return self.nodes[self._leaders.pop(0) if len(self._leaders) > 1 else self._leaders[0]]

    def generator(self, load: Load) -> Generator:
        raise AssertionError("no load runs in these tests")

    def restart(self, node: Node) -> None:
        pass

    def stop(self) -> None:
        self.processes.end()


class Ran:
    """The (pid, load) of everything that would have run: 1,000 messages in two seconds each. Nothing is waited for."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, Load]] = []

    def run(self, system: object, node: Node, load: Load) -> Result:
        self.seen.append((node.pid, load))
        return Result(1000, 2.0, [1.0, 2.0, 3.0], 0)


@pytest.fixture
def ran() -> Ran:
    return Ran()


def field_of(system: FakeSystem, tmp_path: Path, ran: Ran | None = None) -> Field:
    """The system's field, started; its processes are fakes."""
    field = Field(system, settle_s=0.0, leader_s=0.0, run=(ran or Ran()).run)  # type: ignore[arg-type]
    field.start(tmp_path / system.traits.name)
    return field


def test_every_system_is_first_as_often_and_everyone_plays() -> None:
    orders = [order(NAMES, number) for number in range(8)]
    assert all(sorted(each) == NAMES for each in orders)
    firsts = [each[0] for each in orders]
    assert {name: firsts.count(name) for name in NAMES} == dict.fromkeys(NAMES, 2)
    followers = {(each[at], each[at + 1]) for each in orders for at in range(3)}
    assert ("a", "b") in followers
    assert ("b", "a") in followers


def test_no_system_no_order() -> None:
    assert order([], 3) == []


def test_median_and_range() -> None:
    assert spread([5.0, 1.0, 100.0]) == (5.0, 1.0, 100.0)
    assert spread([4.0, 2.0]) == (3.0, 2.0, 4.0)
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0
    assert percentile([1.0], 0.99) == 1.0


def test_a_sample_counts_messages_not_requests() -> None:
    assert sample(Result(4000, 2.0, [1.0] * 40, 1), 0.5) == Sample(2000.0, 125.0, 1.0, 1.0, 1)


def test_a_run_that_acknowledged_nothing_is_no_sample() -> None:
    with pytest.raises(ConnectionError, match="7 requests were refused"):
        sample(Result(0, 2.0, [1.0], 7), 0.5)


def test_a_turn_continues_the_leader_first_and_ends_paused(ran: Ran, tmp_path: Path) -> None:
    system = FakeSystem(1)
    field = field_of(system, tmp_path, ran)
    del ran.seen[:], system.processes.said[:]
    field.turn([ROW, ROW._replace(in_flight=1)])
    assert system.processes.said == ["resume 101", "resume", "pause"]
    assert [(pid, load.in_flight) for pid, load in ran.seen] == [(101, 64), (101, 1)], "no warm-up: the same node leads"
    assert field.samples[ROW] == [Sample(500.0, 1000.0, 2.0, 3.0, 0)]


def test_a_new_leader_is_warmed_and_one_that_led_before_is_not_for_long(ran: Ran, tmp_path: Path) -> None:
    # Asked once at the start, then twice a turn: before the loads and after them.
    field = field_of(FakeSystem(0, 1, 1, 0, 0), tmp_path, ran)
    field.turn([ROW])
    field.turn([ROW])
    assert [(pid, load.seconds) for pid, load in ran.seen if load != ROW] == [(100, 60.0), (101, 60.0), (100, 1.0)]
    assert field.leader_changes == 2


def test_a_turn_that_loses_its_leader_does_not_count(ran: Ran, tmp_path: Path) -> None:
    field = field_of(FakeSystem(0, 0, 2, 2, 2), tmp_path, ran)
    field.turn([ROW])
    assert [pid for pid, load in ran.seen if load == ROW] == [100, 102]
    assert len(field.samples[ROW]) == 1


def test_leaders_that_never_stay_end_a_system(tmp_path: Path) -> None:
    field = field_of(FakeSystem(0, *[0, 1] * rounds.TRIES), tmp_path)
    with pytest.raises(NoLeader):
        field.turn([ROW])
    assert field.samples == {}


def test_a_node_that_ended_by_itself_is_noticed(tmp_path: Path) -> None:
    system = FakeSystem(0)
    field = field_of(system, tmp_path)
    system.processes.died.append(102)
    with pytest.raises(NoLeader, match="102"):
        field.turn([ROW])


def test_a_system_that_fails_leaves_the_others_to_play_on(tmp_path: Path) -> None:
    good, bad = FakeSystem(0, name="good"), FakeSystem(0, name="bad")
    fields = [field_of(good, tmp_path), field_of(bad, tmp_path)]
    bad.processes.died.append(101)
    told: list[str] = []
    rounds.play(fields, 3, 1.0, Floor(tmp_path, times=2), told.append)
    assert {len(samples) for samples in fields[0].samples.values()} == {3}
    assert {load.batch for load in fields[0].samples} == {1}, "it has no batches"
    assert good.processes.said[-1] == "pause"
    assert bad.processes.said[-1] == "end"
    assert fields[1].samples == {}

    result = report.document(fields, {"absent": "no Go here"}, [], {"p50_ms": 0.5}, {})
    assert {row["system"] for row in result["rows"] if "unavailable" not in row} == {"good"}
    reasons = {row["system"]: row["unavailable"] for row in result["rows"] if "unavailable" in row}
    assert reasons["absent"] == "no Go here"
    assert "101" in reasons["bad"]


def test_the_report_has_medians_of_rounds_and_the_ratio_to_the_floor(tmp_path: Path) -> None:
    field = field_of(FakeSystem(0, name="raftmq"), tmp_path)
    one = Load(1024, 1, 1, 3.0)
    field.samples = {one: [Sample(rate, 10.0 * rate, 0.75, 2.0, 1) for rate in (100.0, 300.0, 110.0)]}
    faults = [{"system": "raftmq", "fault": "kill -9", "seconds": [0.3, 0.1, 0.2]}]
    failed = {"system": "etcd", "fault": "SIGSTOP", "seconds": [], "error": "none came back"}
    result = report.document([field], {}, [*faults, failed], {"p50_ms": 0.5}, {"rounds": 3})
    [row] = result["rows"]
    assert row["messages_per_second"] == {"median": 110, "low": 100, "high": 300}
    assert (row["cpu_us_per_message"], row["p50_ms"], row["refused"], row["rounds"]) == (1100.0, 0.75, 3, 3)
    assert result["floor"]["raftmq_ratio"] == 1.5
    assert (result["failover"][0]["median"], result["failover"][0]["high"]) == (0.2, 0.3)

    console = Console(record=True, width=200)
    report.show(result, console)
    text = console.export_text()
    assert "110 (100 to 300)" in text
    assert "none came back" in text


def test_the_floor_is_measured_on_the_disk_and_leaves_nothing(tmp_path: Path) -> None:
    floor = Floor(tmp_path, times=5)
    floor.measure()
    floor.measure()
    assert len(floor.rounds) == 2
    assert all(value > 0 for value in floor.medians().values())
    assert list(tmp_path.iterdir()) == []

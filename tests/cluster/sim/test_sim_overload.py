"""More sends than the log takes: some are refused and not stored, the others are stored soon, and a repeated one shares
the answer. Clients send by a schedule, whatever was answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from raftmq_wire.codes import ResponseCode
from tests.support.sim_cluster import ClientPath, SimCluster, SimNode, codes, send_frame

PID = b"\x0b" * 16
BUSY = ResponseCode.SYSTEM_BUSY
SLOWER = 8.0
"""The factor by which all disks are slower: an entry of 16 sends takes some 20 ms."""


@pytest.fixture
def sim(request: pytest.FixtureRequest) -> Iterator[SimCluster]:
    config = {"limits.batch_messages_max": 16, "flow.house_bytes_min": 4096, "send.deadline_ms": 20_000}
    with SimCluster(59, **config, **getattr(request, "param", {})) as made:
        made.create_topic("T")
        made.settle()
        for node in made.nodes.values():
            node.disk_factor = SLOWER
        yield made


class OpenLoop:
    """Sends that come by a schedule at a node, and the time that each took."""

    def __init__(self, sim: SimCluster, node: SimNode, *, named: bool = False) -> None:
        self.sim, self.path, self.named = sim, node.connect(), named
        self.sent: dict[int, float] = {}
        self.took_s: dict[int, float] = {}

    def body(self, number: int) -> bytes:
        return b"%d-" % number + b"x" * 200

    def frame(self, number: int) -> bytes:
        pid = PID if self.named else b""
        return send_frame(number, "T", self.body(number), pid=pid, seq=number, low=1, queue_id=number % 2)

    def run(self, seconds: float, per_second: int) -> None:
        for _ in range(int(seconds * 100)):
            for _ in range(per_second // 100):
                number = len(self.sent) + 1
                self.sent[number] = self.sim.loop.now
                self.path.ask(self.frame(number))
            self.sim.loop.run_for(0.01)
            self.look()

    def look(self) -> None:
        for number in list(self.path.replies):
            self.took_s.setdefault(number, self.sim.loop.now - self.sent[number])

    def answers(self) -> Counter[int]:
        """Waits for all answers, of which each send has one."""
        self.sim.loop.run_until(lambda: len(self.path.replies) == len(self.sent), 30, "all are answered")
        self.look()
        found = [codes(self.path, number) for number in self.sent]
        assert all(len(each) == 1 for each in found)
        return Counter(code for (code,) in found)

    def of(self, code: int) -> set[int]:
        return {number for number in self.sent if codes(self.path, number) == [code]}


def stored(sim: SimCluster) -> Counter[int]:
    return Counter(int(body.partition(b"-")[0]) for body in sim.leader().bodies("T"))


@pytest.mark.parametrize("place", ["leader", "follower"])
def test_what_is_refused_is_not_stored_and_the_rest_is_stored_soon(sim: SimCluster, place: str) -> None:
    loop = OpenLoop(sim, sim.leader() if place == "leader" else sim.followers()[0])
    loop.run(1.0, 100)
    assert loop.answers() == {0: 100}
    loop.run(3.0, 3000)
    answers = loop.answers()
    assert set(answers) == {0, BUSY}
    assert answers[BUSY] > 1000
    assert sim.leader().refused["overload"] == answers[BUSY]
    assert stored(sim) == dict.fromkeys(loop.of(0), 1), "each once, and nothing that was refused"
    late = [number for number in loop.of(0) if loop.sent[number] > loop.sent[101] + 1.5]
    assert late
    assert max(loop.took_s[number] for number in late) < 0.5, "no admitted send starves"
    sim.settle()
    assert not any(node.proposals.gate.left() for node in sim.running)
    assert not any(node.proposals.flow.queue.bytes for node in sim.running)
    assert "flow.house_ms" in loop.path.replies[min(loop.of(BUSY))][0][1]


def test_a_send_that_was_refused_comes_again_under_its_name(sim: SimCluster) -> None:
    loop = OpenLoop(sim, sim.leader(), named=True)
    loop.run(2.5, 3000)
    assert loop.answers()[BUSY]
    again: ClientPath = sim.leader().connect()
    refused = sorted(loop.of(BUSY))[:20]
    sim.loop.run_for(3)
    for number in refused:
        again.ask(loop.frame(number))
    sim.loop.run_until(lambda: len(again.replies) == len(refused), 30)
    assert all(codes(again, number) == [0] for number in refused)
    assert stored(sim) == dict.fromkeys(loop.of(0) | set(refused), 1)


def test_who_repeats_a_waiting_send_shares_its_refusal(sim: SimCluster) -> None:
    loop = OpenLoop(sim, sim.leader(), named=True)
    twin = sim.leader().connect()
    loop.run(1.5, 3000)
    waiting = [number for number in loop.sent if number not in loop.path.replies][:-8:2]
    for number in waiting:
        twin.ask(loop.frame(number))
    loop.run(1.5, 3000)
    loop.answers()
    sim.loop.run_until(lambda: len(twin.replies) == len(waiting), 30)
    shared = [number for number in waiting if codes(twin, number) == codes(loop.path, number) == [BUSY]]
    assert shared
    assert stored(sim) == dict.fromkeys(loop.of(0) | {n for n in waiting if codes(twin, n) == [0]}, 1)


@pytest.mark.parametrize("sim", [{"flow.admission": False}], indirect=True)
def test_without_it_all_wait(sim: SimCluster) -> None:
    loop = OpenLoop(sim, sim.leader())
    loop.run(2.0, 3000)
    assert set(loop.answers()) == {0}
    assert max(loop.took_s.values()) > 1


def test_an_overload_goes_through_a_change_of_the_leader(sim: SimCluster) -> None:
    """What was queued goes to the next leader, which learns its own disk's rate."""
    old = sim.leader()
    loop = OpenLoop(sim, sim.followers()[0])
    loop.run(1.5, 3000)
    assert old.proposals.flow.limit.overloaded
    old.transfer(sim.followers()[0].node_id)
    loop.run(2.5, 3000)
    answers = loop.answers()
    assert set(answers) <= {0, BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR}
    assert sim.leader() is not old
    assert sim.leader().refused["overload"] > 100
    assert set(stored(sim)) >= loop.of(0)
    assert not set(stored(sim)) & loop.of(BUSY)
    assert max(stored(sim).values()) == 1
    assert old.proposals.flow.limit.rate
    sim.leader().transfer(old.node_id)
    sim.loop.run_until(lambda: old.proposals.open, 10)
    assert not old.proposals.flow.limit.rate, "a new term learns anew"


@pytest.mark.parametrize("sim", [{"flow.admission": False}], indirect=True)
def test_an_entry_of_an_overload_is_a_part_of_what_may_wait(sim: SimCluster) -> None:
    """A large one makes all that come after it wait."""
    leader = sim.leader()
    leader.proposals.flow.limit.entry_bytes = 1  # as it was learnt
    before = leader.log.tail.index
    loop = OpenLoop(sim, leader)
    loop.run(0.5, 200)
    assert loop.answers() == {0: 100}
    assert leader.log.tail.index - before >= 100, "one send each"


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
def test_a_wall_clock_that_jumps_refuses_nobody(sim: SimCluster, jump_ms: int) -> None:
    """On the leader, then on all: arrival, deadlines and the limit know nothing of the time of day."""
    loop = OpenLoop(sim, sim.followers()[0])
    leader = sim.leader()
    loop.run(1.0, 200)
    leader.clock.offset_ms += jump_ms
    loop.run(1.0, 200)
    for node in sim.followers():
        node.clock.offset_ms += jump_ms
    loop.run(1.0, 200)
    assert loop.answers() == {0: 600}
    assert max(loop.took_s.values()) < 0.5
    assert sim.leader() is leader
    assert not leader.refused


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
def test_an_overload_begins_and_ends_as_if_the_wall_clock_had_not_jumped(sim: SimCluster, jump_ms: int) -> None:
    leader = sim.leader()
    loop = OpenLoop(sim, leader)
    loop.run(1.0, 3000)
    leader.clock.offset_ms += jump_ms
    loop.run(1.0, 3000)
    assert leader.proposals.flow.limit.overloaded
    learnt = leader.proposals.flow.limit.rate
    leader.clock.offset_ms -= 2 * jump_ms
    loop.run(1.0, 3000)
    assert loop.answers().keys() == {0, BUSY}
    assert leader.proposals.flow.limit.rate == pytest.approx(learnt, rel=0.5), "a jump is no slow interval"
    loop.run(4.0, 100)
    refused = loop.answers()[BUSY]
    assert not leader.proposals.flow.limit.overloaded
    assert sim.leader() is leader
    loop.run(1.0, 100)
    assert loop.answers()[BUSY] == refused


def test_a_leader_knows_how_long_the_disks_of_a_majority_take(sim: SimCluster) -> None:
    leader, (one, other) = sim.leader(), sim.followers()
    leader.running.peers.syncs.own_ms = 2.0
    leader.running.peers.syncs.heard(one.node_id, 30_000)
    leader.running.peers.syncs.heard(other.node_id, 6_000)
    assert leader.proposals.flow.limit._sync_ms() == 6.0


def test_two_entries_are_under_way_while_somebody_sends_little() -> None:
    """Otherwise that client waits for four of its neighbour's."""
    with SimCluster(60) as sim:
        for topic in ("T", "U"):
            sim.create_topic(topic)
        sim.settle()
        leader = sim.leader()
        under_way, queue = leader.undecided, leader.proposals.flow.queue
        light, newest, proposed = False, 0, list[tuple[bool, int]]()

        def look(_: object = None) -> None:
            """Notes whether there was a light send in the queue when a further entry was proposed."""
            nonlocal light, newest
            if (last := max(under_way, default=0)) > newest:
                proposed.append((light, len(under_way)))
                newest = last
            light = queue.has_light

        noisy, quiet = leader.connect(), leader.connect()
        sim.loop.after_event = look
        for number in range(1, 101):
            noisy.ask(send_frame(number, "T", bytes(60_000)))
        sim.loop.run_until(lambda: len(under_way) == 4, 1)
        for number in range(1, 4):
            quiet.ask(send_frame(number, "U", b"quiet"))
            look()
            sim.loop.run_until(lambda: number in quiet.replies, 5)  # noqa: B023 - called in this turn of the loop
        sim.loop.run_until(lambda: len(noisy.replies) == 100, 30)
        assert max(count for light, count in proposed if not light) == 4
        assert max(count for light, count in proposed if light) == 2

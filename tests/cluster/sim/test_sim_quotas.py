"""Sends over a quota: they wait before anything is proposed, then go on in their order, or are refused with 215."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster.replication import paced_sends
from cluster.runtime.peer_frames import Kind
from raftmq_wire.codes import UNKNOWN_REMARK, ResponseCode
from statemachine.access.quotas import SetQuotas
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import LEVEL
from statemachine.removal_slices import DeleteTopic
from statemachine.topics.topics import CreateTopic
from tests.support.sim_cluster import ClientPath, SimCluster, SimNode, codes, send_frame

LIMITED = ResponseCode.FLOW_CONTROL
PID = b"\x0c" * 16
HOLD_S = 1.0
MakeSim = Callable[..., SimCluster]


@pytest.fixture
def sim_with() -> Iterator[MakeSim]:
    made: list[SimCluster] = []

    def make(quotas: dict[str, dict[str, int]], **config: Any) -> SimCluster:
        sim = SimCluster(71, **config).__enter__()
        made.append(sim)
        sim.propose(sim.leader(), Finalize(LEVEL))
        for topic in ("T", "U"):
            sim.create_topic(topic)
        limit(sim, quotas)
        return sim

    yield make
    for sim in made:
        sim.__exit__(None, None, None)


def limit(sim: SimCluster, quotas: dict[str, Any]) -> None:
    sim.propose(sim.leader(), SetQuotas(list(quotas.items()), 1, "ann"))
    sim.settle()
    sim.loop.run_for(0.1)


def ask(path: ClientPath, numbers: range, topic: str = "T", **fields: Any) -> None:
    for number in numbers:
        path.ask(send_frame(number, topic, b"%d" % number, **fields))


def answers(path: ClientPath, numbers: range) -> list[list[int]]:
    return [codes(path, number) for number in numbers]


def stored(sim: SimCluster, topic: str = "T") -> list[int]:
    sim.heal()
    sim.settle()
    sim.check_equal()
    return [int(body) for body in sim.leader().bodies(topic)]


def check_left(*nodes: SimNode) -> None:
    """Nothing is held any more."""
    for node in nodes:
        assert node.proposals.gate.left() == {}
        assert (len(node.proposals.flow.paced), node.proposals.flow.paced.size) == (0, 0)


@pytest.mark.parametrize("place", ["leader", "follower"])
def test_what_is_over_the_rate_waits_and_keeps_its_order_while_others_go_on(sim_with: MakeSim, place: str) -> None:
    sim = sim_with({"topic=T": {"send_messages": 10}})
    leader = sim.leader()
    path = (leader if place == "leader" else sim.followers()[0]).connect()
    ask(path, range(18))
    ask(path, range(100, 105), "U")
    sim.loop.run_for(0.3)
    assert answers(path, range(100, 105)) == [[0]] * 5
    done = [number for number in range(18) if codes(path, number)]
    assert done == list(range(len(done))), "in their order"
    assert 11 <= len(done) <= 14, "a second's worth, and what has come since"
    assert leader.proposals.gate.sends.bytes == 0, "what waits takes no room of the node"
    assert len(leader.proposals.flow.paced) == 18 - len(done)
    sim.loop.run_for(HOLD_S)
    assert answers(path, range(18)) == [[0]] * 18
    assert stored(sim) == list(range(18))
    check_left(*sim.running)


def test_what_comes_when_the_quota_is_gone_waits_behind_what_waited_for_it(sim_with: MakeSim) -> None:
    sim = sim_with({"topic=T": {"send_messages": 10}})
    path = sim.leader().connect()
    ask(path, range(14))
    changed = sim.propose(sim.leader(), SetQuotas([("topic=T", None)], 2, "ann"))
    sim.loop.run_until(lambda: changed, 5, "the quota is gone")
    ask(path, range(14, 20))  # before anybody has looked at what waits
    sim.loop.run_for(0.5)
    assert answers(path, range(20)) == [[0]] * 20
    assert stored(sim) == list(range(20))
    check_left(*sim.running)


def test_what_has_waited_for_long_enough_is_refused_and_not_stored(sim_with: MakeSim) -> None:
    sim = sim_with({"address=*": {"send_messages": 10}})
    leader = sim.leader()
    path = leader.connect()
    ask(path, range(40))
    ask(path, range(40, 42), oneway=True)
    sim.loop.run_for(HOLD_S + 0.2)
    found = answers(path, range(40))
    assert {code for each in found for code in each} == {0, LIMITED}
    assert all(len(each) == 1 for each in found)
    kept = [number for number in range(40) if codes(path, number) == [0]]
    assert 19 <= len(kept) <= 22
    assert stored(sim) == kept
    _, remark, _ = path.replies[39][0]
    assert remark == (
        "address=10.0.0.9 may have 10 messages sent a second (quota address=*); nothing was stored, send more slowly"
    )
    assert leader.refused["quota"] == 42 - len(kept)
    assert [each.refused for each in leader.proposals.flow.paced.buckets.all()] == [42 - len(kept)]
    check_left(leader)


@pytest.mark.parametrize(("rate", "goes_on"), [(10, "in its turn"), (1, "before a change of its topic")])
def test_a_send_that_waited_for_its_quota_is_slow_for_that(
    sim_with: MakeSim, caplog: pytest.LogCaptureFixture, rate: int, goes_on: str
) -> None:
    sim = sim_with({"address=*": {"send_messages": rate}}, **{"log_output.slow_request_ms": 200})
    ask(sim.leader().connect(), range(16))
    if goes_on != "in its turn":
        sim.loop.run_for(0.3)
        sim.propose(sim.leader(), CreateTopic({"name": "T", "perm": 6}, False))
    sim.loop.run_for(1.5)
    slow = [vars(each) for each in caplog.records if each.message.startswith("slow: SEND_MESSAGE")]
    assert slow
    assert {each["slow_stage"] for each in slow} == {"quota"}
    assert all(each["quota_ms"] >= 150 for each in slow)


def test_without_a_hold_it_is_refused_at_once(sim_with: MakeSim) -> None:
    sim = sim_with({"address=*": {"send_messages": 10}}, **{"flow.hold_ms": 0})
    path = sim.leader().connect()
    ask(path, range(40))
    sim.loop.run_for(0.05)
    assert answers(path, range(12, 40)) == [[LIMITED]] * 28
    assert stored(sim) == [number for number in range(40) if codes(path, number) == [0]]
    check_left(sim.leader())


def test_what_waits_has_a_bound_of_its_own(sim_with: MakeSim, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = sim_with({"topic=*": {"send_messages": 1}}, **{"flow.hold_bytes_max": 1 << 16})
    leader = sim.leader()
    path = leader.connect()
    for number in range(10):
        path.ask(send_frame(number, "T", b"x" * 20_000))
    assert len(leader.proposals.flow.paced) == 3
    sim.loop.run_for(0.05)
    assert answers(path, range(2, 10))[3:] == [[LIMITED]] * 5
    monkeypatch.setattr(paced_sends, "HOLD_SHARES", 0)
    path.ask(send_frame(99, "T", b"x"))
    sim.loop.run_for(0.05)
    assert codes(path, 99) == [LIMITED], "all owners together have one as well"
    sim.loop.run_for(5)
    check_left(leader)


def test_a_leader_that_is_deposed_passes_on_what_waits(sim_with: MakeSim) -> None:
    sim = sim_with({"topic=T": {"send_messages": 10}})
    old = sim.leader()
    path = old.connect()
    ask(path, range(15))
    sim.loop.run_for(0.1)
    waited = len(old.proposals.flow.paced)
    assert waited
    old.transfer(sim.followers()[0].node_id)
    sim.loop.run_for(3)
    assert sim.leader() is not old
    assert answers(path, range(15)) == [[0]] * 15
    assert stored(sim) == list(range(15))
    check_left(*sim.running)


def test_what_a_former_leader_has_stored_is_not_refused_for_a_quota(
    sim_with: MakeSim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic without dedup: whoever leads then cannot look for it. Its own client's node does."""
    sim = sim_with({"topic=O": {"send_messages": 1}}, **{"flow.hold_ms": 0})
    sim.create_topic("O", attributes={"dedup": "off"})
    leader, through = sim.leader(), sim.followers()[0]
    sends = leader.transport.send_frame

    def silent(peer: Any, kind: Kind, *more: Any) -> bool:
        return kind == Kind.FORWARD_REPLY or sends(peer, kind, *more)

    monkeypatch.setattr(leader.transport, "send_frame", silent)
    path = through.connect()
    for number in range(2):
        ask(path, range(number, number + 1), "O")
        sim.loop.run_for(1.2)
    assert leader.bodies("O") == [b"0", b"1"]
    leader.transfer(through.node_id)
    sim.loop.run_for(2)
    assert sim.leader() is through
    assert answers(path, range(2)) == [[0], [ResponseCode.SYSTEM_ERROR]]
    assert path.replies[1][0][1].startswith(UNKNOWN_REMARK)
    check_left(through)


def test_who_leads_again_begins_with_full_buckets(sim_with: MakeSim) -> None:
    sim = sim_with({"topic=T": {"send_bytes": 1_000}})
    leader = sim.leader()
    path = leader.connect()
    path.ask(send_frame(0, "T", b"x" * 100_000))
    ask(path, range(1, 2))
    sim.loop.run_for(HOLD_S + 0.2)
    assert answers(path, range(2)) == [[0], [LIMITED]]
    leader.transfer(sim.followers()[0].node_id)
    sim.loop.run_for(2)
    sim.leader().transfer(leader.node_id)
    sim.loop.run_for(2)
    assert sim.leader() is leader
    ask(path, range(2, 3))
    sim.loop.run_for(0.2)
    assert answers(path, range(2, 3)) == [[0]]


@pytest.mark.parametrize("days", [-30, -1, 1, 30])
def test_a_wall_clock_that_jumps_while_a_bucket_fills_lets_nothing_more_through(sim_with: MakeSim, days: int) -> None:
    sim = sim_with({"topic=T": {"send_messages": 10}})
    leader, path = sim.leader(), sim.leader().connect()
    ask(path, range(15))
    sim.loop.run_for(0.1)
    leader.clock.offset_ms += days * 86_400_000
    sim.loop.run_for(0.1)
    done = [number for number in range(15) if codes(path, number)]
    assert 10 <= len(done) <= 13, "a second's worth, and what has come since"
    leader.clock.offset_ms = 0
    sim.loop.run_for(0.6)
    assert sim.leader() is leader
    assert answers(path, range(15)) == [[0]] * 15
    ask(path, range(15, 23))
    sim.loop.run_for(0.05)
    assert len([number for number in range(15, 23) if codes(path, number)]) < 6
    sim.loop.run_for(HOLD_S)
    assert stored(sim) == list(range(23))
    check_left(leader)


def test_a_client_that_goes_takes_with_it_what_waits(sim_with: MakeSim) -> None:
    sim = sim_with({"topic=T": {"send_messages": 1}})
    leader = sim.leader()
    for path in (leader.connect(), sim.followers()[0].connect()):
        ask(path, range(5))
        sim.loop.run_for(0.1)
        assert len(leader.proposals.flow.paced) >= 3
        path.close()
        sim.loop.run_for(0.1)
        check_left(leader)
    assert len(stored(sim)) <= 3


def test_a_change_of_the_topic_lets_its_own_go_first(sim_with: MakeSim) -> None:
    sim = sim_with({"topic=*": {"send_messages": 1}})
    leader = sim.leader()
    path = leader.connect()
    ask(path, range(5))
    ask(path, range(100, 105), "U")
    results = sim.propose(leader, DeleteTopic("T"))
    sim.loop.run_until(lambda: results, 5)
    sim.loop.run_for(0.2)
    assert answers(path, range(5)) == [[0]] * 5, "they were let in before it"
    assert codes(path, 104) == []
    sim.propose(leader, CreateTopic({"name": "T"}, True))
    sim.settle()
    assert leader.failure is None


def test_a_repetition_shares_the_fate_of_what_waits(sim_with: MakeSim) -> None:
    sim = sim_with({"topic=T": {"send_messages": 2}})
    leader = sim.leader()
    first, second = leader.connect(), leader.connect(port=4001)
    for number in range(4):
        first.ask(send_frame(number, "T", b"%d" % number, pid=PID, seq=number + 1, low=1))
    sim.loop.run_for(0.06)
    assert codes(first, 3) == []
    second.ask(send_frame(3, "T", b"3", pid=PID, seq=4, low=1))
    sim.loop.run_for(HOLD_S)
    assert (codes(first, 3), codes(second, 3)) == ([0], [0])
    assert stored(sim) == [0, 1, 2, 3]
    check_left(leader)


def test_a_repetition_that_takes_the_place_of_what_waits_waits_as_that_did(sim_with: MakeSim) -> None:
    """It was in the line and in no account of it: nothing seemed to wait, so nothing of the line went on."""
    sim = sim_with({"topic=T": {"send_messages": 1}})
    leader = sim.leader()
    first, second, third = [leader.connect(port=4000 + number) for number in range(3)]
    ask(first, range(1))
    for path in (first, second, third):
        path.ask(send_frame(1, "T", b"1", pid=PID, seq=1, low=1))
        sim.loop.run_for(0.06)
        if path is second:
            first.close()
    paced, sends = leader.proposals.flow.paced, leader.proposals.gate.sends
    assert (len(paced), sends.requests) == (1, 1), "the second waits behind it, and is not proposed"
    sim.loop.run_for(2 * HOLD_S)
    assert (codes(second, 1), codes(third, 1)) == ([0], [0])
    assert stored(sim) == [0, 1]
    check_left(leader)


def test_a_repetition_in_the_place_of_what_waits_holds_up_nobody(sim_with: MakeSim) -> None:
    sim = sim_with({"topic=T": {"send_bytes": 1_000}})
    leader = sim.leader()
    first, second, third, other = [leader.connect(port=4000 + number) for number in range(4)]
    other.ask(send_frame(0, "T", b"x" * 100_000))
    first.ask(send_frame(1, "T", b"1", pid=PID, seq=1, low=1))
    ask(other, range(2, 3))
    second.ask(send_frame(1, "T", b"1", pid=PID, seq=1, low=1))
    first.close()
    sim.loop.run_for(HOLD_S / 2)
    third.ask(send_frame(1, "T", b"1", pid=PID, seq=1, low=1))
    sim.loop.run_for(HOLD_S / 2 + 0.2)
    assert (codes(second, 1), codes(third, 1), codes(other, 2)) == ([LIMITED], [LIMITED], [LIMITED])
    check_left(leader)


def test_a_repetition_without_a_number_waits_for_the_first_of_a_strict_topic(sim_with: MakeSim) -> None:
    sim = sim_with({"topic=S": {"send_messages": 1}})
    sim.create_topic("S", attributes={"dedup": "strict"})
    leader = sim.leader()
    first, second = leader.connect(), leader.connect(port=4001)
    for path in (first, second):
        for number in (1, 2):
            path.ask(send_frame(number, "S", b"%d" % number, key=f"K{number}"))
    sim.loop.run_for(0.06)
    assert len(leader.proposals.flow.paced) == 1, "the second message waits, and its repetition for it"
    sim.loop.run_for(2 * HOLD_S)
    assert answers(first, range(1, 3)) == answers(second, range(1, 3)) == [[0], [0]]
    assert stored(sim, "S") == [1, 2]
    check_left(leader)


def strict_and_repeated(sim: SimCluster, place: SimNode) -> tuple[ClientPath, ClientPath]:
    """A send to a topic with strict dedup waits for its quota, and its repetition on another connection for it."""
    sim.create_topic("S", attributes={"dedup": "strict"})
    first, second = place.connect(), place.connect(port=4001)
    for number in (1, 2):
        first.ask(send_frame(number, "S", b"%d" % number, key=f"K{number}"))
    sim.loop.run_for(0.06)
    second.ask(send_frame(2, "S", b"2", key="K2"))
    sim.loop.run_for(0.06)
    assert len(sim.leader().proposals.flow.paced) == 1
    return first, second


def test_who_waits_for_the_first_of_a_strict_topic_writes_nothing_into_the_log(sim_with: MakeSim) -> None:
    sim = sim_with({"topic=S": {"send_messages": 1}})
    leader = sim.leader()
    first, second = strict_and_repeated(sim, leader)
    before = leader.raw.last_index
    sim.loop.run_for(HOLD_S / 2)
    assert leader.raw.last_index == before
    sim.loop.run_for(HOLD_S)
    assert (codes(first, 2), codes(second, 2)) == ([0], [0])
    assert stored(sim, "S") == [1, 2]
    check_left(leader)


def test_who_waits_behind_the_leader_goes_back_to_its_node_when_that_is_deposed(sim_with: MakeSim) -> None:
    """A request that was forwarded is not forwarded again: whoever has the connection knows where each of them is."""
    sim = sim_with({"topic=S": {"send_messages": 1}})
    old, (through, next_one) = sim.leader(), sim.followers()
    first, second = strict_and_repeated(sim, through)
    again: list[int] = []
    sim.loop.after_event = lambda process: again.append(old.forwarder.gate.forwarded.requests)
    old.transfer(next_one.node_id)
    sim.loop.run_for(2)
    assert sim.leader() is next_one
    assert not any(again)
    assert (codes(first, 2), codes(second, 2)) == ([0], [0])
    assert stored(sim, "S") == [1, 2]
    check_left(*sim.running)


def test_what_has_waited_keeps_its_level(sim_with: MakeSim) -> None:
    sim = sim_with({"address=*": {"send_messages": 1}})
    sim.create_topic("L", attributes={"ack.level": "leader"})
    path = sim.leader().connect()
    ask(path, range(1))
    ask(path, range(1, 2), "L")
    sim.loop.run_for(HOLD_S / 2)
    assert answers(path, range(2)) == [[0], []]
    for follower in sim.followers():
        follower.append.hold()
    sim.loop.run_for(HOLD_S)
    assert answers(path, range(1, 2)) == [[0]], "no follower has it"
    sim.heal()


def test_a_quota_that_ends_lets_all_go(sim_with: MakeSim) -> None:
    sim = sim_with({"topic=T": {"send_messages": 1}})
    leader = sim.leader()
    path = leader.connect()
    assert leader.proposals.flow.paced.active
    limit(sim, {"topic=T": None})
    assert not leader.proposals.flow.paced.active
    ask(path, range(50))
    sim.loop.run_for(0.2)
    assert answers(path, range(50)) == [[0]] * 50


@pytest.mark.parametrize("limits", [{"send_messages": 1_000}, None])
def test_what_waits_goes_by_the_quota_that_there_is_now(sim_with: MakeSim, limits: dict[str, int] | None) -> None:
    """Also where more comes all the time, so that the line is never empty."""
    sim = sim_with({"topic=T": {"send_messages": 1}})
    path = sim.leader().connect()
    ask(path, range(20))
    sim.loop.run_for(0.2)
    assert sum(map(len, answers(path, range(20)))) == 1
    limit(sim, {"topic=T": limits})
    ask(path, range(20, 40))
    sim.loop.run_for(0.2)
    assert answers(path, range(40)) == [[0]] * 40
    assert stored(sim) == [*range(40)]
    check_left(*sim.nodes.values())

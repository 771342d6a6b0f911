"""Levels of acknowledgement: what an answer waits for, what it changes (its time alone), what becomes of early ones."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.replication.acks.early_answer_file import LostAnswers
from cluster.replication.acks.write_reports import LEASE_MS
from cluster.runtime.peer_frames import Kind
from raftlog.types import NodeId, Role
from tests.support.sim_cluster import ClientPath, SimCluster, SimNode, codes, send_frame

OK, UNKNOWN, REFUSED, ILLEGAL = 0, 1, 14, 13
ASYNC = {"modes.flush_disk_type": "ASYNC_FLUSH"}
WEAKEST = {**ASYNC, "modes.broker_role": "ASYNC_MASTER"}
SEED = 5
POOL = {**WEAKEST, "modes.transient_store_pool_enable": True}


def level(name: str) -> str:
    return f"ACK_LEVEL\x01{name}\x02"


def ask(path: ClientPath, opaque: int, properties: str = "", body: bytes = b"x", **fields: Any) -> None:
    path.ask(send_frame(opaque, "T", body, properties=properties, **fields))


def answer(sim: SimCluster, path: ClientPath, opaque: int) -> list[int]:
    sim.loop.run_until(lambda: opaque in path.replies, 20, f"an answer to {opaque}")
    return codes(path, opaque)


def quiet(sim: SimCluster, path: ClientPath, opaque: int, seconds: float = 0.3) -> bool:
    """No answer comes."""
    sim.loop.run_for(seconds)
    return opaque not in path.replies


def visible(node: SimNode) -> int:
    topic = node.state.topics["T"]
    return sum(node.state.max_offset(topic.id, queue) for queue in range(2))


def test_leader_waits_for_the_leaders_disk_alone_and_nothing_is_visible_before_the_commit(sim_of: Any) -> None:
    sim = sim_of()
    leader = sim.leader()
    path = leader.connect()
    for follower in sim.followers():
        follower.append.hold()
    leader.append.hold()
    ask(path, 1, level("leader"))
    assert quiet(sim, path, 1)
    leader.append.silent = True
    leader.append.release()
    assert quiet(sim, path, 1), "written is not on disk"
    leader.append.speak()
    assert answer(sim, path, 1) == [OK]
    assert visible(leader) == 0
    assert leader.raw.commit_index < leader.raw.last_index
    for follower in sim.followers():
        follower.append.release()
    sim.loop.run_until(lambda: visible(leader) == 1, 5)
    sim.loop.run_for(0.2)
    assert codes(path, 1) == [OK], "answered once"
    assert leader.proposals.gate.sends.bytes == path.in_flight.bytes == 0
    assert leader.early.window_messages == 0
    sim.settle()
    sim.check_equal()


@pytest.mark.parametrize(("mode", "early"), [(WEAKEST, False), (POOL, True)])
def test_the_transient_store_pool_answers_before_the_write(sim_of: Any, mode: dict[str, Any], early: bool) -> None:
    sim = sim_of(**mode)
    leader = sim.leader()
    path = leader.connect()
    leader.append.hold()
    sim.isolate(leader)
    ask(path, 1)
    assert quiet(sim, path, 1, 0.05) is not early
    leader.append.silent = True
    leader.append.release()
    assert answer(sim, path, 1) == [OK], "written, and no sync has returned"
    assert leader.raw.persisted_index < leader.raw.last_index


def test_quorum_waits_until_a_majority_has_written(sim_of: Any) -> None:
    """No node has synced it when the answer leaves."""
    sim = sim_of(**ASYNC)
    leader, followers = sim.leader(), sim.followers()
    path = leader.connect()
    ask(path, 1)  # and the followers learn that somebody wants to know
    assert answer(sim, path, 1) == [OK]
    sim.settle()
    sim.loop.run_for(0.1)
    for node in (leader, *followers):
        node.append.silent = True
    for follower in followers:
        follower.append.hold()
    ask(path, 2)
    assert quiet(sim, path, 2)
    followers[0].append.release()
    assert answer(sim, path, 2) == [OK]
    assert visible(leader) == 1
    assert leader.early.window_messages == 1
    for node in (leader, *followers):
        node.append.release()
        node.append.speak()
    sim.settle()
    sim.check_equal()
    assert leader.early.window_messages == 0


def test_nobody_tells_what_he_writes_unless_asked_lately(sim_of: Any) -> None:
    sim = sim_of()
    leader = sim.leader()
    path, heard, hears = leader.connect(), list[int](), leader.hear()

    def on_frame(peer: NodeId, kind: int, header: list[Any], payload: bytes) -> None:
        heard.append(kind)
        hears.frame(peer, kind, header, payload)

    def told(number: int, **fields: Any) -> bool:
        heard.clear()
        ask(path, number, **fields)
        answer(sim, path, number)
        sim.loop.run_for(0.05)
        return Kind.WRITTEN in heard

    leader.hear(frame=on_frame)
    assert not told(1)
    assert told(2, properties=level("quorum"))
    assert told(3)
    sim.loop.run_for(3 * LEASE_MS / 1000)
    assert not told(4)


def test_all_waits_for_the_last_disk_and_is_unknown_if_that_takes_too_long(sim_of: Any) -> None:
    sim = sim_of(**{"modes.all_timeout_ms": 1000})
    leader, (slow, _) = sim.leader(), sim.followers()
    path = leader.connect()
    slow.append.hold()
    ask(path, 1, level("all"), key="K1")
    ask(path, 2, "", key="K2")
    assert answer(sim, path, 2) == [OK]
    assert visible(leader) == 2, "a majority has it"
    assert quiet(sim, path, 1)
    slow.append.release()
    assert answer(sim, path, 1) == [OK]
    slow.append.hold()
    ask(path, 3, level("all"), key="K3")
    assert answer(sim, path, 3) == [UNKNOWN]
    remark = path.replies[3][0][1]
    assert f"missing: node {slow.node_id}" in remark
    again = leader.connect()
    ask(again, 4, level("all"), key="K3")
    assert quiet(sim, again, 4), "a retry of it waits as well, though it is stored"
    slow.append.release()
    assert answer(sim, again, 4) == [OK]
    sim.settle()
    assert visible(leader) == 3
    assert [one.in_flight.bytes for one in (path, again)] == [0, 0]


def test_an_early_answer_that_comes_to_nothing_is_counted_and_never_taken_back(sim_of: Any) -> None:
    sim = sim_of(**{"send.deadline_ms": 20_000})
    old = sim.leader()
    path = old.connect()
    sim.isolate(old)
    ask(path, 1, level("leader"), b"early")
    ask(path, 2, "", b"strict")
    assert answer(sim, path, 1) == [OK]
    assert old.early.window_messages == 1
    new = sim.leader(besides=old)
    other = new.connect()
    ask(other, 1, "", b"kept")
    answer(sim, other, 1)
    sim.mend()
    assert answer(sim, path, 2) == [REFUSED]
    assert codes(path, 1) == [OK]
    assert old.early.ledger.lost == LostAnswers(1, 1)
    assert old.early.window_messages == 0
    sim.settle()
    sim.check_equal()
    assert old.bodies("T") == [b"kept"]
    assert old.proposals.gate.sends.bytes == path.in_flight.bytes == 0


@pytest.mark.parametrize("mode", [WEAKEST, POOL], ids=["written", "pool"])
def test_a_killed_leader_counts_what_it_had_promised_when_it_is_back(sim_of: Any, mode: dict[str, Any]) -> None:
    sim = sim_of(**mode)
    old = sim.leader()
    path = old.connect()
    ask(path, 0, "", b"safe")
    answer(sim, path, 0)
    sim.settle()
    sim.isolate(old)
    for opaque in range(1, 40):
        ask(path, opaque, "", b"early %d" % opaque)
        sim.loop.run_for(0.01)
    told = sum(codes(path, opaque) == [OK] for opaque in range(1, 40))
    window = old.early.window_messages
    assert 0 < told <= window
    assert len(old.early.ledger.undecided) <= old.config.limits.batches_inflight_max
    old.kill(power=False)
    new = sim.leader(besides=old)
    for opaque in range(10):
        other = new.connect()
        ask(other, opaque, level("quorum+fsync"), b"later %d" % opaque)
        answer(sim, other, opaque)
    sim.mend()
    old.start()
    sim.settle()
    sim.check_equal()
    assert old.early.ledger.lost.messages == told
    assert not old.early.ledger.undecided
    assert b"safe" in old.bodies("T")
    assert not any(body.startswith(b"early") for body in old.bodies("T"))


def test_what_was_answered_early_and_committed_is_not_counted_as_lost(sim_of: Any) -> None:
    sim = sim_of(**WEAKEST)
    old = sim.leader()
    path = old.connect()
    for opaque in range(5):
        ask(path, opaque, "", b"%d" % opaque)
    answer(sim, path, 4)
    sim.loop.run_for(0.005)
    old.kill(power=False)
    sim.leader(besides=old)
    old.start()
    sim.settle()
    bodies = old.bodies("T")
    assert old.early.ledger.lost.messages == 5 - len(bodies)
    assert not old.early.ledger.undecided


def test_both_variants_recover_all_that_a_killed_group_had_written(sim_of: Any) -> None:
    """Every process ends at once: what was written is there again, and the pool's answers from memory may be gone."""
    for mode in (WEAKEST, POOL):
        sim = sim_of(**mode)
        leader = sim.leader()
        path = leader.connect()
        for node in sim.running:
            node.append.silent = True
        ask(path, 1, "", b"one")
        assert answer(sim, path, 1) == [OK]
        sim.loop.run_for(0.05)  # the lanes write, and no sync is ever reported
        for node in list(sim.running):
            node.kill(power=False)
        for node in sim.nodes.values():
            node.start()
        sim.settle()
        sim.check_equal()
        assert sim.leader().bodies("T") == [b"one"]
        assert all(node.early.ledger.lost.messages == 0 for node in sim.nodes.values())


def test_a_topics_level_and_wait_false(sim_of: Any) -> None:
    sim = sim_of()
    sim.create_topic("W", attributes={"ack.level": "leader"})
    leader = sim.leader()
    sim.isolate(leader)
    path = leader.connect()
    path.ask(send_frame(1, "W", b"x"))
    ask(path, 2, "WAIT\x01false\x02")
    ask(path, 3)
    assert answer(sim, path, 1) == [OK]
    assert answer(sim, path, 2) == [OK]
    assert quiet(sim, path, 3, 0.2)
    ask(path, 4, level("most"))
    assert answer(sim, path, 4) == [ILLEGAL]
    assert "one of leader, quorum, quorum+fsync, all" in path.replies[4][0][1]


def test_a_full_leader_refuses_with_its_own_words_but_not_a_retry_of_what_it_holds(sim_of: Any) -> None:
    sim = sim_of()
    leader = sim.leader()
    path, pid = leader.connect(), b"p" * 16
    for follower in sim.followers():
        follower.append.hold()
    ask(path, 1, pid=pid, seq=1)
    sim.loop.run_for(0.05)
    leader.proposals.refuse("the disk is full: 93 per cent used")
    ask(path, 2, pid=pid, seq=2)
    assert answer(sim, path, 2) == [REFUSED]
    assert path.replies[2][0][1] == "the disk is full: 93 per cent used"
    again = leader.connect()
    ask(again, 3, pid=pid, seq=1)
    assert quiet(sim, again, 3), "that one may be stored: it is not denied"
    for follower in sim.followers():
        follower.append.release()
    assert answer(sim, again, 3) == [OK]
    leader.proposals.refuse("")
    ask(path, 4, pid=pid, seq=2)
    assert answer(sim, path, 4) == [OK]


@pytest.mark.parametrize("queued", [False, True])
def test_a_repetition_in_the_place_of_its_first_keeps_its_level(sim_of: Any, *, queued: bool) -> None:
    """Nobody had asked for a level before it."""
    sim = sim_of(**{"limits.batches_inflight_max": 1})
    leader, (one, last) = sim.leader(), sim.followers()
    first, again = leader.connect(), leader.connect()
    same: dict[str, Any] = {"pid": bytes(range(16)), "seq": 1, "low": 1}
    for follower in (one, last):
        follower.append.hold()
    if queued:
        ask(leader.connect(), 0)
        sim.loop.run_for(0.05)
        ask(first, 1, oneway=True, **same)
        first.close()
    else:
        ask(first, 1, **same)
        assert answer(sim, first, 1) == [UNKNOWN]
    ask(again, 1, level("all"), **same)
    one.append.release()
    assert quiet(sim, again, 1, 1.0)
    last.append.release()
    assert answer(sim, again, 1) == [OK]


def test_what_cannot_be_noted_waits_for_the_commit(sim_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = sim_of(**POOL)
    leader = sim.leader()
    assert leader.early.ledger is not None
    monkeypatch.setattr(leader.early.ledger, "note", lambda *_: False)
    path = leader.connect()
    for follower in sim.followers():
        follower.append.hold()
    ask(path, 1)
    assert quiet(sim, path, 1)
    for follower in sim.followers():
        follower.append.release()
    assert answer(sim, path, 1) == [OK]


def test_an_entry_of_an_earlier_term_is_not_answered_early(sim_of: Any) -> None:
    """Its place may be another entry's by now."""
    sim = sim_of()
    leader = sim.leader()
    path = leader.connect()
    for node in sim.running:
        node.append.hold()
    ask(path, 1, level("leader"))
    sim.loop.run_until(lambda: leader.undecided, 5)
    (pending,) = leader.undecided.values()
    pending.id = pending.id._replace(term=pending.id.term - 1)
    leader.append.release()
    sim.loop.run_until(lambda: leader.raw.persisted_index >= pending.id.index, 5)
    leader.early.advance(leader.raw)
    assert quiet(sim, path, 1)


def test_a_deposed_leader_answers_nothing_early(sim_of: Any) -> None:
    sim = sim_of()
    old = sim.leader()
    path = old.connect()
    old.append.hold()
    sim.isolate(old)
    ask(path, 1, level("leader"))
    sim.loop.run_until(lambda: old.raw.role is not Role.LEADER, 10)
    old.append.release()
    assert quiet(sim, path, 1, 0.5)
    assert old.early.window_messages == 0

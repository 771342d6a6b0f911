"""The end of proposals: settled by (term, index), once; and what must wait until a leader may take writes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from cluster.replication import pending_requests, proposals
from cluster.replication.outcome import Outcome, ProposeResult
from raftlog.types import EntryId, EntryType, Role
from statemachine.commands import CommandResult
from statemachine.consuming.groups import PutGroup, Subscribe
from statemachine.removal_slices import DeleteTopic
from tests.support.sim_cluster import ClientPath, SimCluster, SimNode, codes, send_frame

OK, UNKNOWN, REFUSED, NO_TOPIC = 0, 1, 14, 17
SEED = 11


def hold_disks(nodes: list[SimNode]) -> None:
    for node in nodes:
        node.append.hold()


def release_disks(nodes: list[SimNode]) -> None:
    for node in nodes:
        node.append.release()


def ask(path: ClientPath, *bodies: bytes, first: int = 0, **fields: Any) -> None:
    for at, body in enumerate(bodies):
        path.ask(send_frame(first + at, "T", body, **fields))


def answered(sim: SimCluster, path: ClientPath, count: int, limit_s: float = 20) -> list[list[int]]:
    sim.loop.run_until(lambda: len(path.replies) == count, limit_s, f"{count} answers")
    return [codes(path, opaque) for opaque in sorted(path.replies)]


def stored(sim: SimCluster) -> list[bytes]:
    sim.heal()
    sim.settle()
    sim.check_equal()
    (bodies, *others) = [node.bodies("T") for node in sim.running]
    assert all(other == bodies for other in others)
    return bodies


def lose_leadership(sim: SimCluster, node: SimNode) -> None:
    """Cuts the node off until it has stepped down."""
    sim.isolate(node)
    sim.loop.run_until(lambda: node.raw.role is not Role.LEADER, 10, "the leader steps down")


def test_committed_is_answered_once(sim_of: Any) -> None:
    sim = sim_of()
    path = sim.leader().connect()
    ask(path, b"a", b"b", b"c")
    assert answered(sim, path, 3) == [[OK], [OK], [OK]]
    assert stored(sim) == [b"a", b"b", b"c"]


def test_a_replaced_entry_is_refused(sim_of: Any) -> None:
    sim = sim_of(**{"send.deadline_ms": 20_000})
    old = sim.leader()
    path = old.connect()
    sim.isolate(old)
    ask(path, b"lost")
    results = sim.propose(old, PutGroup({"name": "lost"}, False))
    sim.loop.run_for(0.01)
    new = sim.leader(besides=old)
    other = new.connect()
    ask(other, b"kept")
    assert answered(sim, other, 1) == [[OK]]
    sim.mend()
    assert answered(sim, path, 1) == [[REFUSED]]
    assert "nothing was stored" in path.replies[0][0][1]
    assert [result.outcome for result in results] == [Outcome.FAIL]
    assert stored(sim) == [b"kept"]
    assert "lost" not in new.state.groups


def test_undecided_at_the_deadline_is_unknown_and_not_answered_again(sim_of: Any) -> None:
    sim = sim_of()
    leader, followers = sim.leader(), sim.followers()
    hold_disks(followers)
    path = leader.connect()
    ask(path, b"slow")
    results: list[ProposeResult] = sim.propose(leader, PutGroup({"name": "slow"}, False))
    assert answered(sim, path, 1) == [[UNKNOWN]]
    assert path.replies[0][0][1].startswith("[UNKNOWN]")
    sim.loop.run_until(lambda: results, 1)
    assert leader.proposals.gate.sends.bytes > 0, "it counts until the log decides"
    release_disks(followers)
    assert stored(sim) == [b"slow"]
    assert codes(path, 0) == [UNKNOWN]
    assert [result.outcome for result in results] == [Outcome.UNKNOWN]
    assert path.in_flight.bytes == 0
    assert leader.proposals.gate.sends.bytes == 0


def test_a_retry_that_finds_its_entry_undecided_has_a_deadline_of_its_own(sim_of: Any) -> None:
    sim = sim_of()
    leader, followers = sim.leader(), sim.followers()
    hold_disks(followers)
    path = leader.connect()
    ask(path, b"again", b"beside", key="K")
    answered(sim, path, 2)
    retry = leader.connect()
    ask(retry, b"again", key="K", first=7)
    assert answered(sim, retry, 1) == [[UNKNOWN]]
    last = leader.connect()
    ask(last, b"again", key="K", first=9)
    sim.loop.run_for(0.2)
    release_disks(followers)
    assert answered(sim, last, 1) == [[OK]]
    assert sorted(stored(sim)) == [b"again", b"beside"]
    assert codes(path, 0) + codes(path, 1) + codes(retry, 7) == [UNKNOWN] * 3
    assert [one.in_flight.bytes for one in (path, retry, last)] == [0, 0, 0]


def test_each_send_of_an_entry_has_a_deadline_of_its_own(sim_of: Any) -> None:
    """In an overload the fair order puts what came just now beside what has waited for seconds."""
    sim = sim_of()
    leader, followers = sim.leader(), sim.followers()
    hold_disks(followers)
    path = leader.connect()
    for at, pause_s in enumerate((0.1, 0.1, 1.8, 0.5)):  # the first two fill the window
        ask(path, b"%d" % at, first=at)
        sim.loop.run_for(pause_s)
    ended = leader.raw.last_index
    release_disks(followers)
    sim.loop.run_until(lambda: leader.raw.last_index > ended, 1, "both share an entry", every_s=0.0001)
    hold_disks(followers)
    assert leader.raw.last_index == ended + 1
    sim.loop.run_until(lambda: 2 in path.replies, 5, "the older one is told")
    sim.loop.run_for(1)
    assert 3 not in path.replies, "the other came 1.8 s later"
    release_disks(followers)
    assert answered(sim, path, 4) == [[OK], [OK], [UNKNOWN], [OK]]
    assert stored(sim) == [b"0", b"1", b"2", b"3"]
    assert path.in_flight.bytes == leader.proposals.gate.sends.bytes == 0


def test_each_call_of_an_entry_has_a_deadline_of_its_own() -> None:
    entry = pending_requests.PendingEntry(EntryId(1, 1), 1000, 3000)
    told: list[tuple[int, Outcome]] = []

    def call(came_ms: int) -> pending_requests.PendingCommands:
        return pending_requests.PendingCommands([], b"", lambda result: told.append((came_ms, result.outcome)), came_ms)

    entry.calls = [call(1000), call(2500)]
    assert pending_requests.overdue(entry, 3999) == ([], [], 1000)
    assert pending_requests.overdue(entry, 4000) == ([], entry.calls[:1], 2500)
    pending_requests.tell_calls(entry, entry.calls[:1], Outcome.UNKNOWN, "")
    assert pending_requests.overdue(entry, 5000) == ([], [], 2500)
    assert pending_requests.overdue(entry, 5500) == ([], entry.calls[1:], None)
    pending_requests.tell_calls(entry, entry.calls, Outcome.FAIL, "")
    assert told == [(1000, Outcome.UNKNOWN), (2500, Outcome.FAIL)]


def test_our_client_repeats_on_the_same_connection(sim_of: Any) -> None:
    sim = sim_of()
    leader, followers = sim.leader(), sim.followers()
    hold_disks(followers)
    path = leader.connect()
    ask(path, b"x", pid=bytes(16), seq=1, low=1)
    sim.loop.run_for(0.1)
    ask(path, b"x", pid=bytes(16), seq=1, low=1, first=1)
    release_disks(followers)
    assert answered(sim, path, 2) == [[OK], [OK]]
    assert path.in_flight.bytes == leader.proposals.gate.sends.bytes == 0
    assert stored(sim) == [b"x"]


def test_sends_that_were_not_proposed_go_to_the_new_leader(sim_of: Any) -> None:
    sim = sim_of(**{"limits.batches_inflight_max": 1, "send.deadline_ms": 20_000, "send.leader_wait_ms": 20_000})
    old = sim.leader()
    hold_disks(sim.followers())
    path = old.connect()
    ask(path, b"proposed")
    sim.loop.run_for(0.01)
    ask(path, b"queued", b"queued too", first=1, serialize_type=1)
    lose_leadership(sim, old)
    assert codes(path, 1) == []
    sim.heal()
    assert answered(sim, path, 3)[1:] == [[OK], [OK]]
    bodies = stored(sim)
    assert sorted(bodies)[-2:] == [b"queued", b"queued too"]
    assert len(bodies) == len(set(bodies))


def test_rerouted_sends_are_taken_by_the_node_itself_when_it_leads_again(sim_of: Any) -> None:
    sim = sim_of(**{"limits.batches_inflight_max": 1, "send.deadline_ms": 20_000, "send.leader_wait_ms": 20_000})
    old = sim.leader()
    others = sim.followers()
    path = old.connect()
    sim.isolate(old)
    ask(path, b"proposed")
    sim.loop.run_for(0.01)
    ask(path, b"queued", first=1)
    for node in others:
        node.kill(power=False)
    lose_leadership(sim, old)
    sim.mend()
    others[0].start()
    sim.loop.run_until(lambda: old.proposals.open or others[0].proposals.open, 20)
    assert sim.find_leader() is old, "it has the longer log"
    assert answered(sim, path, 2) == [[OK], [OK]]
    assert stored(sim) == [b"proposed", b"queued"]


def test_waiters_of_an_older_term_are_settled_when_the_node_leads_again(sim_of: Any) -> None:
    """Eight entries of term t from n to n+7; another leader's log ends before that; then the node leads again."""
    sim = sim_of(**{"send.deadline_ms": 60_000, "limits.batches_inflight_max": 8})
    old = sim.leader()
    path = old.connect()
    sim.isolate(old)
    for at in range(8):
        path.ask(send_frame(at, "T", b"lost %d " % at + bytes(proposals.LARGE_BATCH_BYTES)))
        sim.loop.run_for(0.01)
    assert len(old.undecided) == 8
    last = max(old.undecided)
    new = sim.leader(besides=old)
    sim.mend()
    sim.loop.run_until(lambda: old.raw.applied_index == new.raw.applied_index, 10)
    sim.loop.run_for(0.01)
    assert old.raw.applied_index < last
    assert [codes(path, at) for at in range(8)] == [[REFUSED]] * 8, "also those whose index no entry has reached"
    assert not old.undecided
    new.transfer(old.node_id)
    sim.loop.run_until(lambda: old.proposals.open, 10, "the old leader leads again")
    fresh = old.connect()
    ask(fresh, b"fresh")
    assert answered(sim, fresh, 1) == [[OK]]
    assert stored(sim) == [b"fresh"]
    assert old.proposals.gate.sends.bytes == 0


def test_writes_are_closed_until_the_no_op_is_applied(sim_of: Any) -> None:
    sim = sim_of(**{"send.deadline_ms": 20_000, "send.leader_wait_ms": 20_000})
    old, target = sim.leader(), sim.followers()[0]
    target.apply.hold()
    old.transfer(target.node_id)
    sim.loop.run_until(lambda: target.raw.role is Role.LEADER, 10)
    path = target.connect()
    ask(path, b"early")
    results = sim.propose(target, PutGroup({"name": "g"}, False))
    sim.loop.run_for(1.0)
    assert target.raw.role is Role.LEADER
    assert not target.proposals.open
    assert not path.replies
    assert results[0].outcome is Outcome.FAIL
    target.apply.release()
    assert answered(sim, path, 1) == [[OK]]
    assert stored(sim) == [b"early"]


def test_an_older_no_op_does_not_open_writes(sim_of: Any) -> None:
    """The new leader still has to apply an entry, and the no-op, of the term before."""
    sim = sim_of()
    old, (target, third) = sim.leader(), sim.followers()
    target.apply.hold()
    for source, to in ((old, third), (third, target)):
        ask(source.connect(), b"of %d" % source.node_id)
        sim.loop.run_for(0.1)
        source.transfer(to.node_id)
        sim.loop.run_until(lambda to=to: to.raw.role is Role.LEADER, 10)
    sim.loop.run_until(lambda: target.raw.commit_index == target.raw.last_index, 5)
    backlog = target.apply.held
    own = next(at for at, job in enumerate(backlog) if job[-1].term == target.raw.term)
    assert any(entry.type == EntryType.NOOP for job in backlog[:own] for entry in job)
    before = backlog[own][0].index - 1
    target.apply.release(own)
    sim.loop.run_until(lambda: target.raw.applied_index == before, 1)
    sim.loop.run_for(0.2)
    assert target.state.applied.index == before
    assert not target.proposals.open
    target.apply.release()
    sim.loop.run_until(lambda: target.proposals.open, 1)
    assert sorted(stored(sim)) == sorted(b"of %d" % node.node_id for node in (old, third))


def test_a_topic_change_is_a_barrier(sim_of: Any) -> None:
    """Sends gathered before a delete go before it, whatever the window says; later ones find no topic."""
    sim = sim_of(**{"limits.batches_inflight_max": 1, "topics.auto_create": False, "send.deadline_ms": 20_000})
    leader, followers = sim.leader(), sim.followers()
    hold_disks(followers)
    path = leader.connect()
    ask(path, b"in flight")
    sim.loop.run_for(0.01)
    ask(path, b"gathered", first=1)
    results = sim.propose(leader, DeleteTopic("T"))
    ask(path, b"too late", first=2)
    sim.loop.run_for(0.1)
    assert not path.replies
    release_disks(followers)
    assert answered(sim, path, 3) == [[OK], [OK], [NO_TOPIC]]
    assert results[0].results[0].ok
    sim.settle()
    sim.check_equal()
    assert all(node.failure is None and "T" not in node.state.topics for node in sim.running)


@pytest.mark.parametrize(("most", "small"), [(1, 1), (2, 2), (4, 2)])
def test_commands_do_not_keep_sends_out(sim_of: Any, most: int, small: int) -> None:
    """There may be a command after the other: as many entries of sends are under way as without them."""
    sim = sim_of(**{"limits.batches_inflight_max": most})
    for name in ("U1", "U2", "U3"):
        sim.create_topic(name)
    leader, pending = sim.leader(), sim.leader().undecided
    hold_disks(sim.followers())
    for name in ("U1", "U2", "U3"):
        sim.propose(leader, DeleteTopic(name))
        sim.loop.run_for(0.01)
    path = leader.connect()
    for number, body in enumerate((b"a", b"b", b"c")):
        ask(path, body, first=number)
        sim.loop.run_for(0.01)
    assert [bool(entry.sends) for entry in pending.values()] == [False] * 3 + [True] * small
    assert len(leader.proposals.flow.queue) == 3 - small, "the rest waits"
    release_disks(sim.followers())
    assert answered(sim, path, 3) == [[OK]] * 3
    assert stored(sim) == [b"a", b"b", b"c"]


def test_a_barrier_takes_its_own_topic_alone_and_a_few_entries_a_turn(sim_of: Any) -> None:
    sim = sim_of(
        **{
            "limits.batches_inflight_max": 1,
            "limits.batch_messages_max": 4,
            "topics.auto_create": False,
            "send.deadline_ms": 20_000,
        }
    )
    sim.create_topic("U")
    leader, followers = sim.leader(), sim.followers()
    hold_disks(followers)
    path, beside = leader.connect(), leader.connect()
    ask(path, b"in flight")
    sim.loop.run_for(0.01)
    for at in range(1, 101):
        ask(path, b"%d" % at, first=at)
        beside.ask(send_frame(at, "U", b"%d" % at))
    pending, proposed = leader.undecided, [len(leader.undecided)]
    sim.loop.after_event = lambda process: proposed.append(sum([not entry.calls for entry in pending.values()]))
    results = sim.propose(leader, DeleteTopic("T"))
    sim.loop.turn_until(lambda: any(entry.calls for entry in pending.values()))
    sim.loop.after_event = None
    assert max(after - before for before, after in pairwise(proposed)) == proposals.CHECKED_PER_TURN
    assert proposed[-1] - proposed[0] == 25, "as many entries as its sends need"
    assert [send.slot.name for send in leader.proposals.flow.queue] == ["U"] * 100
    ask(path, b"too late", first=101)
    release_disks(followers)
    assert answered(sim, path, 102) == [[OK]] * 101 + [[NO_TOPIC]]
    assert answered(sim, beside, 100) == [[OK]] * 100
    assert results[0].results[0].ok
    sim.settle()
    sim.check_equal()


def test_a_topic_made_anew_starts_at_offset_0(sim_of: Any) -> None:
    sim = sim_of(**{"send.deadline_ms": 20_000})
    leader = sim.leader()
    path = leader.connect()
    ask(path, b"old")
    sim.propose(leader, DeleteTopic("T"))
    ask(path, b"new", first=1)
    assert answered(sim, path, 2) == [[OK], [OK]]
    assert b'"queueOffset":"0"' in path.replies[1][0][2]
    assert stored(sim) == [b"new"]


def test_reads_fail_on_step_down(sim_of: Any) -> None:
    sim = sim_of()
    leader = sim.leader()
    sim.isolate(leader)
    answers: list[bool] = []
    leader.running.inbox.read_index(answers.append)
    sim.loop.run_for(0.3)
    assert not answers, "nobody has confirmed that it still leads"
    lose_leadership(sim, leader)
    assert answers == [False]
    leader.running.inbox.read_index(answers.append)
    sim.loop.run_for(0.01)
    assert answers == [False, False]


def test_reads_wait_for_apply(sim_of: Any) -> None:
    sim = sim_of()
    leader = sim.leader()
    leader.apply.hold()
    path = leader.connect()
    ask(path, b"a")
    sim.loop.run_for(0.1)
    wanted = leader.raw.commit_index
    assert wanted == leader.raw.last_index > leader.raw.applied_index
    seen: list[tuple[bool, int]] = []
    for _ in range(3):
        leader.running.inbox.read_index(lambda ok: seen.append((ok, leader.raw.applied_index)))
    sim.loop.run_for(0.5)
    assert not seen
    leader.apply.release()
    sim.loop.run_until(lambda: len(seen) == 3, 5)
    assert all(ok and applied >= wanted for ok, applied in seen)


def test_gathered_commands_fit_into_entries(sim_of: Any) -> None:
    """40 MB of commands asked for at once: more than a frame holds, so more than one entry."""
    sim = sim_of()
    leader = sim.leader()
    before = leader.raw.last_index
    many = [sim.propose(leader, PutGroup({"name": f"g{at}", "note": "x" * 4_000_000}, False)) for at in range(10)]
    sim.loop.run_until(lambda: all(many), 20)
    assert {results[0].outcome for results in many} == {Outcome.OK}
    assert leader.raw.last_index - before == 10


@pytest.mark.parametrize(
    ("theirs", "leads", "outcome"),
    [
        (Outcome.OK, True, Outcome.OK),
        (Outcome.OK, False, Outcome.UNKNOWN),
        (Outcome.FAIL, True, Outcome.FAIL),
        (Outcome.UNKNOWN, True, Outcome.UNKNOWN),
    ],
)
def test_what_is_half_done_is_not_told_as_failed(theirs: Outcome, leads: bool, outcome: Outcome) -> None:
    """A node of another group than the first has its command and one that the first group decides. Once that is done,
    the rest may be refused, because this node no longer leads; but it was not nothing."""
    with SimCluster(SEED, group=2) as sim:
        leader, told = sim.leader(), list[ProposeResult]()
        decided: list[Any] = []
        leader.proposals.commands.decide_elsewhere(lambda commands, done, author: decided.append((commands, done)))
        subscribe = Subscribe("g", [])
        leader.run(leader.proposals.submit_commands, [subscribe, PutGroup({"name": "g"}, True)], told.append)
        ((commands, done),) = decided
        assert [type(command) for command in commands] == [PutGroup]
        if not leads:
            lose_leadership(sim, leader)
        leader.run(done, ProposeResult(theirs, [CommandResult(True, "", "theirs")], None, "why"))
        sim.loop.run_until(lambda: told, 10, "the caller is told")
        assert told[0].outcome is outcome
        if outcome is Outcome.OK:
            assert [result.value for result in told[0].results][1] == "theirs"
        if not leads:
            assert "group 1 has done its part" in told[0].remark

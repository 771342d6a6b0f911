"""Commits of offsets behind a node that does not lead keep their order, and are carried out once or not at all."""

from __future__ import annotations

from typing import Any

from cluster.runtime.peer_frames import Kind
from raftlog.types import NodeId
from raftmq_wire.codec import encode_frame
from statemachine.consuming.groups import PutGroup
from tests.cluster.sim.test_sim_offsets import answered, commit, offset, settled_offset, sim  # noqa: F401 - a fixture
from tests.support.sim_cluster import ClientPath, SimCluster, SimNode, codes

SEED = 22
OK, UNKNOWN, REFUSED = 0, 1, 14


def test_order_through_a_follower(sim: SimCluster) -> None:  # noqa: F811
    path = sim.followers()[0].connect()
    for at in range(1, 8):
        path.ask(commit(at, 10 * at, oneway=at % 3 == 0))
    path.ask(encode_frame(14, 8, 0, ext={"consumerGroup": "g", "topic": "T", "queueId": "0"}))
    assert [answered(sim, path, at) for at in (1, 2, 4, 5, 7, 8)] == [OK] * 6
    assert b'"70"' in path.replies[8][0][2]
    path.ask(commit(9, 5, oneway=True))
    assert settled_offset(sim) == 5, "a later one may move back"


def on_its_way(sim: SimCluster) -> tuple[SimNode, SimNode, ClientPath]:  # noqa: F811
    """The leader, a follower, and a client of the follower whose commit is on its way to the leader for good."""
    leader, through = sim.leader(), sim.followers()[0]
    path = through.connect()
    with through.mute():
        path.ask(commit(1, 7))
    return leader, through, path


def test_handed_back_and_overtaken_is_refused(
    sim: SimCluster,  # noqa: F811
) -> None:
    """The leader did nothing with it; meanwhile a later one of the connection has gone."""
    leader, through, path = on_its_way(sim)
    path.ask(commit(2, 9, oneway=True))
    (number,) = through.forwarded
    through.forwarder.on_frame(leader.node_id, Kind.FORWARD_REPLY, [number, False], b"")
    assert answered(sim, path, 1) == REFUSED
    assert "nothing was done" in path.replies[1][0][1]
    assert settled_offset(sim) == 9


def test_what_waits_for_a_leader_holds_up_what_comes_later(
    sim: SimCluster,  # noqa: F811
) -> None:
    leader, through, path = on_its_way(sim)
    (number,) = through.forwarded
    through.forwarder.on_frame(leader.node_id, Kind.FORWARD_REPLY, [number, False], b"")
    path.ask(commit(2, 9, oneway=True))
    path.ask(commit(3, 11, oneway=True))
    assert answered(sim, path, 1) == OK
    assert settled_offset(sim) == 11


def test_a_commit_whose_leader_is_gone_is_unknown_and_not_done_again(sim: SimCluster) -> None:  # noqa: F811
    leader, through = sim.leader(), sim.followers()[0]
    sim.cut(leader, through)
    path = through.connect()
    path.ask(commit(1, 7))
    sim.loop.run_until(lambda: offset(leader) == 7, 5, "the leader has it")
    leader.kill(power=False)
    sim.reset(leader, through)
    assert answered(sim, path, 1) == UNKNOWN
    assert path.replies[1][0][1].startswith("[UNKNOWN]")
    other = sim.leader(besides=leader).connect()
    other.ask(commit(1, 9))
    assert answered(sim, other, 1) == OK
    assert settled_offset(sim) == 9
    assert through.forwarder.gate.forwarded.bytes == 0
    assert path.in_flight.bytes == 0


def test_a_node_that_leads_now_does_not_do_again_what_it_had_passed_on(sim: SimCluster) -> None:  # noqa: F811
    leader, through = sim.leader(), sim.followers()[0]
    sim.cut(through, leader)  # the request is lost on its way
    path = through.connect()
    path.ask(commit(1, 7))
    sim.loop.run_for(0.01)
    sim.mend()
    leader.transfer(through.node_id)
    sim.loop.run_until(lambda: through.proposals.open, 10)
    path.ask(commit(2, 9))
    assert answered(sim, path, 2) == OK
    assert answered(sim, path, 1) == UNKNOWN
    assert settled_offset(sim) == 9


def test_what_came_before_writes_were_open_goes_first(sim: SimCluster) -> None:  # noqa: F811
    leader, follower = sim.leader(), sim.followers()[0]
    sim.begin_term(leader)
    path = follower.connect()
    path.ask(commit(1, 7))
    sim.loop.run_until(lambda: leader.forwarder.gate.early.requests, 1)

    def come_at_once() -> None:
        header = [78, *path.peer_address, path.listener, None, leader.raw.term, 0]
        leader.forwarder.on_frame(follower.node_id, Kind.FORWARD, header, commit(2, 9, oneway=True)[4:])

    leader.proposals.opened.add(come_at_once)
    leader.apply.release()
    assert settled_offset(sim) == 9


def test_what_was_held_goes_before_what_comes_when_writes_are_open(sim: SimCluster) -> None:  # noqa: F811
    leader = sim.leader()
    sim.begin_term(leader)
    path = leader.connect()
    path.ask(commit(1, 7))
    leader.proposals.opened.add(lambda: path.ask(commit(2, 9)))
    leader.apply.release()
    assert [answered(sim, path, at) for at in (1, 2)] == [OK, OK]
    assert settled_offset(sim) == 9


def test_random_orders_through_one_connection(sim_of: Any) -> None:
    """Nodes die, links break, leaders change: what is stored in the end was not sent before what was acknowledged."""
    made: SimCluster = sim_of()
    rng, loop = made.rng, made.loop
    results = made.propose(made.leader(), PutGroup({"name": "g"}, False))
    loop.run_until(lambda: results, 5)
    value = 0
    for _ in range(12):
        path = rng.choice(made.running).connect()
        first = value + 1
        for _ in range(30):
            value += 1
            path.ask(commit(value, value, oneway=rng.random() < 0.5))
            loop.run_for(rng.uniform(0, 0.05))
            leader = made.find_leader()
            chance = rng.random()
            if leader is not None and chance < 0.05:
                leader.transfer(NodeId(rng.choice([1, 2, 3])))
            elif leader is not None and chance < 0.1:
                made.isolate(leader)
            elif chance < 0.2:
                made.mend()
        made.heal()
        loop.run_for(4.0)
        acked = max([at for at in range(first, value + 1) if OK in codes(path, at)], default=0)
        made.settle()
        found = offset(made.running[0]) or 0
        assert found >= acked, f"{found} is stored, {acked} was acknowledged"
        path.close()

"""Sends that wait for their entry are taken back when their client is gone, or has lost the right to send."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.runtime.peer_frames import Kind
from raftmq_wire.codes import ResponseCode
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import OWNERS_LEVEL
from tests.cluster.sim.test_sim_costly import left_in_memory
from tests.cluster.sim.test_sim_proposals import OK, answered, ask, hold_disks, release_disks, stored
from tests.support.sim_cluster import ClientPath, SimCluster, SimNode, codes
from tests.support.sim_users import OPERATOR, ROOT, SHOP, begin, send, with_key

SEED = 61
WINDOW: dict[str, Any] = {"limits.batches_inflight_max": 1}
PID = b"\x0c" * 16
DENIED = ResponseCode.NO_PERMISSION


@pytest.fixture
def sim(sim_of: Callable[..., SimCluster]) -> Iterator[SimCluster]:
    """Nothing is left in memory of what was forwarded."""
    before = left_in_memory()
    made = sim_of(**WINDOW)
    made.propose(made.leader(), Finalize(OWNERS_LEVEL))
    made.loop.run_until(lambda: all(node.state.level >= OWNERS_LEVEL for node in made.running), 10, "the level")
    yield made
    assert left_in_memory() == before


@pytest.fixture(params=["leader", "follower"])
def node(request: pytest.FixtureRequest, sim: SimCluster) -> SimNode:
    """The node with the connections."""
    return sim.leader() if request.param == "leader" else sim.followers()[0]


def in_the_way(sim: SimCluster) -> ClientPath:
    """Sends a message whose entry no follower stores, so that what comes then waits for the next entry."""
    hold_disks(sim.followers())
    path = sim.leader().connect()
    ask(path, b"first")
    sim.loop.run_for(0.01)
    return path


def waiting(sim: SimCluster) -> list[bytes]:
    return [send.body for send in sim.leader().proposals.flow.queue]


def go_on(sim: SimCluster) -> list[bytes]:
    """Lets the log go on. Returns what is stored in the end; nothing is left in any account."""
    release_disks(sim.followers())
    found = stored(sim)
    assert not any(each.proposals.gate.left() for each in sim.running)
    return found


def test_what_a_closed_connection_has_sent_is_taken_back(sim: SimCluster, node: SimNode) -> None:
    in_the_way(sim)
    gone, stays = node.connect(), node.connect(4001)
    ask(gone, b"a", b"b")
    ask(stays, b"c")
    ask(gone, b"quiet", oneway=True, first=7)
    sim.loop.run_until(lambda: len(waiting(sim)) == 4, 1)
    gone.close()
    sim.loop.run_until(lambda: len(waiting(sim)) == 2, 0.5, "those that wait for an answer go")
    assert sorted(go_on(sim)) == [b"c", b"first", b"quiet"]
    assert answered(sim, stays, 1) == [[OK]]


@pytest.mark.parametrize("again", ["before the look", "after it"])
@pytest.mark.parametrize("key", ["", "K"])
def test_the_repetition_of_one_that_was_taken_back_is_stored_once(
    sim: SimCluster, node: SimNode, again: str, key: str
) -> None:
    in_the_way(sim)
    first, second = node.connect(), node.connect(4001)
    identity = {"key": key} if key else {"pid": PID, "seq": 1, "low": 1}
    ask(first, b"m", **identity)
    sim.loop.run_until(lambda: len(waiting(sim)) == 1, 1)
    if again == "before the look":
        ask(second, b"m", **identity)
        first.close()
        sim.loop.run_for(0.05)
    else:
        first.close()
        sim.loop.run_until(lambda: not waiting(sim), 1)
        ask(second, b"m", **identity)
    if key and again == "before the look":  # nothing says that it is a repetition: the first is not over
        assert sorted(go_on(sim)) == [b"first", b"m"]
    else:
        assert go_on(sim) == [b"first", b"m"]
    assert answered(sim, second, 1) == [[OK]]


def test_what_a_node_holds_for_a_closed_connection_goes_nowhere(sim: SimCluster) -> None:
    through = sim.followers()[0]
    gone, stays = through.connect(), through.connect(4001)
    with sim.unlinked(through, sim.leader()):
        ask(gone, b"a")
        ask(gone, b"quiet", oneway=True, first=5)
        ask(stays, b"b")
        gone.close()
        sim.loop.run_for(0.05)
    assert sorted(go_on(sim)) == [b"b", b"quiet"]
    assert answered(sim, stays, 1) == [[OK]]


@pytest.mark.parametrize("how", ["handed back", "connection lost"])
def test_what_a_leader_had_for_a_client_that_is_gone_is_not_passed_on_again(sim: SimCluster, how: str) -> None:
    """Seed 946000080: of three sends the third came back after the connection had ended, and went to the next leader;
    the first two came behind it, over their client's next connection."""
    leader, through = sim.leader(), sim.followers()[0]
    gone, stays = through.connect(), through.connect(4001)
    with through.mute():
        ask(gone, b"a", pid=PID, seq=3, low=1)
        ask(stays, b"b")
        forwarded = list(through.forwarded)
        assert len(forwarded) == 2
        gone.close()
        sim.loop.run_for(0.05)
    if how == "handed back":
        for number in forwarded:
            through.run(through.forwarder.on_frame, leader.node_id, Kind.FORWARD_REPLY, [number, False], b"")
    else:
        through.run(through.forwarder.peer_closed, leader.node_id)
    sim.loop.run_for(0.1)
    again = leader.connect()
    ask(again, b"one", pid=PID, seq=1, low=1)
    ask(again, b"a", first=2, pid=PID, seq=3, low=1)
    found = go_on(sim)
    assert sorted(found) == [b"a", b"b", b"one"]
    assert found.index(b"one") < found.index(b"a")
    assert answered(sim, stays, 1) == [[OK]]


def test_the_repetition_of_one_that_is_not_passed_on_again_is_recognised(sim: SimCluster) -> None:
    """The leader has stored the first, and its answer was lost."""
    in_the_way(sim)
    leader, through = sim.leader(), sim.followers()[0]
    gone, stays = through.connect(), through.connect(4001)
    ask(gone, b"m", key="K")
    sim.loop.run_until(lambda: waiting(sim) == [b"m"], 1)
    gone.close()
    through.run(through.forwarder.peer_closed, leader.node_id)
    through.run(through.forwarder.pump)
    sim.loop.turn_until(lambda: not through.forwarded)
    assert not through.forwarded
    sim.loop.run_for(0.05)
    ask(stays, b"m", key="K")
    assert go_on(sim) == [b"first", b"m"]
    assert answered(sim, stays, 1) == [[OK]]


def test_all_that_a_client_behind_another_node_has_sent_goes_together(sim: SimCluster) -> None:
    """Seed 970000031: the leader heard that nobody waits for the first send any more, then came both once more over
    their client's next connection, and then that nobody waits for the second: that one stayed, before the first."""
    in_the_way(sim)
    leader, through = sim.leader(), sim.followers()[0]
    gone, again = through.connect(), leader.connect()
    for number, body in enumerate((b"a", b"b"), 1):
        ask(gone, body, first=number, pid=PID, seq=number, low=1)
    sim.loop.run_until(lambda: waiting(sim) == [b"a", b"b"], 1)
    forwarded = list(through.forwarded)
    with through.mute():
        gone.close()
        sim.loop.run_for(0.02)
    leader.run(leader.forwarder.on_frame, through.node_id, Kind.FORWARD, forwarded[:1], b"")
    sim.loop.run_for(0.01)
    for number, body in enumerate((b"a", b"b"), 1):
        ask(again, body, first=number, pid=PID, seq=number, low=1)
    leader.run(leader.forwarder.on_frame, through.node_id, Kind.FORWARD, forwarded[1:], b"")
    assert go_on(sim) == [b"first", b"a", b"b"]
    assert answered(sim, again, 2) == [[OK], [OK]]


def test_a_lost_connection_between_nodes_takes_back_nothing(sim: SimCluster) -> None:
    """The client is still there, and its node forwards its send once more."""
    in_the_way(sim)
    leader, through = sim.leader(), sim.followers()[0]
    path = through.connect()
    ask(path, b"a")
    sim.loop.run_until(lambda: waiting(sim) == [b"a"], 1)
    leader.run(lambda: leader.forwarder.peer_closed(through.node_id))
    sim.loop.run_for(0.05)
    assert waiting(sim) == [b"a"]
    assert sorted(go_on(sim)) == [b"a", b"first"]
    assert answered(sim, path, 1) == [[OK]]


def test_what_is_proposed_is_left_to_the_log(sim: SimCluster, node: SimNode) -> None:
    hold_disks(sim.followers())
    path = node.connect()
    ask(path, b"a")
    sim.loop.run_until(lambda: sim.leader().undecided, 1)
    path.close()
    sim.loop.run_for(0.1)
    assert go_on(sim) == [b"a"]


# --- rights ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def owned(tmp_path: Path) -> Iterator[SimCluster]:
    before = left_in_memory()
    with with_key(tmp_path, **WINDOW) as made:
        made.create_topic("T")
        yield made
        assert left_in_memory() == before


@pytest.mark.parametrize("place", ["leader", "follower"])
@pytest.mark.parametrize(
    ("mode", "change", "arguments"),
    [
        ("enforce", "remove_rules", (None, None)),
        ("enforce", "remove", ()),
        ("observe", "remove_rules", (None, None)),
    ],
)
def test_what_waits_is_judged_again_when_a_right_is_taken_away(
    owned: SimCluster, mode: str, place: str, change: str, arguments: tuple[Any, ...]
) -> None:
    sim = owned
    begin(sim, mode, OWNERS_LEVEL)
    node = sim.leader() if place == "leader" else sim.followers()[0]
    hold_disks(sim.followers())
    path = sim.leader().connect()
    path.ask(send(ROOT, 1, body=b"first"))
    sim.loop.run_for(0.05)
    path, twin, other = (node.connect() for _ in range(3))
    for each in (path, twin):
        each.ask(send(SHOP, 1, body=b"shop", session=True))
    other.ask(send(ROOT, 1, body=b"root"))
    sim.loop.run_until(lambda: sorted(waiting(sim)) == [b"root", b"shop"], 1)
    sim.loop.run_until(lambda: sim.leader().proposals.gate.clients.requests == 4, 1, "the repetition waits too")
    leader, told = sim.leader(), list[Any]()
    ask_for = getattr(leader.running.serving.broker.user_admin, change)
    leader.run(lambda: ask_for(OPERATOR, "shop", *arguments, told.append))
    sim.loop.run_for(0.05)
    release_disks(sim.followers())
    sim.loop.run_until(lambda: told and path.replies and other.replies, 5, "answers")
    assert codes(other, 1) == [OK]
    denied = mode == "enforce"
    sim.loop.run_until(lambda: twin.replies, 5, "the repetition is answered")
    assert codes(path, 1) == codes(twin, 1) == [DENIED if denied else OK]
    if denied:
        assert "taken away" in path.replies[1][0][1]
    assert sorted(go_on(sim)) == sorted([b"first", b"root"] + [b"shop"] * (not denied))

"""Many costly requests at once: others are served between them, and what nobody waits for ends on every node."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from cluster.remoting.forward.forwarded_path import ForwardedPath
from raftlog.types import Entry
from raftmq_wire.codec import FLAG_ONEWAY, encode_frame
from raftmq_wire.codes import RequestCode
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.command_table import in_entry
from statemachine.consuming.consumer_offsets import ResetOffsets
from statemachine.consuming.groups import PutGroup
from statemachine.levels import OWNERS_LEVEL
from tests.support.sim_cluster import ClientPath, SimCluster, SimNode, codes, send_frame

FLOOD = 24
QUEUES = 1_024


@pytest.fixture
def sim() -> Iterator[SimCluster]:
    with SimCluster(29) as made:
        made.create_topic("T")
        made.create_topic("wide", queues=QUEUES)
        made.propose(made.leader(), PutGroup({"name": "g"}, True))
        made.propose(made.leader(), Finalize(OWNERS_LEVEL))
        made.loop.run_until(lambda: all(node.state.level == OWNERS_LEVEL for node in made.running), 10, "the level")
        yield made


def flood(sim: SimCluster, node: SimNode) -> ClientPath:
    """A client that asks for resets of its own topic, all in one read."""
    path = node.connect()
    ext = {"group": "g", "topic": "wide", "timestamp": "-1", "isForce": "true"}
    for opaque in range(1, FLOOD + 1):
        path.ask(encode_frame(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, opaque, 0, ext=ext))
    return path


def under_way(sim: SimCluster) -> int:
    """The resets that wait or are under way on the leader."""
    return sum(each.waiting + each.under_way for each in sim.leader().running.serving.remoting.router.table.costly)


def resets_in(entries: list[Entry]) -> list[int]:
    """The number of resets in each entry."""
    return [
        len([command for command in in_entry(entry.type, entry.payload) if isinstance(command, ResetOffsets)])
        for entry in entries
    ]


def left_in_memory() -> int:
    """The requests of other nodes' clients of which any leader still has something."""
    gc.collect()
    return sum(type(each) is ForwardedPath for each in gc.get_objects())


@pytest.mark.parametrize("leads", [True, False])
def test_no_entry_has_the_rows_of_two_resets(sim: SimCluster, leads: bool) -> None:
    """200 of them in one read made entries of tens of thousands of rows; sends of others waited for seconds."""
    entries = sim.leader().entries_from_now()
    path = flood(sim, sim.leader() if leads else sim.followers()[0])
    other = sim.leader().connect()
    other.ask(send_frame(1, "T", b"between"))
    sim.loop.run_until(lambda: len(path.replies) == FLOOD and other.replies.get(1), 60, "answers")
    assert {codes(path, opaque)[0] for opaque in range(1, FLOOD + 1)} == {0}
    assert max(resets_in(entries)) == 1
    assert sum(resets_in(entries)) == FLOOD
    sim.settle()
    sim.check_equal()


@pytest.mark.parametrize("leads", [True, False])
def test_what_a_client_that_is_gone_has_asked_for_is_not_carried_out(sim: SimCluster, leads: bool) -> None:
    before = left_in_memory()
    path = flood(sim, sim.leader() if leads else sim.followers()[0])
    sim.loop.run_until(lambda: under_way(sim) > 1, 20, "they have come to the leader")
    path.close()
    sim.loop.run_until(lambda: not under_way(sim), 20, "nothing waits")
    sim.loop.run_for(5)
    assert left_in_memory() == before
    assert len(path.replies) < FLOOD // 2


@pytest.mark.parametrize("leads", [True, False])
def test_clients_that_ask_and_leave_keep_nobody_waiting(sim: SimCluster, leads: bool) -> None:
    """Seed 998100116."""
    node = sim.leader() if leads else sim.followers()[0]
    for _ in range(6):
        path = flood(sim, node)
        sim.loop.run_for(0.02)
        path.close()
    sim.loop.run_for(0.02)
    left_at = sim.leader().state.applied.index
    sim.loop.run_for(1)
    assert sim.leader().state.applied.index - left_at <= 2, "those that were under way, and none that waited"
    sim.settle()


def test_what_waits_for_a_leader_is_not_forwarded_once_its_client_is_gone(sim: SimCluster) -> None:
    """Seed 961000021: it was forwarded after its client had gone, when there was nothing left that would end it."""
    leader, through = sim.leader(), sim.followers()[0]
    entries, held = leader.entries_from_now(), through.forwarder.gate.forwarded
    with sim.unlinked(through, leader):
        path, other = flood(sim, through), flood(sim, through)
        of_both = held.bytes
        path.close()
        sim.loop.run_for(0.01)
        assert 2 * held.bytes == of_both
    sim.loop.run_until(lambda: len(other.replies) == FLOOD, 20, "those of the other client")
    assert sum(resets_in(entries)) == FLOOD
    assert not path.replies


def test_a_node_that_is_gone_leaves_nothing_behind(sim: SimCluster) -> None:
    before, follower = left_in_memory(), sim.followers()[0]
    flood(sim, follower)
    sim.loop.run_until(lambda: under_way(sim) > 1, 20, "they have come to the leader")
    follower.kill(power=False)
    sim.loop.run_until(lambda: not under_way(sim), 20, "nothing waits")
    sim.loop.run_for(1)
    assert left_in_memory() == before


def test_what_a_follower_has_given_up_is_not_carried_out(sim: SimCluster) -> None:
    """Seed 770000022: the client was answered and had gone, and the leader went on with its requests."""
    before, leader = left_in_memory(), sim.leader()
    entries = leader.entries_from_now()
    for follower in sim.followers():
        follower.append.hold()
    path = flood(sim, sim.followers()[0])
    sim.loop.run_until(lambda: under_way(sim) > 1, 20, "they have come to the leader")
    sim.loop.run_until(lambda: len(path.replies) == FLOOD, 60, "the follower's answers")
    sim.loop.run_until(lambda: under_way(sim) <= 1, 5, "none waits behind the first, whose rows are written")
    for follower in sim.followers():
        follower.append.release()
    sim.loop.run_until(lambda: not under_way(sim), 5, "nothing waits")
    sim.loop.run_for(1)
    assert sum(resets_in(entries)) <= 2, "what had begun"
    assert left_in_memory() == before


def test_a_oneway_request_that_was_forwarded_leaves_nothing_behind(sim: SimCluster) -> None:
    before, path = left_in_memory(), sim.followers()[0].connect()
    for opaque in range(1, 5):
        path.ask(encode_frame(RequestCode.GET_TOPIC_STATS_INFO, opaque, FLAG_ONEWAY, ext={"topic": "T"}))
    sim.loop.run_for(2)
    assert not under_way(sim)
    assert left_in_memory() == before


def test_the_room_for_an_answer_that_nobody_waits_for_is_given_back(sim: SimCluster) -> None:
    """The room of a forwarded request is the node's. What such requests had reserved was lost to it for ever: at last
    a large answer never found room, and all answers waited behind it (seed 770000022)."""
    leader = sim.leader().running
    leader.serving.services.turns.share = 1
    path = sim.followers()[0].connect()
    for opaque in range(1, 11):
        path.ask(encode_frame(RequestCode.GET_TOPIC_STATS_INFO, opaque, 0, ext={"topic": "wide"}))
    unsent = leader.serving.remoting.router.memory.unsent
    sim.loop.run_until(lambda: unsent.taken, 20, "one is under way")
    path.close()
    sim.loop.run_until(lambda: not under_way(sim), 20, "nothing waits")
    sim.loop.run_for(5)
    assert unsent.taken == 0


def test_requests_that_were_forwarded_and_answered_leave_nothing_in_memory(sim: SimCluster) -> None:
    """Each left its path in a table and in a ring of references: 0.36 MiB a second on the leader."""

    def paths() -> int:
        return sum(type(each) is ForwardedPath for each in gc.get_objects())

    path, before = sim.followers()[0].connect(), left_in_memory()
    gc.disable()
    try:
        for opaque in range(1, 41):
            path.ask(encode_frame(RequestCode.GET_TOPIC_STATS_INFO, opaque, 0, ext={"topic": "T"}))
        sim.loop.run_until(lambda: len(path.replies) == 40, 60, "answers")
        sim.loop.run_for(1)
        assert paths() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("why", ["no way back", "no writes yet"])
def test_what_came_early_is_not_begun_once_its_client_is_gone(sim: SimCluster, why: str) -> None:
    """The leader had no connection to the follower yet, and looked for what was to end among what it had begun."""
    leader, through = sim.leader(), sim.followers()[0]
    early, entries = leader.forwarder.gate.early, leader.entries_from_now()
    with ExitStack() as until_then:
        if why == "no way back":
            until_then.enter_context(sim.unlinked(leader, through))
        else:
            sim.begin_term(leader)
            until_then.callback(leader.apply.release)
        path, other = flood(sim, through), flood(sim, through)
        sim.loop.run_until(lambda: early.requests == 2 * FLOOD, 1)
        path.close()
        sim.loop.run_until(lambda: early.requests == FLOOD, 1)
    sim.loop.run_until(lambda: len(other.replies) == FLOOD, 20, "those of the other client")
    assert sum(resets_in(entries)) == FLOOD
    assert early.bytes == 0

"""Consumer offsets take effect in the order in which they came to the leader, whatever way each of them takes."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.replication.outcome import Outcome
from raftmq_wire.codec import FLAG_ONEWAY, encode_frame
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.consuming.groups import PutGroup
from statemachine.removal_slices import DeleteGroup, DeleteTopic
from statemachine.topics.topics import CreateTopic
from tests.support.sim_cluster import ClientPath, SimCluster, SimNode, codes, send_frame

SEED = 21
FLUSHED_S = 0.3
"""Longer than offsets.flush_ms and an entry take."""


@pytest.fixture
def sim(sim_of: Any) -> SimCluster:
    made: SimCluster = sim_of()
    results = made.propose(made.leader(), PutGroup({"name": "g"}, False))
    made.loop.run_until(lambda: results, 5)
    return made


def commit(opaque: int, offset: int, *, oneway: bool = False, **more: str) -> bytes:
    ext = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": str(offset), **more}
    return encode_frame(15, opaque, FLAG_ONEWAY if oneway else 0, ext=ext)


def answered(sim: SimCluster, path: ClientPath, opaque: int) -> int:
    sim.loop.run_until(lambda: opaque in path.replies, 10, f"an answer to {opaque}")
    (code,) = codes(path, opaque)
    return code


def offset(node: SimNode, topic: str = "T") -> int | None:
    return node.state.offset("g", node.state.topics[topic].id, 0)


def settled_offset(sim: SimCluster) -> int | None:
    """Returns the offset that all nodes have in the end."""
    sim.loop.run_for(FLUSHED_S)
    sim.heal()
    sim.settle()
    sim.check_equal()
    (found,) = {offset(node) for node in sim.running}
    return found


def test_a_two_way_commit_is_not_overwritten_by_an_earlier_oneway(sim: SimCluster) -> None:
    path = sim.leader().connect()
    path.ask(commit(1, 5, oneway=True))
    path.ask(commit(2, 9))
    assert answered(sim, path, 2) == 0
    assert settled_offset(sim) == 9


def test_a_oneway_moves_back_behind_a_two_way_commit_that_is_on_its_way(sim: SimCluster) -> None:
    """The state still says what the oneway wants: that is no reason to leave it out."""
    path = sim.leader().connect()
    path.ask(commit(1, 5))
    assert answered(sim, path, 1) == 0
    path.ask(commit(2, 9))
    path.ask(commit(3, 5, oneway=True))
    assert answered(sim, path, 2) == 0
    assert settled_offset(sim) == 5


def test_a_oneway_does_not_ride_ahead_of_a_commit_that_waits(sim: SimCluster) -> None:
    """Sends go before the change of a topic; what rides on their entry must not be newer than what waits."""
    leader = sim.leader()
    path = leader.connect()
    path.ask(send_frame(1, "T", b"m"))
    path.ask(commit(2, 7))
    sim.propose(leader, CreateTopic({"name": "T", "read_queues": 4, "write_queues": 4, "perm": 6}, False))
    path.ask(commit(3, 9, oneway=True))
    assert answered(sim, path, 2) == 0
    assert settled_offset(sim) == 9


@pytest.mark.parametrize("clean", [True, False])
def test_what_waits_goes_before_the_deletion_of_its_group(sim: SimCluster, clean: bool) -> None:
    leader = sim.leader()
    leader.connect().ask(commit(1, 5, oneway=True))
    results = sim.propose(leader, DeleteGroup("g", clean))
    sim.loop.run_until(lambda: results, 5)
    assert settled_offset(sim) == (None if clean else 5)


def test_a_group_whose_deletion_is_under_way_takes_no_commits(sim: SimCluster) -> None:
    leader = sim.leader()
    path = leader.connect()
    results = sim.propose(leader, DeleteGroup("g", True))
    path.ask(commit(1, 5, oneway=True))
    path.ask(commit(2, 6))
    assert answered(sim, path, 2) == 14, "nothing was done: it may be tried again"
    sim.loop.run_until(lambda: results, 5)
    path.ask(commit(3, 7))
    assert answered(sim, path, 3) == 26, "there is no such group"
    assert settled_offset(sim) is None


def test_a_group_made_again_takes_commits_at_once(sim: SimCluster) -> None:
    leader = sim.leader()
    path = leader.connect()
    path.ask(commit(1, 4))
    answered(sim, path, 1)
    sim.propose(leader, DeleteGroup("g", True))
    sim.propose(leader, PutGroup({"name": "g"}, True))
    path.ask(commit(2, 6))
    path.ask(commit(3, 7, oneway=True))
    assert answered(sim, path, 2) == 0
    assert settled_offset(sim) == 7


def test_what_waits_for_a_deleted_topic_is_not_seen_in_the_new_one(sim: SimCluster) -> None:
    leader = sim.leader()
    leader.connect().ask(commit(1, 5, oneway=True))
    sim.propose(leader, DeleteTopic("T"))
    results = sim.propose(leader, CreateTopic({"name": "T", "read_queues": 2, "write_queues": 2, "perm": 6}, False))
    sim.loop.run_until(lambda: results, 5)
    assert settled_offset(sim) is None


def test_a_query_answers_after_the_commits_before_it(sim: SimCluster) -> None:
    leader = sim.leader()
    path = leader.connect()
    for at, (value, oneway) in enumerate([(3, False), (5, True), (7, False)]):
        path.ask(commit(at, value, oneway=oneway))
    path.ask(encode_frame(14, 9, 0, ext={"consumerGroup": "g", "topic": "T", "queueId": "0"}))
    assert answered(sim, path, 9) == 0
    assert b'"7"' in path.replies[9][0][2]


def test_commands_of_several_rows_replace_only_their_own_queues(sim: SimCluster) -> None:
    leader = sim.leader()
    topic = leader.state.topics["T"].id
    for queue in range(3):
        leader.running.serving.services.commit_offset_later("g", topic, queue, 5)
    results = sim.propose(leader, CommitOffsets([("g", topic, 0, 9), ("g", topic, 2, 9)]))
    sim.loop.run_until(lambda: results, 5)
    assert results[0].outcome is Outcome.OK
    sim.loop.run_for(FLUSHED_S)
    assert leader.state.offsets_of_group("g") == [(topic, 0, 9), (topic, 1, 5), (topic, 2, 9)]


def test_what_was_not_proposed_with_its_leader_is_lost_and_not_late(sim: SimCluster) -> None:
    """A oneway that waited on a leader that was cut off; what the next leader acknowledged stays."""
    old = sim.leader()
    old.connect().ask(commit(1, 5, oneway=True))
    sim.isolate(old)
    new = sim.leader(besides=old)
    path = new.connect()
    path.ask(commit(1, 9))
    assert answered(sim, path, 1) == 0
    sim.mend()
    assert settled_offset(sim) == 9

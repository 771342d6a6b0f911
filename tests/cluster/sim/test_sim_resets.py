"""A reset of offsets reaches its consumer through any node and holds across changes of the leader."""

from __future__ import annotations

import json

import pytest

from raftmq_wire.codec import encode_frame
from statemachine.consuming.groups import PutGroup
from tests.cluster.sim.test_sim_offsets import answered, commit, offset, settled_offset, sim  # noqa: F401 - a fixture
from tests.support.sim_cluster import ClientPath, SimCluster, SimNode, codes, send_frame

SEED = 31
OK, NOT_YET, MOVED = 0, 19, 21


def pull(opaque: int, at: int, suspend_ms: int = 0) -> bytes:
    ext = {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": "0",
        "queueOffset": str(at),
        "maxMsgNums": "1",
        "sysFlag": "6" if suspend_ms else "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": str(suspend_ms),
        "subscription": "*",
        "subVersion": "0",
    }
    return encode_frame(11, opaque, 0, ext=ext)


def next_offset(path: ClientPath, opaque: int) -> int:
    ((_, _, ext),) = path.replies[opaque]
    return int(json.loads(ext)["nextBeginOffset"])


@pytest.fixture
def group(sim: SimCluster) -> SimCluster:  # noqa: F811
    """Ten messages, of which the group g has consumed nine, and then is reset to offset 3."""
    path = sim.leader().connect()
    for at in range(10):
        path.ask(send_frame(100 + at, "T", b"%d" % at))
    path.ask(commit(1, 9))
    ext = {"group": "g", "topic": "T", "timestamp": "0", "queueId": "0", "offset": "3", "isForce": "true"}
    sim.loop.run_until(lambda: len(path.replies) == 11, 5, "sends and the commit are answered")
    through = sim.followers()[0].connect()
    through.ask(encode_frame(222, 2, 0, ext=ext))
    assert answered(sim, through, 2) == OK
    sim.settle()
    return sim


def pulled(sim: SimCluster, node: SimNode, opaque: int, at: int) -> tuple[int, int]:  # noqa: F811
    """Code and next offset of a pull through that node."""
    path = node.connect()
    path.ask(pull(opaque, at))
    return answered(sim, path, opaque), next_offset(path, opaque)


@pytest.mark.parametrize("where", [0, 1, 2])
def test_the_consumer_is_told_through_any_node(group: SimCluster, where: int) -> None:
    node = group.running[where]
    assert pulled(group, node, 1, 9) == (MOVED, 3)
    path = node.connect()
    path.ask(commit(2, 10))
    assert answered(group, path, 2) == OK
    assert settled_offset(group) == 3, "it was pulled before the reset"
    assert pulled(group, node, 3, 3) == (OK, 4)
    path.ask(commit(4, 4))
    assert answered(group, path, 4) == OK
    assert settled_offset(group) == 4
    group.check_equal()


@pytest.mark.parametrize("where", [0, 1, 2])
def test_a_consumer_that_waits_for_messages_is_told(sim: SimCluster, where: int) -> None:  # noqa: F811
    """A follower sends it away first: what was parked cannot be passed on."""
    node, leader = sim.running[where], sim.leader()
    path = node.connect()
    path.ask(send_frame(1, "T", b"x"))
    assert answered(sim, path, 1) == OK
    sim.settle()
    path.ask(pull(2, 1, suspend_ms=15_000))
    sim.loop.run_for(0.5)
    assert 2 not in path.replies
    other = leader.connect()
    other.ask(encode_frame(222, 3, 0, ext={"group": "g", "topic": "T", "timestamp": "0"}))
    assert answered(sim, other, 3) == OK
    sim.loop.run_for(0.5)
    assert codes(path, 2) == [MOVED if node is leader else NOT_YET]
    assert pulled(sim, node, 4, 1) == (MOVED, 0)


def test_the_next_leader_tells_it_too(group: SimCluster) -> None:
    old = group.leader()
    old.kill(power=True)
    group.loop.run_until(lambda: any(node.proposals.open for node in group.running), 30)
    leader = group.leader()
    path = leader.connect()
    path.ask(commit(1, 10))
    assert answered(group, path, 1) == OK
    assert pulled(group, leader, 2, 9) == (MOVED, 3)
    assert pulled(group, leader, 3, 3) == (OK, 4)
    path.ask(commit(4, 10))
    assert answered(group, path, 4) == OK
    old.start()
    assert settled_offset(group) == 10
    group.check_equal()


def test_the_end_is_known_before_later_commits(group: SimCluster) -> None:
    """A consumer commits what it was served at once: the end of the reset is on its way, and comes first."""
    leader = group.leader()
    path = leader.connect()
    path.ask(pull(1, 3))
    path.ask(commit(2, 4))
    path.ask(commit(3, 5, oneway=True))
    assert answered(group, path, 2) == OK
    assert codes(path, 1) == [OK]
    assert settled_offset(group) == 5
    assert offset(leader) == 5


def test_a_commit_that_waits_goes_before_the_end_and_is_left_out(group: SimCluster) -> None:
    """It came before the consumer knew of the reset, and its sender wants no answer: it is not in the log yet."""
    leader = group.leader()
    path = leader.connect()
    path.ask(commit(1, 9, oneway=True))
    path.ask(commit(2, 10, oneway=True))
    path.ask(pull(3, 3))
    group.loop.run_for(0.5)
    assert codes(path, 3) == [OK]
    assert settled_offset(group) == offset(leader) == 3
    path.ask(commit(4, 4, oneway=True))
    group.loop.run_for(0.5)
    assert settled_offset(group) == 4
    group.check_equal()


def test_offsets_that_are_cloned_count_though_a_reset_is_not_known_yet(group: SimCluster) -> None:
    """Otherwise the clone would be told as done, and the group go on where it was reset to."""
    leader = group.leader()
    made = group.propose(leader, PutGroup({"name": "h"}, False))
    group.loop.run_until(lambda: made, 10, "the group is made")
    path = leader.connect()
    path.ask(commit(1, 7, consumerGroup="h"))
    assert answered(group, path, 1) == OK
    path.ask(encode_frame(314, 2, 0, ext={"srcGroup": "h", "destGroup": "g", "topic": "T", "offline": "true"}))
    assert answered(group, path, 2) == OK
    assert settled_offset(group) == 7
    assert pulled(group, leader, 3, 9) == (MOVED, 7)
    assert pulled(group, leader, 4, 7) == (OK, 8)
    path.ask(commit(5, 8))
    assert answered(group, path, 5) == OK
    assert settled_offset(group) == 8
    group.check_equal()

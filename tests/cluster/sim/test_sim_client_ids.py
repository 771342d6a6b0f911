"""A client is a user and a client id: registrations, locks and commits of two users with one client id do not meet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.broker.groups.group_members import EXPIRY_MS, Role
from cluster.broker.groups.queue_locks import Standing
from cluster.remoting.forward.requesting_clients import CLIENTS, STANDING
from cluster.replication.outcome import ProposeResult
from raftmq_wire.codes import RequestCode
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.consuming.queue_locks import LockQueuesOf
from statemachine.levels import OWNERS_LEVEL
from tests.support.sim_cluster import SimCluster, SimNode
from tests.support.sim_users import ask_admin, settle, with_key
from tests.support.users_clients import ANN, BOB, EVE, UsersClient, id_of, with_users

NODES = [0, 1, 2]


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[SimCluster]:
    with with_key(tmp_path) as made:
        made.create_topic("T")
        yield made


def client(
    sim: SimCluster, node: SimNode, who: Any, client_id: str = "c", consumers: tuple[str, ...] = ("g",)
) -> UsersClient:
    """A connected client of a user that is in these groups."""
    made = UsersClient(sim, node, who, client_id)
    assert made.beat(consumers=consumers)[0] == 0
    return made


def members(node: SimNode, group: str = "g") -> list[str]:
    return node.running.serving.broker.members.consumer_ids(group)


def would_be_denied(sim: SimCluster) -> list[bool]:
    """For each kind of denial on any node, whether it was enforced."""
    return [each.enforced for node in sim.running for each in node.running.serving.broker.denials.last_hour()]


# --- registrations


@pytest.mark.parametrize("mode", ["observe", "enforce"])
@pytest.mark.parametrize("at", NODES)
def test_a_stranger_unregisters_nobody(sim: SimCluster, at: int, mode: str) -> None:
    """He says that he is that client, and then that the client leaves."""
    with_users(sim, mode)
    node = sim.running[at]
    ann = client(sim, node, ANN)
    eve = UsersClient(sim, node, EVE, "c")
    assert eve.beat() == (0, "")
    assert eve.request(RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "producerGroup": "PG"}) == (0, "")
    own = node.running.serving.broker.members
    assert [(role, member.connection) for role, _, member in own.of(ann)] == [
        (Role.PRODUCER, ann),
        (Role.CONSUMER, ann),
    ]
    assert own.of(eve) == []
    assert list(own.producer_users("c")) == [id_of(sim, ANN)]
    group = {"clientID": "c", "consumerGroup": "g"}
    assert eve.request(RequestCode.UNREGISTER_CLIENT, group)[0] == (0 if mode == "observe" else 16)
    assert members(node) == ["c"]


@pytest.mark.parametrize("at", NODES)
def test_two_producers_with_one_client_id_do_not_meet(sim: SimCluster, at: int) -> None:
    with_users(sim)
    node = sim.running[at]
    ann, bob = client(sim, node, ANN, consumers=()), client(sim, node, BOB, consumers=())
    group = node.running.serving.broker.members.producers["PG"]
    assert {member.connection for member in group.values()} == {ann, bob}
    ann.close()
    sim.loop.run_for(0.1)
    assert [member.connection for member in group.values()] == [bob]
    assert bob.request(RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "producerGroup": "PG"}) == (0, "")
    assert "PG" not in node.running.serving.broker.members.producers


@pytest.mark.parametrize("at", NODES)
def test_the_second_in_a_consumer_group_is_refused_there_alone(sim: SimCluster, at: int) -> None:
    with_users(sim)
    node = sim.running[at]
    ann = client(sim, node, ANN)
    bob = UsersClient(sim, node, BOB, "c")
    for _ in range(2):
        code, remark = bob.beat(("PG", "P2"), ("h", "g"))
        assert code == 16
        assert "group g: client id c is that of another user's client" in remark
        assert "its own id" in remark
    known = node.running.serving.broker.members
    assert [member.connection for member in known.consumers["g"].values()] == [ann]
    assert [(role, group) for role, group, _ in known.of(bob)] == [
        (Role.PRODUCER, "PG"),
        (Role.PRODUCER, "P2"),
        (Role.CONSUMER, "h"),
    ]
    (noticed,) = node.running.serving.broker.shared_ids.refused_lately()
    assert noticed[:4] == ("c", "g", (id_of(sim, ANN), id_of(sim, BOB)), 2)
    assert would_be_denied(sim) == [True]
    assert client(sim, node, BOB, "another").beat(consumers=("g", "h")) == (0, "")
    assert members(node) == ["another", "c"]


def test_who_comes_after_a_client_has_left_is_let_in(sim: SimCluster) -> None:
    with_users(sim)
    node = sim.running[0]
    ann, bob = client(sim, node, ANN), UsersClient(sim, node, BOB, "c")
    assert bob.beat(consumers=("g",))[0] == 16
    ann.close()
    assert bob.beat(consumers=("g",)) == (0, "")
    ann = UsersClient(sim, node, ANN, "c")
    assert ann.beat(consumers=("g",))[0] == 16
    sim.loop.run_for(EXPIRY_MS / 1000 - 1)
    assert ann.beat(consumers=("g",))[0] == 16, "it may come again"
    sim.loop.run_for(2)
    assert ann.beat(consumers=("g",)) == (0, "")
    bob.who = ANN  # one process with new credentials, over its old connection
    ann.close()
    assert bob.beat(consumers=("g",)) == (0, "")
    bob.who = BOB
    assert bob.beat(consumers=("g",)) == (0, "")
    assert [member.user for member in node.running.serving.broker.members.consumers["g"].values()] == [id_of(sim, BOB)]


def test_observed_the_second_takes_the_place_as_ever_and_is_counted(sim: SimCluster) -> None:
    with_users(sim, "observe")
    node = sim.running[0]
    client(sim, node, ANN)
    for who in (BOB, None, ANN):
        last = client(sim, node, who)
        assert [member.connection for member in node.running.serving.broker.members.consumers["g"].values()] == [last]
    assert would_be_denied(sim).count(False) >= 1
    assert not node.running.serving.broker.shared_ids.refused_lately()


def test_clients_from_before_users_were_judged_give_way(sim: SimCluster) -> None:
    with_users(sim, "off")
    node = sim.running[0]
    client(sim, node, None)
    assert ask_admin(sim, "set_mode", "enforce") is None
    settle(sim)
    ann = client(sim, node, ANN)
    assert [member.connection for member in node.running.serving.broker.members.consumers["g"].values()] == [ann]


@pytest.mark.parametrize("who", [ANN, None])
def test_every_node_has_the_members_in_one_order(sim: SimCluster, who: Any) -> None:
    with_users(sim, "enforce" if who else "")
    for node in sim.running:
        for client_id in ("b", "a", "c") if node.node_id % 2 else ("c", "b", "a"):
            client(sim, node, who, client_id)
    if who:
        for node in sim.running:
            UsersClient(sim, node, BOB, "b").beat(consumers=("g",))
            client(sim, node, BOB, "aa")
    assert {tuple(members(node)) for node in sim.running} == {("a", "aa", "b", "c") if who else ("a", "b", "c")}


# --- locks


@pytest.mark.parametrize("at", NODES)
def test_locks_are_of_a_user_and_a_client_id(sim: SimCluster, at: int) -> None:
    """Two users are one client id for two nodes; the second gets no lock, ends none, and commits over none."""
    with_users(sim)
    ann = client(sim, sim.running[at], ANN)
    bob = client(sim, sim.running[(at + 1) % 3], BOB)
    for node in sim.running:
        if node not in (ann.node, bob.node):
            client(sim, node, ANN)
    assert ann.lock("g", 0, 1) == [0, 1]
    assert bob.lock("g", 0, 1) == []
    assert bob.unlock("g", 0, 1)[0] == 0
    assert ann.lock("g", 0, 1) == [0, 1]
    topic = sim.leader().state.topics["T"].id
    locks = sim.leader().state.locks_of_group("g")
    assert {queue: lock.user for queue, lock in locks.items()} == dict.fromkeys(
        [(topic, 0), (topic, 1)], id_of(sim, ANN)
    )
    if sim.leader() is not bob.node:  # else it knows no client of ann
        commit = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "7"}
        assert "client c holds T queue 0" in bob.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit)[1]
        assert ann.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit) == (0, "")
    assert bob.request(RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": "g"}) == (0, "")
    sim.settle()
    assert len(sim.leader().state.locks_of_group("g")) == 2
    assert ann.unlock("g", 0) == (0, "")
    assert ann.request(RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": "g"}) == (0, "")


@pytest.mark.parametrize("at", NODES)
def test_another_user_on_the_connection_of_a_client_is_not_that_client(sim: SimCluster, at: int) -> None:
    with_users(sim)
    shared = client(sim, sim.running[at], ANN)
    shared.who = BOB
    assert shared.lock("g", 0) == []
    shared.who = ANN
    assert shared.lock("g", 0) == [0]


@pytest.mark.parametrize("at", NODES)
def test_a_lock_from_below_the_level_belongs_to_the_first_user_of_its_client_id(sim: SimCluster, at: int) -> None:
    with_users(sim, "enforce", OWNERS_LEVEL - 1)
    ann, bob = client(sim, sim.running[at], ANN), client(sim, sim.running[(at + 1) % 3], BOB)
    assert ann.lock("g", 0) == [0]
    topic = sim.leader().state.topics["T"].id
    assert sim.leader().state.locks_of_group("g")[topic, 0].user == 0
    assert bob.lock("g", 0) == [0], "as before"
    sim.propose(sim.leader(), Finalize(OWNERS_LEVEL))
    sim.loop.run_until(lambda: all(node.state.level == OWNERS_LEVEL for node in sim.running), 10)
    sim.loop.run_for(15)  # a fresh lock is not asked for again
    assert ann.lock("g", 0) == [0]
    assert sim.leader().state.locks_of_group("g")[topic, 0].user == id_of(sim, ANN)
    assert bob.lock("g", 0) == []


def test_without_users_locks_are_of_client_ids(sim: SimCluster) -> None:
    with_users(sim, "")
    node = sim.running[0]
    one, same, other = client(sim, node, None), client(sim, sim.running[1], None), client(sim, node, None, "d")
    assert one.lock("g", 0) == same.lock("g", 0) == [0]
    assert other.lock("g", 0) == []
    assert {lock.user for lock in sim.leader().state.locks_of_group("g").values()} == {0}


def test_locks_of_users_are_anybodys_again_when_users_are_not_judged(sim: SimCluster) -> None:
    with_users(sim)
    ann = client(sim, sim.running[0], ANN)
    assert ann.lock("g", 0) == [0]
    assert ask_admin(sim, "set_mode", "off") is None
    settle(sim)
    assert ann.lock("g", 0) == [0], "over the connection whose heartbeat named the user"
    unsigned = client(sim, sim.running[1], None)
    assert unsigned.lock("g", 0) == [0]
    assert unsigned.unlock("g", 0) == (0, "")
    assert not sim.leader().state.locks_of_group("g")


# --- fields that only nodes write


@pytest.mark.parametrize("at", NODES)
def test_nobody_speaks_for_another_users_client(sim: SimCluster, at: int) -> None:
    """raftmqClients over a connection without heartbeats: bob says that he is ann's client."""
    with_users(sim)
    for node in sim.running:
        client(sim, node, ANN, "a")
    ann = client(sim, sim.running[at], ANN, "a")
    assert ann.lock("g", 0) == [0]
    commit = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "7"}
    holder = "not committed: client a holds T queue 0"
    own = UsersClient(sim, sim.running[at], ANN, "x")
    assert own.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit | {CLIENTS: '["a"]'}) == (0, "")
    assert own.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit | {CLIENTS: '["unknown"]'}) == (0, holder)
    bob = UsersClient(sim, sim.running[at], BOB, "x")
    assert bob.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit | {CLIENTS: '["unknown"]'}) == (0, holder)
    named = client(sim, sim.running[at], BOB, "b")
    assert named.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit | {CLIENTS: '["a"]'}) == (0, holder)
    claims = ('["a"]', '["a", "unknown"]', "[]", "{", json.dumps([f"c{n}" for n in range(99)]))
    seen = [bob.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit | {CLIENTS: claim})[1] for claim in claims]
    assert seen == ["", holder, "", "", ""], "as without the field, except for a client that nobody is"


@pytest.mark.parametrize("at", NODES)
@pytest.mark.parametrize("standing", list(Standing))
def test_a_client_does_not_say_its_own_standing(sim: SimCluster, at: int, standing: Standing) -> None:
    with_users(sim)
    ann = client(sim, sim.running[at], ANN)
    assert ann.lock("g", 0) == [0]
    bob = UsersClient(sim, sim.running[at], BOB, "c")
    body = ann.body_of("g", (0, 1))
    assert bob.request(RequestCode.LOCK_BATCH_MQ, {STANDING: standing.value}, body)[0] == 0
    bob.request(RequestCode.UNLOCK_BATCH_MQ, {STANDING: standing.value}, body)
    sim.settle()
    topic = sim.leader().state.topics["T"].id
    locks = sim.leader().state.locks_of_group("g")
    assert {queue: lock.user for queue, lock in locks.items()} == {(topic, 0): id_of(sim, ANN)}


def test_a_command_of_the_level_is_refused_below_it(sim: SimCluster) -> None:
    with_users(sim, "", OWNERS_LEVEL - 1)
    results: list[ProposeResult] = []
    leader, command = sim.leader(), LockQueuesOf(1, "g", "c", 1, 2, [(1, 0)])
    leader.run(lambda: leader.running.serving.services.propose([command], results.append))
    assert f"level {OWNERS_LEVEL}" in results[0].remark

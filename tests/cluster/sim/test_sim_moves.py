"""Whole nodes dial an address for their leader before a member moves there, and nobody's term changes by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from cluster.members.address_change import UNREACHED, MemberPlace, Proof
from cluster.repair.fetch import FetchError, Status
from jepsen_like.sim.machines.machine import BROKER_PORT, PEER_PORT, host_of, uuid_of
from raftlog.types import NodeId
from tests.support.sim_cluster import SimCluster, SimNode

SEED = 11
LIMIT_S = 10.0


@pytest.fixture
def sim() -> Any:
    with SimCluster(SEED) as made:
        leader = made.leader()
        made.loop.run_until(lambda: len(leader.running.integrity.repairs.reachable()) == 2, LIMIT_S, "every link")
        yield made


def place(node: SimNode, host: str = "", port: int = PEER_PORT) -> MemberPlace:
    return MemberPlace(node.node_id, str(uuid_of(node.node_id)), host or host_of(node.node_id), port, "")


def begun(node: SimNode, work: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
    return node.run(lambda: node.loop.create_task(work()))


def checked(sim: SimCluster, where: MemberPlace, before: Callable[[], object] = lambda: None) -> Proof:
    """Returns the voters' answer; `before` happens when they have been asked."""
    leader = sim.leader()
    task = begun(leader, lambda: leader.running.integrity.moves.check(where))
    before()
    sim.loop.run_until(task.done, LIMIT_S, "the voters' answers")
    proof = task.result()
    assert isinstance(proof, Proof)
    return proof


def test_every_voter_finds_a_node_that_is_there(sim: SimCluster) -> None:
    leader, (first, second) = sim.leader(), sim.followers()
    term = leader.raw.term
    for node in (first, second, leader):
        proof = checked(sim, place(node))
        assert (proof.by, proof.lines()) == ([1, 2, 3], [])
    sim.loop.run_for(2.0)
    assert (sim.leader(), leader.raw.term) == (leader, term)
    assert all(len(node.transport.inlets) == 4 for node in sim.nodes.values()), "two of each peer, as before"


@pytest.mark.parametrize("moves", ["leader", "follower"])
def test_nowhere_and_at_another_nodes_address_nobody_finds_it(sim: SimCluster, moves: str) -> None:
    leader, (first, second) = sim.leader(), sim.followers()
    node, others = (leader, [first, second]) if moves == "leader" else (first, [leader, second])
    told = {each.node_id for each in others}
    for where, why in (
        (place(node, "10.0.0.77"), ""),
        (place(node, host_of(second.node_id)), f"node {second.node_id} answers there"),
        (place(node, port=BROKER_PORT), ""),
    ):
        proof = checked(sim, where)
        assert not proof.holds
        assert proof.not_by.keys() == told
        assert all(line.startswith(f"{where.host}:{where.port}: ") for line in proof.not_by.values())
        assert all(why in line for voter, line in proof.not_by.items() if voter != second.node_id)
    assert sim.leader() is leader


def test_a_majority_is_enough_and_who_is_cut_off_is_named(sim: SimCluster) -> None:
    leader, (first, second) = sim.leader(), sim.followers()
    proof = checked(sim, place(first), lambda: sim.isolate(second))
    assert (proof.holds, list(proof.not_by)) == (True, [second.node_id])
    assert "no answer" in proof.lines()[0]
    sim.mend()
    second.kill(power=False)
    sim.loop.run_until(lambda: not leader.transport.connected(second.node_id), LIMIT_S, "the end of its links")
    proof = checked(sim, place(first))
    assert (proof.by, proof.not_by) == (sorted([leader.node_id, first.node_id]), {second.node_id: UNREACHED})


def test_an_older_voter_answers_that_it_cannot_look(sim: SimCluster) -> None:
    leader, (first, second) = sim.leader(), sim.followers()
    del second.running.integrity.repairs.server.answerers["found at"]
    proof = checked(sim, place(first))
    assert proof.holds
    assert "it cannot look there" in proof.not_by[second.node_id]
    assert "earlier release" in proof.not_by[second.node_id]
    assert sim.leader() is leader


def test_a_question_that_makes_no_sense_is_answered_as_such(sim: SimCluster) -> None:
    leader, (first, _) = sim.leader(), sim.followers()

    async def ask() -> Status | None:
        try:
            await leader.running.integrity.repairs.client.fetch(NodeId(first.node_id), "found at", [1, 2], 2000)
        except FetchError as error:
            return error.status
        return Status.OK

    task = begun(leader, ask)
    sim.loop.run_until(task.done, LIMIT_S, "the answer")
    assert task.result() is Status.BAD

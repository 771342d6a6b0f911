"""Thousands of topics with attributes, changed and deleted, through failovers and restarts of everybody."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

from cluster.replication.outcome import Outcome
from statemachine.commands import Command
from statemachine.consuming.groups import PutGroup
from statemachine.removal_slices import DeleteTopic
from statemachine.topics.topics import CreateTopic
from tests.support.sim_cluster import SimCluster

PER_ENTRY = 200


def propose_all(sim: SimCluster, wanted: list[Command]) -> None:
    """Proposes the commands in entries of PER_ENTRY; every one must succeed."""
    leader = sim.leader()
    results = [sim.propose(leader, *wanted[at : at + PER_ENTRY]) for at in range(0, len(wanted), PER_ENTRY)]
    sim.loop.run_until(lambda: all(results), 120, "everything is applied")
    for (result,) in results:
        assert result.outcome is Outcome.OK
        assert all(each.ok for each in result.results)


def topic(rng: random.Random, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "read_queues": rng.randint(1, 16),
        "write_queues": rng.randint(1, 16),
        "perm": rng.choice([2, 4, 6]),
        "order": rng.random() < 0.1,
        "attributes": {"dedup": rng.choice(["off", "retry", "strict"]), "message.type": rng.choice(["NORMAL", "FIFO"])},
    }


def check(sim: SimCluster, model: dict[str, dict[str, Any]]) -> None:
    """Every node shows exactly the model."""
    sim.settle()
    sim.check_equal()
    for node in sim.running:
        shown = {
            config.name: {
                "name": config.name,
                "read_queues": config.read_queues,
                "write_queues": config.write_queues,
                "perm": config.perm,
                "order": config.order,
                "attributes": dict(config.attributes),
            }
            for config in node.state.topics.values()
        }
        assert shown == model


@pytest.mark.ci
@pytest.mark.parametrize(
    ("count", "seed"),
    [pytest.param(3_000, 8), pytest.param(100_000, 9, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
def test_f8_topics_with_attributes_and_deletes_survive_failover_and_restart(count: int, seed: int) -> None:
    rng = random.Random(seed)
    with SimCluster(seed, segment_size=1 << 23) as sim:
        model = {name: topic(rng, name) for name in (f"topic-{n}" for n in range(count))}
        propose_all(sim, [CreateTopic(dict(config), False) for config in model.values()])
        first = sim.leader()
        first.kill(power=True)
        sim.leader(besides=first)
        gone = rng.sample(sorted(model), count // 3)
        propose_all(sim, [DeleteTopic(name) for name in gone])
        for name in gone:
            del model[name]
        changed = rng.sample(sorted(model), count // 10)
        again = rng.sample(gone, count // 20)
        for name in (*changed, *again):
            model[name] = topic(rng, name)
        propose_all(sim, [CreateTopic(dict(model[name]), False) for name in (*changed, *again)])
        sim.heal()
        check(sim, model)
        for node in sim.running:
            node.kill(power=True)
        sim.heal()
        check(sim, model)
        ids = {config.id for config in sim.leader().state.topics.values()}
        assert len(ids) == len(model)
        assert max(ids) == count + len(again), "an id is never given twice, nor forgotten"


def test_e13_a_new_leader_opens_writes_within_a_second_of_its_election() -> None:
    """It has applied its no-op by then, and all before it; what its followers still have to apply is not waited for."""
    with SimCluster(13, segment_size=1 << 22) as sim:
        sim.create_topic("T")
        opened: list[float] = []
        for _ in range(3):
            leader = sim.leader()
            results = [
                sim.propose(leader, *[PutGroup({"name": f"g{n}"}, False) for n in range(at, at + 50)])
                for at in range(0, 500, 50)
            ]
            sim.loop.run_until(partial(all, results), 60, "a backlog")
            leader.kill(power=True)
            sim.loop.run_until(lambda: any(n.raw.role.name == "LEADER" for n in sim.running), 30, "an election")
            elected_s = sim.loop.now
            slow = next(n for n in sim.running if n.raw.role.name != "LEADER")
            slow.apply.hold()
            sim.leader(besides=leader)
            opened.append(sim.loop.now - elected_s)
            sim.heal()
            sim.settle()
        assert max(opened) < 1.0, opened

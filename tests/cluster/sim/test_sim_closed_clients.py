"""Many clients whose connections close at once while their sends are under way."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.work import METER
from tests.cluster.sim.test_sim_proposals import OK, answered, ask, hold_disks, release_disks, stored
from tests.support.sim_cluster import ClientPath, SimNode

SEED = 29
CLIENTS = 200


def closed_at_once(leader: SimNode, clients: list[ClientPath]) -> int:
    """Closes the connections and lets the leader look for their sends. Returns the units that this takes."""
    before = METER.units
    for client in clients:
        client.close()
    leader.run(leader.running.serving.remoting.router.closings.look)
    return METER.units - before


@pytest.mark.parametrize("decided", ["before the look", "after the look"])
def test_their_sends_are_looked_for_once_and_repeats_are_recognised(sim_of: Any, decided: str) -> None:
    sim = sim_of()
    leader = sim.leader()
    hold_disks(sim.followers())
    clients = [leader.connect() for _ in range(CLIENTS)]
    for number, client in enumerate(clients):
        ask(client, b"%d" % number, key=f"K{number}")
    sim.loop.run_for(0.05)
    if decided == "before the look":
        leader.apply.silent = True
        release_disks(sim.followers())
        sim.loop.run_for(0.5)
        leader.apply.speak()  # it hears that they are stored in its next turn, and looks after that
        for client in clients:
            client.close()
        sim.loop.run_for(0.0)
    else:
        assert closed_at_once(leader, clients) < CLIENTS, "a look at all costs an eighth of their number"
    again = leader.connect()
    for number in range(CLIENTS):
        ask(again, b"%d" % number, first=number, key=f"K{number}")
    release_disks(sim.followers())
    assert answered(sim, again, CLIENTS) == [[OK]] * CLIENTS
    assert sorted(stored(sim)) == sorted(b"%d" % number for number in range(CLIENTS))


@pytest.mark.parametrize("decided", ["before the look", "after the look"])
def test_those_behind_a_follower_are_recognised_too(sim_of: Any, decided: str) -> None:
    sim = sim_of()
    leader, through = sim.leader(), sim.followers()[0]
    hold_disks(sim.followers())
    clients = [through.connect() for _ in range(CLIENTS)]
    for number, client in enumerate(clients):
        ask(client, b"%d" % number, key=f"K{number}")
    sim.loop.run_until(lambda: leader.proposals.gate.sends.bytes, 5)
    if decided == "before the look":
        answers = list[tuple[Any, ...]]()
        hears = through.hear(frame=lambda *frame: answers.append(frame))
        release_disks(sim.followers())
        sim.loop.run_until(lambda: len(answers) == CLIENTS, 5, "the leader's answers")
        for client in clients:
            client.close()
        for frame in answers:
            through.run(hears.frame, *frame)
        through.hear(frame=hears.frame)
    else:
        for client in clients:
            client.close()
        sim.loop.run_for(0.01)
        release_disks(sim.followers())
    again = through.connect()
    for number in range(CLIENTS):
        ask(again, b"%d" % number, first=number, key=f"K{number}")
    assert answered(sim, again, CLIENTS) == [[OK]] * CLIENTS
    assert sorted(stored(sim)) == sorted(b"%d" % number for number in range(CLIENTS))


def test_a_client_that_waits_for_nothing_is_not_looked_for(sim_of: Any) -> None:
    sim = sim_of()
    leader = sim.leader()
    client = leader.connect()
    ask(client, b"x", key="K")
    answered(sim, client, 1)
    client.close()
    assert not leader.running.serving.remoting.router.closings.waiting

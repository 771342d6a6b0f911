"""Many clients whose connections close at once while their sends are under way."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.sim.test_sim_proposals import OK, answered, ask, hold_disks, release_disks, stored

SEED = 29
CLIENTS = 200


@pytest.mark.parametrize("decided", ["before the look", "after the look"])
def test_their_sends_are_looked_for_once_and_repeats_are_recognised(
    sim_of: Any, decided: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = sim_of()
    leader = sim.leader()
    hold_disks(sim.followers())
    clients = [leader.connect() for _ in range(CLIENTS)]
    for number, client in enumerate(clients):
        ask(client, b"%d" % number, key=f"K{number}")
    sim.loop.run_for(0.05)
    looked: list[int] = []
    look = leader.proposals.unanswered_of

    def counted(paths: Any) -> Any:
        looked.append(len(paths))
        return look(paths)

    monkeypatch.setattr(leader.proposals, "unanswered_of", counted)
    if decided == "before the look":
        monkeypatch.setattr(leader.running.serving.remoting.router.closings, "_soon", lambda call: None)
    for client in clients:
        client.close()
    assert not looked, "not for each of them"
    if decided == "before the look":
        release_disks(sim.followers())
        sim.loop.run_for(0.5)
        assert len(stored(sim)) == CLIENTS
    again = leader.connect()
    for number in range(CLIENTS):
        ask(again, b"%d" % number, first=number, key=f"K{number}")
    assert looked == [CLIENTS]
    release_disks(sim.followers())
    assert answered(sim, again, CLIENTS) == [[OK]] * CLIENTS
    assert sorted(stored(sim)) == sorted(b"%d" % number for number in range(CLIENTS))


@pytest.mark.parametrize("decided", ["before the look", "after the look"])
def test_those_behind_a_follower_are_recognised_too(sim_of: Any, decided: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = sim_of()
    leader, through = sim.leader(), sim.followers()[0]
    hold_disks(sim.followers())
    clients = [through.connect() for _ in range(CLIENTS)]
    for number, client in enumerate(clients):
        ask(client, b"%d" % number, key=f"K{number}")
    sim.loop.run_until(lambda: leader.proposals.gate.sends.bytes, 5)
    if decided == "before the look":
        monkeypatch.setattr(through.running.serving.remoting.router.closings, "_soon", lambda call: None)
    for client in clients:
        client.close()
    if decided == "before the look":
        release_disks(sim.followers())
        sim.loop.run_for(0.5)
        assert len(stored(sim)) == CLIENTS
    else:
        sim.loop.run_for(0.01)
        release_disks(sim.followers())
    again = through.connect()
    for number in range(CLIENTS):
        ask(again, b"%d" % number, first=number, key=f"K{number}")
    assert answered(sim, again, CLIENTS) == [[OK]] * CLIENTS
    assert sorted(stored(sim)) == sorted(b"%d" % number for number in range(CLIENTS))


def test_a_client_that_waits_for_nothing_is_not_looked_for(sim_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = sim_of()
    leader = sim.leader()
    client = leader.connect()
    ask(client, b"x", key="K")
    answered(sim, client, 1)
    monkeypatch.setattr(leader.proposals, "unanswered_of", None)
    client.close()
    sim.loop.run_for(0.1)
    assert not leader.running.serving.remoting.router.closings.waiting

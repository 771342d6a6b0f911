"""A lock request of a client is carried out before an unlock that it sent later."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from raftmq_wire.codes import RequestCode
from tests.support.users_clients import UsersClient

SEED = 24
BODY = {
    "consumerGroup": "g",
    "clientId": "c",
    "mqSet": [{"topic": "T", "brokerName": "broker", "queueId": queue} for queue in (0, 1)],
}
LEAVES = {"clientID": "c", "consumerGroup": "g"}


@pytest.mark.parametrize(
    ("at", "code", "ext"),
    [
        ("leader", RequestCode.UNLOCK_BATCH_MQ, {}),
        ("follower", RequestCode.UNLOCK_BATCH_MQ, {}),
        ("leader", RequestCode.UNREGISTER_CLIENT, LEAVES),
    ],
    ids=["unlock", "forwarded unlock", "leave"],
)
def test_an_unlock_does_not_overtake_a_lock_request(
    sim_of: Any, monkeypatch: pytest.MonkeyPatch, at: str, code: int, ext: dict[str, str]
) -> None:
    """A node had forwarded the lock request to a leader, which granted the lock and went, and then to the next one,
    which could not confirm a read yet. There the unlock was done first, and the lock was granted again: nobody read the
    queues until it expired (seed 790000066)."""
    sim = sim_of()
    leader = sim.leader()
    assert UsersClient(sim, leader, None, "another").beat(consumers=("g",))[0] == 0  # the leader makes the group
    client = UsersClient(sim, leader if at == "leader" else sim.followers()[0], None, "c")
    assert client.beat(consumers=("g",))[0] == 0
    assert client.lock("g", 0, 1) == [0, 1]
    services = leader.running.serving.broker.locks._node
    kind, begins = type(services), type(services).read_index
    held: list[Callable[[bool], None]] = []
    body = json.dumps(BODY).encode()

    def read_index(own: Any, done: Callable[[bool], None]) -> None:
        if own is services:
            held.append(done)
        else:
            begins(own, done)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "read_index", read_index)
        again = client.begin(RequestCode.LOCK_BATCH_MQ, {}, body)
        last = client.begin(code, ext, b"" if ext else body)
        sim.loop.run_for(0.1)
    for done in held:
        leader.run(services.read_index, done)
    assert [client.answer(opaque)[0] for opaque in (again, last)] == [0, 0]
    sim.settle()
    assert not leader.state.locks_of_group("g")

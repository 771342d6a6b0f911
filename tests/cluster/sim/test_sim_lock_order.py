"""A lock request of a client is carried out before an unlock that it sent later."""

from __future__ import annotations

import json
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
def test_an_unlock_does_not_overtake_a_lock_request(sim_of: Any, at: str, code: int, ext: dict[str, str]) -> None:
    """A node had forwarded the lock request to a leader, which granted the lock and went, and then to the next one,
    which could not confirm a read yet. There the unlock was done first, and the lock was granted again: nobody read the
    queues until it expired (seed 790000066)."""
    sim = sim_of()
    leader = sim.leader()
    assert UsersClient(sim, leader, None, "another").beat(consumers=("g",))[0] == 0  # the leader makes the group
    client = UsersClient(sim, leader if at == "leader" else sim.followers()[0], None, "c")
    assert client.beat(consumers=("g",))[0] == 0
    assert client.lock("g", 0, 1) == [0, 1]
    body = json.dumps(BODY).encode()
    edges = [(leader.host, follower.host) for follower in sim.followers()]
    sim.network.cut(edges)  # nobody confirms a read
    again = client.begin(RequestCode.LOCK_BATCH_MQ, {}, body)
    last = client.begin(code, ext, b"" if ext else body)
    sim.loop.run_for(0.1)
    sim.network.heal(edges)
    assert [client.answer(opaque)[0] for opaque in (again, last)] == [0, 0]
    sim.settle()
    assert not leader.state.locks_of_group("g")

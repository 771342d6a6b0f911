"""Requests to clients of one user, or of users with a right, from a node that does not hold their connection."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.broker.groups.client_relay import SILENCE_MS
from cluster.broker.groups.group_members import Role
from cluster.broker.refusal import Refused
from cluster.broker.rights import PUB, topic_need
from cluster.broker.services import HANDED_OVER, ClientAnswer, ClientRequest
from raftmq_wire.codec import FLAG_RESPONSE, decode_header
from raftmq_wire.codes import RequestCode
from raftmq_wire.signature import Credentials
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import OWNERS_LEVEL
from tests.support.sim_cluster import ClientPath, SimCluster, SimNode
from tests.support.sim_users import SHOP, ask_admin, begin, request, settle, with_key

STRANGER = Credentials("stranger", "stranger-secret")


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[SimCluster]:
    with with_key(tmp_path) as made:
        made.create_topic("T")
        yield made


def finalize(sim: SimCluster, mode: str = "enforce", level: int = OWNERS_LEVEL) -> None:
    """Users of whom `shop` may send to T and `stranger` may do nothing."""
    begin(sim, mode)
    assert ask_admin(sim, "create", "stranger", "stranger-secret", is_super=False, enabled=True) is None
    sim.propose(sim.leader(), Finalize(level))
    settle(sim)
    sim.settle()


class Client(ClientPath):
    """A client of a user that records requests of its node."""

    def __init__(self, sim: SimCluster, node: SimNode, who: Credentials | None, client_id: str) -> None:
        super().__init__(node)
        self.asked: list[int] = []
        node.paths.append(self)
        body = json.dumps({"clientID": client_id, "producerDataSet": [{"groupName": "PG"}]}).encode()
        self.ask(request(who, RequestCode.HEART_BEAT, 1, {}, body))
        sim.loop.run_until(lambda: self.replies, 5, "the heartbeat is answered")

    def write(self, data: bytes) -> None:
        header = decode_header(data[4], data[8 : 8 + int.from_bytes(data[5:8], "big")])
        if header.flag & FLAG_RESPONSE:
            super().write(data)
        else:
            self.asked.append(header.code)


def ask(sim: SimCluster, node: SimNode, client_id: str | None, group: str | None, **limits: Any) -> Any:
    outcomes: list[ClientAnswer | Refused] = []
    relay = node.running.serving.broker.relay
    check = ClientRequest(39, {}, b"half", oneway=True)
    node.run(lambda: relay.ask_client(Role.PRODUCER, group, client_id, check, outcomes.append, **limits))
    sim.loop.run_until(lambda: outcomes, 3 * SILENCE_MS / 1000)
    sim.loop.run_for(0.01)
    return outcomes[0]


def id_of(sim: SimCluster, name: str) -> int:
    return sim.leader().state.access.users[name].id


@pytest.mark.parametrize("asker", [0, 1, 2])
@pytest.mark.parametrize("group", ["PG", None])
def test_only_the_client_of_a_user(sim: SimCluster, asker: int, group: str | None) -> None:
    finalize(sim)
    node = sim.running[asker]
    honest = Client(sim, sim.running[1], SHOP, "c")
    others = [Client(sim, each, STRANGER, "c") for each in sim.running]
    assert ask(sim, node, "c", group, user=id_of(sim, "shop")) == HANDED_OVER
    assert (honest.asked, [other.asked for other in others]) == ([39], [[], [], []])
    assert isinstance(ask(sim, node, "c", group, user=id_of(sim, "root")), Refused)
    assert [other.asked for other in others] == [[], [], []]


@pytest.mark.parametrize("asker", [0, 1, 2])
def test_only_a_client_of_a_user_with_the_right(sim: SimCluster, asker: int) -> None:
    finalize(sim)
    others = [Client(sim, each, STRANGER, f"c{n}") for each in sim.running for n in range(100)]
    honest = Client(sim, sim.running[1], SHOP, "h")
    for _ in range(10):
        assert ask(sim, sim.running[asker], None, "PG", need=topic_need("T", PUB)) == HANDED_OVER
    assert honest.asked == [39] * 10
    assert isinstance(ask(sim, sim.running[asker], None, "PG", need=topic_need("U", PUB)), Refused)
    assert not any(other.asked for other in others)


@pytest.mark.parametrize("asker", [0, 1, 2])
def test_observed_only(sim: SimCluster, asker: int) -> None:
    finalize(sim, "observe")
    unproven = Client(sim, sim.running[1], None, "c")
    assert ask(sim, sim.running[asker], None, "PG", need=topic_need("T", PUB)) == HANDED_OVER
    assert ask(sim, sim.running[asker], "c", None, user=id_of(sim, "shop")) == HANDED_OVER, "it may be that user's"
    assert unproven.asked == [39, 39]

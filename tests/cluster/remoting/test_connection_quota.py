"""Quotas of new connections: one too many is closed at once, or when its user has signed. Real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.config.loading import load
from cluster.flow.gate import Gate
from cluster.flow.minute_rates import MinuteRates
from cluster.flow.quota_limits import CONNECTIONS
from cluster.flow.quota_rules import QuotaRules
from cluster.node.node import Node
from cluster.remoting.connection.open_connections import ENDS_S, OpenConnections
from raftmq_wire.codec import encode_frame
from raftmq_wire.codes import RequestCode
from statemachine.access.quotas import Quota, SetQuotas
from statemachine.access.user_rows import Mode
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import LEVEL
from tests.support.contexts import CONFIG
from tests.support.first_leader import stand
from tests.support.lone_node import write_lone_node
from tests.support.pace import at_most
from tests.support.wait_until import until

LIMIT = 4
ANN = 7


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    path, _ = write_lone_node(tmp_path)
    made = Node(load(path))
    await made.start()
    stand(made)
    await until(made.serving.services.writes_open)
    await propose(made, Finalize(LEVEL))
    yield made
    await made.close()


async def propose(node: Node, command: Any) -> None:
    done = asyncio.get_running_loop().create_future()
    node.serving.services.propose([command], done.set_result)
    assert (await done).results[0].ok


async def is_served(node: Node) -> bool:
    """Opens a connection and asks something; returns False if it was closed without an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.config.listeners[0].port)
    try:
        writer.write(encode_frame(RequestCode.GET_BROKER_CLUSTER_INFO, 1, 0, ext={}))
        return bool(await asyncio.wait_for(reader.read(8), at_most(10)))
    except ConnectionError:
        return False
    finally:
        writer.close()


async def test_an_address_opens_so_many_in_a_minute(node: Node) -> None:
    assert [await is_served(node) for _ in range(10)] == [True] * 10, "there is no quota"
    await propose(node, SetQuotas([("address=*", {"connections": LIMIT})], 1, "ann"))
    assert [await is_served(node) for _ in range(LIMIT + 2)] == [True] * LIMIT + [False] * 2
    refused = {each.owner: each.refused for each in node.serving.proposals.flow.paced.buckets.rules.refusals()}
    assert refused == {"address=127.0.0.1": 2}
    await until(lambda: not node.serving.remoting.router.clients.all)
    await propose(node, SetQuotas([("address=127.0.0.1", {"connections": 100})], 1, "ann"))
    assert await is_served(node), "a quota that counts for it before that of everybody"
    await propose(node, SetQuotas([("address=*", None), ("address=127.0.0.1", None)], 1, "ann"))
    assert [await is_served(node) for _ in range(10)] == [True] * 10


async def test_who_was_there_before_stays(node: Node) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.config.listeners[0].port)
    await until(lambda: len(node.serving.remoting.router.clients.all) == 1)
    await propose(node, SetQuotas([("address=*", {"connections": 1})], 1, "ann"))
    assert [await is_served(node) for _ in range(3)] == [True, False, False]
    writer.write(encode_frame(RequestCode.GET_BROKER_CLUSTER_INFO, 1, 0, ext={}))
    assert await asyncio.wait_for(reader.read(8), at_most(10))
    writer.close()


class Connection:
    """A client's connection that notes what is done with it."""

    def __init__(self, number: int) -> None:
        self.peer_address = ("10.0.0.1", number)
        self.received = 0
        self.left: list[str] = []
        self.ends_s: list[float] = []

    def leave(self, remark: str) -> None:
        self.left.append(remark)

    def end_in(self, seconds: float) -> None:
        self.ends_s.append(seconds)


def test_a_user_opens_so_many_whatever_the_address() -> None:
    rows: Any = SimpleNamespace(
        by_subject={"user=ann": Quota({"connections": 2}, 0, "")}, limited=frozenset({"connections"})
    )
    rules = QuotaRules(rows, SimpleNamespace(by_id={ANN: SimpleNamespace(name="ann")}))  # type: ignore[arg-type]
    rates = MinuteRates(rules, (CONNECTIONS,), Gate(CONFIG), lambda: 0)
    nothing: Any = SimpleNamespace()
    access: Any = SimpleNamespace(mode=Mode.ENFORCE)
    clients = OpenConnections(
        CONFIG.limits,
        access,
        nothing,
        memory=nothing,
        members=nothing,
        parked=lambda _: False,
        closings=nothing,
        outcomes=nothing,
        rates=rates,
    )
    connections: list[Any] = [Connection(number) for number in range(4)]
    for each in connections:
        assert clients.opened(each), "no address is limited"
    for each, user in zip(connections, (ANN, ANN, ANN, ANN + 1), strict=True):
        clients.proven(each, user)
    assert [each.left for each in connections] == [
        [],
        [],
        ["user=ann may have 2 new connections a minute (quota user=ann)"],
        [],
    ]
    assert [each.ends_s for each in connections] == [[], [], [ENDS_S], []]

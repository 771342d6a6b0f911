"""Witnesses of the planted bugs about orderly stops, links and who is let in; see witnesses.py."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from cluster.config.config import HaSection
from cluster.flow.gate import Gate
from cluster.node.orderly_stop import Retirement
from cluster.peer.allowed_peers import Membership
from cluster.peer.connections import BULK, CONTROL
from cluster.peer.link_state import LinkMetrics
from cluster.peer.links import CatchUp, Links
from cluster.peer.transport import PeerTransport
from cluster.runtime.peer_frames import Kind
from cluster.state.checkpointer import Checkpointer
from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.core import transfer
from raftlog.types import NOBODY, NodeId
from tests.support.contexts import CONFIG

ONE, TWO, FOUR = NodeId(1), NodeId(2), NodeId(4)


async def _nothing() -> None:
    """Does nothing: nobody waits for messages."""


def witness_O01() -> None:
    refused: list[Any] = []
    holder = Gate(CONFIG).holder("10.0.0.9")
    connection = SimpleNamespace(leave=lambda remark: None, say_goodbye=lambda: None, in_flight=holder, closed=True)
    replies = SimpleNamespace(refused=lambda send, remark: refused.append(send))
    proposals = SimpleNamespace(idle=True, unanswered_of=lambda path: ["under way"], _replies=replies)
    node: Any = SimpleNamespace(
        router=SimpleNamespace(connections=[connection]),
        proposals=proposals,
        failure=None,
        hurried=False,
        pulls=SimpleNamespace(long_polls=SimpleNamespace(release=_nothing)),
        raw=SimpleNamespace(leader_id=NOBODY),
    )

    async def send_away() -> None:
        await Retirement(node)._send_away()

    asyncio.run(send_away())
    assert not refused, "only the log can decide what was proposed"


def witness_O02() -> None:
    told: list[Any] = []
    raft: Any = SimpleNamespace(
        id=ONE,
        term=3,
        transferee=TWO,
        members=SimpleNamespace(peers={TWO: SimpleNamespace(fit=True, match_index=4)}),
        log=SimpleNamespace(tail=SimpleNamespace(index=5), persisted_index=4),
        send=told.append,
    )
    transfer.hand_over_if_caught_up(raft)
    assert not told, "entry 5 is not there yet"


def witness_O03() -> None:
    done: list[str] = []
    checkpointer: Any = object.__new__(Checkpointer)
    checkpointer._kv, checkpointer._newest = MemoryKV(), SimpleNamespace(index=-10)
    checkpointer.sync, checkpointer.checkpoint = lambda: done.append("sync"), lambda: done.append("checkpoint")
    checkpointer.stop()
    assert done == ["sync", "checkpoint"]


def watched(**record: Any) -> Any:
    """The links of node 1, which dialled node 2 a minute ago."""
    links: Any = object.__new__(Links)
    links._records = {TWO: SimpleNamespace(pongs={}, expired=False, **record)}
    links._inlets, links._ha, links._slept_ms = {}, HaSection(), 0
    links._metrics = LinkMetrics()
    links._transport = SimpleNamespace(roster=SimpleNamespace(object_of=lambda peer: f"node {peer}"))
    links._clock = SimpleNamespace(monotonic_ms=lambda: 60_000, monotonic_s=lambda: 60.0)
    return links


def witness_K01() -> None:
    gone: list[str] = []
    made = {BULK: (SimpleNamespace(abort=lambda: gone.append(BULK)), 0)}
    watched(made=made, heard_ms=60_000)._expire(60_000)
    assert gone, "nothing that it sent there was answered"


def witness_K03() -> None:
    links = watched(round_trip_ms=None)
    links._asked = {1: 59_999.0}
    links.on_frame(TWO, Kind.PONG, [CONTROL, 1])
    assert list(links._records[TWO].pongs) == [CONTROL]


def witness_K02() -> None:
    raw: Any = SimpleNamespace(catch_up_waits=True, catch_up_budget=-500, last_index=9)
    quota = CatchUp(raw, 1000, lambda: None)
    quota.tick(0)
    quota.tick(1000)
    assert raw.catch_up_budget > 0


def witness_P01() -> None:
    cluster, own, other = (str(UUID(int=number)) for number in (7, 1, 4))
    transport = PeerTransport(Membership(cluster, 1, ONE, own, {ONE: own}), {}, ("10.0.0.1", 1))
    dialled: list[NodeId] = []
    transport._dial_all = lambda: dialled.extend(transport.roster.peers())  # type: ignore[method-assign]
    transport.on_hello(FOUR, CONTROL, [cluster, 1, FOUR, other, ONE, CONTROL, 3, "10.0.0.4", 1])
    assert dialled == [FOUR]

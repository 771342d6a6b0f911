"""Plain sends are answered when their entry is committed. If nobody waits for the messages, the entry is applied later,
together with others, but before anything is answered from the state."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from cluster.broker.sends.send_outcomes import SendOutcomes
from cluster.replication.apply_lane import HELD_MS
from jepsen_like.sim.machines.lone_node import LoneNode, lone_options
from jepsen_like.sim.machines.network import Endpoint
from raftlog.types import Entry
from raftmq.commands.bench_load import request_frame
from raftmq_wire.codec import encode_frame
from raftmq_wire.codes import RequestCode
from tests.support.kernels import native_kernel
from tests.support.sim_cluster import send_frame


class Client(asyncio.Protocol):
    """Keeps what it receives."""

    def __init__(self) -> None:
        self.seen = b""
        self.then = b""
        """What the client sends the moment it has an answer."""
        self.answered_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(Endpoint, transport)

    def data_received(self, data: bytes) -> None:
        self.seen += data
        self.answered_s = asyncio.get_running_loop().time()
        if then := self.then:
            self.then = b""
            self.transport.write(then)


def read_frame(code: RequestCode, offset: int = 0, suspend_ms: int = 0, timestamp: str = "0") -> bytes:
    """A request of a consumer for queue 0 of topic orders."""
    ext = {
        "consumerGroup": "g",
        "topic": "orders",
        "queueId": "0",
        "queueOffset": str(offset),
        "maxMsgNums": "8",
        "sysFlag": "6",
        "commitOffset": "0",
        "suspendTimeoutMillis": str(suspend_ms),
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
        "timestamp": timestamp,
    }
    return encode_frame(code, 99, 0, ext=ext)


class Steps:
    """A node that leads, and the order in which it answers sends and applies their entries."""

    def __init__(self, patch: pytest.MonkeyPatch, inline: float) -> None:
        native_kernel()
        self.lone = LoneNode(lone_options(apply_inline=inline, append_inline=1.0))
        self.client = self.lone.connect(Client, 0.1)[1]
        self.ask(1)  # makes the topic
        self.ask(1)  # begins the connection's session
        node = self.lone.machine.node
        assert node is not None
        self.node = node
        self.noted: list[tuple[str, int]] = []
        self.applied_s: list[float] = []
        """The times at which something was applied."""
        outcomes, apply = cast(SendOutcomes, node.serving.proposals._replies), node.state.apply

        def committed(*arguments: Any) -> int:
            count: int = SendOutcomes.committed(outcomes, *arguments)
            self.noted.append(("answered", count))
            return count

        def stored(*arguments: Any) -> None:
            self.noted.append(("stored", len(arguments[0]) - len(arguments[2])))
            SendOutcomes.stored(outcomes, *arguments)

        def applied(entries: list[Entry]) -> Any:
            waiting = [node.serving.proposals.pending_at(entry.index) for entry in entries]
            self.noted.append(("applied", sum([len(one.muted) for one in waiting if one is not None])))
            self.applied_s.append(self.lone.loop.now)
            return apply(entries)

        patch.setattr(outcomes, "committed", committed)
        patch.setattr(outcomes, "stored", stored)
        patch.setattr(node.state, "apply", applied)

    def ask(self, count: int) -> list[int]:
        """Sends so many messages to one queue, and returns their offsets in the order of the answers."""
        self.client.seen = b""
        for opaque in range(count):
            frame = request_frame("orders", opaque, 0, 1, b"body")
            self.lone.client.run(self.client.transport.write, frame)
        self.lone.pass_time(1.0)
        assert self.client.seen.count(b'"code":0,') == count
        return [int(found) for found in re.findall(rb'"queueOffset":"(\d+)"', self.client.seen)]

    def close(self) -> None:
        self.lone.close()


@pytest.fixture
def steps_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], Steps]]:
    made: list[Steps] = []

    def make(inline: float) -> Steps:
        made.append(Steps(monkeypatch, inline))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_plain_sends_are_answered_and_then_applied(steps_of: Callable[[float], Steps]) -> None:
    """Nobody is answered twice."""
    steps = steps_of(1.0)
    assert steps.ask(1) == [2]
    assert steps.noted == [("answered", 1), ("applied", 0)]
    assert steps.applied_s[0] - steps.client.answered_s == pytest.approx(HELD_MS / 1000, abs=0.002)
    steps.noted.clear()
    assert steps.ask(3) == [3, 4, 5]
    assert sum([count for what, count in steps.noted if what == "answered"]) == 3
    assert all(what != "stored" for what, _ in steps.noted)
    assert steps.node.state.max_offset(steps.node.state.topics["orders"].id, 0) == 6


def test_what_a_thread_applies_is_applied_first(steps_of: Callable[[float], Steps]) -> None:
    """Somebody else could read before the rows are there."""
    steps = steps_of(0.0)
    assert steps.ask(1) == [2]
    assert steps.noted == [("applied", 0), ("stored", 1)]


def test_while_a_send_of_another_level_may_wait_all_wait_for_apply(steps_of: Callable[[float], Steps]) -> None:
    steps = steps_of(1.0)
    frame = send_frame(9, "orders", b"body", properties="ACK_LEVEL\x01leader\x02")
    steps.lone.client.run(steps.client.transport.write, frame)
    steps.lone.pass_time(steps.node.config.send.deadline_ms / 1000)
    steps.noted.clear()
    assert steps.ask(1) == [3]
    assert steps.noted == [("applied", 0), ("stored", 1)]
    steps.lone.pass_time(2 * steps.node.config.send.deadline_ms / 1000)
    steps.noted.clear()
    assert steps.ask(1) == [4]
    assert steps.noted == [("answered", 1), ("applied", 0)]


@pytest.mark.parametrize(
    ("frame", "shows"),
    [
        (read_frame(RequestCode.PULL_MESSAGE, 2), b"message 2"),
        (read_frame(RequestCode.GET_MAX_OFFSET), b'"offset":"3"'),
        (read_frame(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp="9000000000000"), b'"offset":"3"'),
    ],
    ids=["pull", "max offset", "search"],
)
def test_whoever_asks_after_an_answer_finds_the_message(
    steps_of: Callable[[float], Steps], frame: bytes, shows: bytes
) -> None:
    """The request comes while the message is not applied."""
    steps = steps_of(1.0)
    steps.client.seen, steps.client.then = b"", frame
    steps.lone.client.run(steps.client.transport.write, request_frame("orders", 1, 0, 1, b"message 2"))
    steps.lone.pass_time(0.5 * HELD_MS / 1000)
    assert steps.client.seen.count(b'"code":0,') == 2
    assert shows in steps.client.seen[steps.client.seen.index(b'"opaque":99') - 300 :]
    assert steps.noted[0] == ("answered", 1), "otherwise this tests nothing"


def test_a_message_for_which_a_pull_waits_is_applied_at_once(steps_of: Callable[[float], Steps]) -> None:
    steps = steps_of(1.0)
    waiting = steps.lone.connect(Client, 0.1)[1]
    steps.lone.client.run(waiting.transport.write, read_frame(RequestCode.PULL_MESSAGE, 2, 15_000))
    steps.lone.pass_time(0.1)
    assert waiting.seen == b""
    steps.lone.client.run(steps.client.transport.write, request_frame("orders", 1, 0, 1, b"message 2"))
    steps.lone.pass_time(0.5 * HELD_MS / 1000)
    assert b"message 2" in waiting.seen
    assert steps.noted == [("answered", 1), ("applied", 1)]


def test_what_another_node_reads_through_the_leader_is_applied(steps_of: Callable[[float], Steps]) -> None:
    steps = steps_of(1.0)
    steps.lone.client.run(steps.client.transport.write, request_frame("orders", 1, 0, 1, b"body"))
    steps.lone.pass_time(0.002)
    assert steps.noted == [("answered", 1)], "otherwise this tests nothing"
    told: list[tuple[bool, int]] = []
    topic_id = steps.node.state.topics["orders"].id
    assert steps.lone.machine.process is not None
    steps.lone.machine.process.run(
        steps.node.serving.services.read_index,
        lambda ok: told.append((ok, steps.node.state.max_offset(topic_id, 0))),
    )
    steps.lone.pass_time(0.002)
    assert told == [(True, 3)]


def test_a_node_that_is_closed_applies_what_it_holds(steps_of: Callable[[float], Steps]) -> None:
    steps = steps_of(1.0)
    steps.lone.client.run(steps.client.transport.write, request_frame("orders", 1, 0, 1, b"body"))
    steps.lone.pass_time(0.002)
    assert steps.noted == [("answered", 1)], "otherwise this tests nothing"
    assert steps.lone.machine.process is not None
    steps.lone.machine.process.run(steps.lone.loop.create_task, steps.node._lanes.close())
    steps.lone.pass_time(0.001)
    assert steps.noted == [("answered", 1), ("applied", 0)]


def test_an_answer_that_fails_is_not_given_twice(
    steps_of: Callable[[float], Steps], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = steps_of(1.0)
    contained: list[str] = []

    def fails(*_: Any) -> int:
        raise ValueError("a bug")

    monkeypatch.setattr(steps.node.serving.proposals._replies, "committed", fails)
    monkeypatch.setattr(steps.node.serving.proposals, "on_contained", lambda what, error: contained.append(what))
    steps.client.seen = b""
    steps.lone.client.run(steps.client.transport.write, request_frame("orders", 1, 0, 1, b"body"))
    steps.lone.pass_time(1.0)
    assert steps.client.seen == b""
    assert len(contained) == 1
    assert [what for what, _ in steps.noted] == ["applied"]

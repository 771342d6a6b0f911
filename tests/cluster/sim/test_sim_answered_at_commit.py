"""Plain sends are answered when their entry is committed, if it is applied before anything else happens."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from cluster.broker.sends.send_outcomes import SendOutcomes
from jepsen_like.sim.machines.lone_node import LoneNode, lone_options
from jepsen_like.sim.machines.network import Endpoint
from raftlog.types import Entry
from raftmq.commands.bench_load import request_frame
from tests.support.kernels import native_kernel
from tests.support.sim_cluster import send_frame


class Client(asyncio.Protocol):
    """Keeps what it receives."""

    def __init__(self) -> None:
        self.seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(Endpoint, transport)

    def data_received(self, data: bytes) -> None:
        self.seen += data


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
    """The entry stays pending meanwhile, so that a repetition finds it; nobody is answered twice."""
    steps = steps_of(1.0)
    assert steps.ask(1) == [2]
    assert steps.noted == [("answered", 1), ("applied", 1)]
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
    assert steps.noted == [("answered", 1), ("applied", 1)]


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

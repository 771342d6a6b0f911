"""A topic whose number of queues goes up and down, in the simulator: what is broken is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cluster.broker.groups import group_lag, group_offsets, hidden_queues
from jepsen_like.sim.clients import client_machines, resized_topics
from jepsen_like.sim.options import RESIZED_FROM, draw
from jepsen_like.sim.scripted import play
from statemachine.broker_state import BrokerState

SCRIPT = "nodes 3 resized=1\nlead 1\ndemand 6\nkill 1\nwait 2\nstart 1\nsettle\n"


def found(script: str) -> list[str]:
    return [violation.checker for violation in play(script).violations]


def test_fewer_queues_lose_nothing_across_a_killed_leader() -> None:
    assert found(SCRIPT) == []


def test_a_quarter_of_the_later_seeds_has_such_a_topic() -> None:
    assert {draw(seed).resized for seed in range(RESIZED_FROM, RESIZED_FROM + 40)} == {0, 1}
    assert not any(draw(seed).resized for seed in range(RESIZED_FROM - 40, RESIZED_FROM))


def refuses_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("cluster.remoting.handlers.topics_admin.check_hides_nothing", lambda state, config: iter(()))


def names_too_many(patch: pytest.MonkeyPatch) -> None:
    bounds = group_lag.bounds
    patch.setattr(hidden_queues, "bounds", lambda *of: (bounds(*of)[0], 1_000 + bounds(*of)[1]))


def counts_no_hidden_queue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BrokerState, "stored_queues", lambda self, topic: topic.queues)


def loses_a_message(patch: pytest.MonkeyPatch) -> None:
    """A queue that comes back lacks its last message on every node."""
    read_queue = client_machines.read_queue

    async def read(client: Any, topic: str, queue: int, address: str) -> tuple[list[Any], int]:
        messages, lowest = await read_queue(client, topic, queue, address)
        return (messages if queue == 0 else messages[:-1]), lowest

    patch.setattr(resized_topics, "read_queue", read)


def hides_an_offset_beyond_the_end(patch: pytest.MonkeyPatch) -> None:
    """The committed offset is told as if it lay at the end."""
    told = group_offsets.Offsets.stored_or_zero

    def within(self: Any, group: str, topic: str, queue_id: int, *, zero_if_whole: bool) -> int | None:
        offset = told(self, group, topic, queue_id, zero_if_whole=zero_if_whole)
        config = self._services.state.topics.get(topic)
        return offset if offset is None else min(offset, self._services.state.max_offset(config.id, queue_id))

    patch.setattr(group_offsets.Offsets, "stored_or_zero", within)


@pytest.mark.parametrize(
    "breaks",
    [
        refuses_nothing,
        names_too_many,
        counts_no_hidden_queue,
        hides_an_offset_beyond_the_end,
        pytest.param(loses_a_message, marks=pytest.mark.ci),
    ],
)
def test_what_is_broken_is_found(breaks: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    breaks(monkeypatch)
    assert found(SCRIPT)[0] == "queues"

"""The strategies by which the broker divides queues among the members of a group."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.broker.groups.assignment import averagely, by_circle


@pytest.mark.parametrize("strategy", [averagely, by_circle])
@given(queues=st.integers(0, 40), clients=st.integers(1, 12))
def test_every_queue_has_one_reader(strategy: Any, queues: int, clients: int) -> None:
    names = [f"c{number:02}" for number in range(clients)]
    shares = [strategy(range(queues), names, name) for name in names]
    assert sorted(queue for share in shares for queue in share) == [*range(queues)]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert strategy(range(queues), names, "stranger") == []


def test_shares_are_those_that_java_clients_choose() -> None:
    """AllocateMessageQueueAveragely of 8 queues and 3 clients, 2 queues and 3 clients."""
    names = ["a", "b", "c"]
    assert [averagely(range(8), names, n) for n in names] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert [averagely(range(2), names, n) for n in names] == [[0], [1], []]
    assert [by_circle(range(8), names, n) for n in names] == [[0, 3, 6], [1, 4, 7], [2, 5]]

"""The strategies by which the broker divides queues among the members of a group."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.broker.groups.assignment import STRATEGIES


def shares_of(strategy: str, queues: int, clients: int) -> list[list[int]]:
    return [list(STRATEGIES[strategy](range(queues), rank, clients)) for rank in range(clients)]


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(queues=st.integers(0, 40), clients=st.integers(1, 12))
def test_every_queue_has_one_reader(strategy: str, queues: int, clients: int) -> None:
    shares = shares_of(strategy, queues, clients)
    assert sorted(queue for share in shares for queue in share) == [*range(queues)]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_shares_are_those_that_java_clients_choose() -> None:
    """AllocateMessageQueueAveragely of 8 queues and 3 clients, 2 queues and 3 clients."""
    assert shares_of("AVG", 8, 3) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert shares_of("AVG", 2, 3) == [[0], [1], []]
    assert shares_of("AVG_BY_CIRCLE", 8, 3) == [[0, 3, 6], [1, 4, 7], [2, 5]]

"""Rows that were read lately are the rows of the store: any range, any order, while the queue grows and is trimmed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from cluster.broker.reads.row_scan import RecentBlocks
from statemachine.consume_queue import BLOCK


@pytest.fixture(autouse=True)
def topic(node: Any) -> None:
    node.create_topic("T")


@pytest.mark.parametrize("seed", range(5))
def test_any_range_is_that_of_the_store(node: Any, seed: int) -> None:
    rng = random.Random(seed)
    rows, state = RecentBlocks(node.state, blocks_max=2), node.state
    for _ in range(12):
        for queue in (0, 1):
            node.store("T", *[b"%d" % rng.randrange(100) for _ in range(rng.randrange(1, 200))], queue_id=queue)
        topic = state.topics["T"].id
        for _ in range(60):
            queue = rng.randrange(2)
            high = state.max_offset(topic, queue)
            low = state.min_offset(topic, queue)
            start = rng.randrange(low, high)
            end = rng.randrange(start + 1, min(high, start + 2 * BLOCK) + 1)
            assert rows.between(topic, queue, start, end, high) == state.fetch_packed(topic, queue, start, end - start)


def test_a_closed_block_is_read_once(node: Any) -> None:
    node.store("T", *[b"m"] * (BLOCK + 10))
    topic, reads = node.state.topics["T"].id, []
    fetch = node.state.fetch_packed
    node.state.fetch_packed = lambda *asked: reads.append(asked) or fetch(*asked)
    rows = RecentBlocks(node.state)
    for start in range(0, BLOCK, 32):
        assert len(rows.between(topic, 0, start, start + 32, BLOCK + 10)) == 32 * 32
    rows.between(topic, 0, BLOCK, BLOCK + 5, BLOCK + 10)
    rows.between(topic, 0, BLOCK, BLOCK + 5, BLOCK + 10)
    assert reads == [(topic, 0, 0, BLOCK), (topic, 0, BLOCK, 5), (topic, 0, BLOCK, 5)], "the open block grows"


def test_a_block_whose_first_rows_are_gone_is_not_kept(node: Any) -> None:
    node.store("T", *[b"m"] * (BLOCK + 1))
    topic, fetch = node.state.topics["T"].id, node.state.fetch_packed
    node.state.fetch_packed = lambda topic, queue, start, count: (
        b"" if start < 40 else fetch(topic, queue, start, count)
    )
    rows = RecentBlocks(node.state)
    assert rows.between(topic, 0, 40, 44, BLOCK + 1) == fetch(topic, 0, 40, 4)
    assert rows.between(topic, 0, 10, 14, BLOCK + 1) == b"", "trimmed since: the pull learns the new bounds"

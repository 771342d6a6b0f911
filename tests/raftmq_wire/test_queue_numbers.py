"""The number of a queue: one integer for a queue of any group of brokers, and how people write it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq_wire.queue_numbers import (
    GROUPS_MAX,
    QUEUES_PER_GROUP,
    group_of,
    number_of,
    parse_queue,
    queue_in_group,
    queue_text,
)
from tests.support.rows import each_row


@given(st.integers(1, GROUPS_MAX), st.integers(0, QUEUES_PER_GROUP - 1))
def test_a_number_is_a_group_and_a_queue(group: int, queue: int) -> None:
    number = number_of(group, queue)
    assert (group_of(number), queue_in_group(number)) == (group, queue)
    assert parse_queue(queue_text(number)) == number < 1 << 31
    assert group > 1 or number == queue, "in the first group nothing is new"


def test_how_people_write_it() -> None:
    assert [queue_text(number) for number in (0, 7, 65536, 2 * 65536 + 3)] == ["0", "7", "2/0", "3/3"]
    assert parse_queue("1/4") == 4


@each_row("text", ["", "x", "2/", "/3", "0/1", "65/0", "1/65536", "65536", "-1", "2/3/4", " 3", "٣"])
def test_what_is_no_queue(text: str) -> None:
    with pytest.raises(ValueError, match="is no queue"):
        parse_queue(text)


@pytest.mark.parametrize("number", [-1, -65536])
def test_a_number_that_no_queue_has_stays_as_it_is(number: int) -> None:
    assert (group_of(number), queue_in_group(number)) == (1, number)

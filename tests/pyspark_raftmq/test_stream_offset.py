"""Offsets of a stream: exact ranges, the same text for the same place, and fair shares. No Spark, no cluster."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_raftmq.errors import PlanError
from pyspark_raftmq.stream_offset import Queue, StreamOffset, ranges_between, read_offset, share
from raftmq.arrow.ranges import QueueRange
from raftmq_wire.topic_identity import TopicIdentity

QUEUES = st.tuples(st.sampled_from(["orders", "payments", "a.b"]), st.integers(0, 30))
HERE = TopicIdentity("11111111-2222-4333-8444-555555555555", 0, 7)
OFFSETS = st.dictionaries(QUEUES, st.integers(0, 2**62), max_size=8)


def test_the_form_is_promised() -> None:
    """It lies in users' checkpoints."""
    offset = StreamOffset({("orders", 10): 97, ("orders", 2): 120, ("a", 0): 1}, {("orders", 10): 90})
    text = '{"v": 1, "topics": {"a": {"0": 1}, "orders": {"2": 120, "10": 97}}, "began": {"orders": {"10": 90}}}'
    assert json.dumps(offset.to_json()) == text
    assert read_offset(json.loads(text)) == offset
    named = StreamOffset({("orders", 2): 120}, ids={"orders": HERE})
    text = f'{{"v": 1, "topics": {{"orders": {{"2": 120}}}}, "ids": {{"orders": "{HERE}"}}}}'
    assert json.dumps(named.to_json()) == text
    assert read_offset(json.loads(text)) == named


@given(OFFSETS, OFFSETS, st.booleans())
def test_json_and_back(following: dict[Queue, int], began: dict[Queue, int], named: bool) -> None:
    offset = StreamOffset(following, began, {topic: HERE for topic, _ in following} if named else {})
    assert read_offset(json.loads(json.dumps(offset.to_json()))) == offset
    turned = StreamOffset(dict(reversed(following.items())), dict(reversed(began.items())), offset.ids)
    assert json.dumps(turned.to_json()) == json.dumps(offset.to_json())


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"v": 2, "topics": {}},
        {"v": 1},
        {"v": 1, "topics": {"a": {"x": 1}}},
        {"v": 1, "topics": {}, "ids": {"a": 7}},
    ],
)
def test_what_is_not_understood_is_refused(told: dict[str, object]) -> None:
    with pytest.raises(PlanError, match="offset is not understood"):
        read_offset(told)


def test_ranges_of_old_new_and_renewed_queues() -> None:
    start = StreamOffset({("t", 0): 5, ("t", 1): 9, ("t", 2): 50})
    end = StreamOffset({("t", 0): 8, ("t", 1): 9, ("t", 2): 3, ("t", 3): 12}, {("t", 2): 1, ("t", 3): 10})
    assert ranges_between(start, end) == [
        QueueRange("t", 0, 5, 8),
        QueueRange("t", 2, 1, 3),
        QueueRange("t", 3, 10, 12),
    ]
    assert ranges_between(start, start) == []


@given(st.dictionaries(QUEUES, st.integers(0, 10**6), max_size=8), st.integers(1, 10**6))
def test_shares_use_the_limit_and_no_more_than_there_is(lags: dict[Queue, int], most: int) -> None:
    taken = share(lags, most)
    assert sum(taken.values()) == min(most, sum(lags.values()))
    assert all(0 <= taken[queue] <= lags[queue] for queue in lags)


def test_no_queue_waits_for_ever() -> None:
    """One slow queue beside nine that never run dry still gets its turn."""
    lags: dict[Queue, int] = {("t", queue): 1000 for queue in range(9)} | {("t", 9): 1}
    for _ in range(1000):
        taken = share(lags, 10)
        lags = {queue: lag - taken[queue] for queue, lag in lags.items()}
    assert lags["t", 9] == 0

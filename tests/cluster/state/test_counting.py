"""The rows of a state that does not know its sums: counted at the start, as a stage, with its progress in the log."""

from __future__ import annotations

import logging

import pytest

from cluster.state.node_storage import Counting, Stages
from jepsen_like.fakes.memory_kv import MemoryKV
from statemachine.broker_state import BrokerState
from statemachine.rows import running_digest
from statemachine.rows.kv import CQ, INDEX, Batch

ROWS = 30


@pytest.fixture
def kv() -> MemoryKV:
    kv, batch = MemoryKV(), Batch()
    for number in range(ROWS):
        batch.put(CQ if number % 3 else INDEX, b"%016d" % number, b"value")
    kv.write(batch)
    return kv


def test_counting_is_a_stage_and_tells_how_far_it_is(kv: MemoryKV, caplog: pytest.LogCaptureFixture) -> None:
    now = iter(range(0, 1000, 3))
    stages = Stages(lambda: 0.0)
    with caplog.at_level(logging.INFO, "cluster.state.node_storage"):
        counted = Counting(stages, lambda: float(next(now)), progress_rows=4)(kv)
    assert counted == running_digest.count(kv)
    assert "sums" in stages.milliseconds
    said = [record.getMessage() for record in caplog.records]
    assert [text.rpartition(": ")[2] for text in said[:-1]] == [
        "8 so far, in cq",
        "16 so far, in cq",
        "24 so far, in index",
    ]
    assert said[-1] == "all rows of the state are counted"


def test_a_state_that_knows_its_sums_is_not_counted() -> None:
    def never(kv: object) -> running_digest.Sums:
        raise AssertionError("it is new")

    BrokerState(MemoryKV(), never)

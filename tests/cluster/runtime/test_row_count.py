"""The rows of a fetched checkpoint are counted by another process: a node that serves has no time for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cluster.runtime.environment import Environment
from cluster.runtime.figures.row_count import count_apart, counted
from raftlog.types import EMPTY_TAIL
from statemachine.broker_state import BrokerState
from statemachine.rows.kv import OFFSETS, Batch, KVError
from statemachine.rows.rocksdb_store import RocksKV
from tests.support.node_kit import entries_after


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows"
    kv = RocksKV(str(path))
    BrokerState(kv).apply(entries_after(EMPTY_TAIL, 20, segment_size=4096))
    batch = Batch()
    for number in range(1000):
        batch.put(OFFSETS, b"g\0" + number.to_bytes(8, "big"), b"12345678")
    kv.write(batch)
    kv.close()
    return path


def test_the_rows_are_counted_as_in_this_process(rows: Path) -> None:
    kv = RocksKV(str(rows))
    expected = counted(kv)
    kv.close()
    assert expected.mark.index == 19
    assert expected.sums[OFFSETS]
    assert Environment().count_rows is count_apart
    assert count_apart(rows) == expected


def test_rows_that_cannot_be_read_are_told_as_such(rows: Path) -> None:
    for table in [*rows.glob("*.sst"), *rows.glob("*.log")]:
        data = bytearray(table.read_bytes())
        data[: len(data) // 2] = bytes(len(data) // 2)
        table.write_bytes(data)
    with pytest.raises(KVError):
        count_apart(rows)


def test_a_helper_that_ends_early_is_no_count(rows: Path) -> None:
    with pytest.raises(ValueError, match="out of memory"):
        count_apart(rows, (sys.executable, "-c", "raise SystemExit('out of memory')"))

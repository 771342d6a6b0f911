"""Files by day: consecutive rows, named by their offsets, complete or not there. No Spark, no cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raftmq.arrow.columns import arrow_schema
from raftmq.arrow.ranges import QueueRange
from raftmq.tables.day_files import DayFile, write_day_files
from raftmq.tables.delta_table import DeltaTarget
from raftmq.tables.errors import LostRace, TableError
from raftmq.tables.missing import check_continues
from raftmq_wire.topic_identity import Position, TopicIdentity

COLUMNS = ("topic", "queue_id", "queue_offset", "store_ms")
DAY_MS = 86_400_000


def batch(first: int, *store_ms: int, topic: str = "orders") -> pa.RecordBatch:
    count = len(store_ms)
    columns = [[topic] * count, [0] * count, [*range(first, first + count)], store_ms]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, arrow_schema(COLUMNS), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(COLUMNS))


def written(folder: Path, *batches: pa.RecordBatch) -> list[DayFile]:
    return list(write_day_files(folder, "orders", 0, batches))


def test_each_day_has_a_file_of_its_own(tmp_path: Path) -> None:
    files = written(tmp_path, batch(5, 0, 1), batch(7, 2, DAY_MS, DAY_MS + 1), batch(10, 2 * DAY_MS - 1))
    assert [(file.day, file.start, file.end) for file in files] == [("1970-01-01", 5, 8), ("1970-01-02", 8, 11)]
    for file in files:
        path = tmp_path / file.path
        assert pq.ParquetFile(path).read().column("queue_offset").to_pylist() == [*range(file.start, file.end)]
        assert path.stat().st_size == file.bytes
    check_continues(files, [QueueRange("orders", 0, 5, 11)])


def test_a_name_of_a_topic_is_no_path(tmp_path: Path) -> None:
    (file,) = write_day_files(tmp_path, "../%a/b", 0, [batch(0, 0, topic="../%a/b")])
    assert (tmp_path / file.path).resolve().parent == tmp_path / "day=1970-01-01"


def test_what_breaks_off_leaves_no_file_that_looks_whole(tmp_path: Path) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield batch(0, 0, 1)
        raise RuntimeError("the read stops")

    with pytest.raises(RuntimeError, match="the read stops"):
        list(write_day_files(tmp_path, "orders", 0, broken()))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("kept", [[(0, 2), (3, 5)], [(0, 2)], [(0, 2), (0, 5)], [(0, 3), (2, 5)], []])
def test_files_that_lack_or_repeat_an_offset_are_not_committed(kept: list[tuple[int, int]]) -> None:
    files = [DayFile(f"{start}-{end}", "1970-01-01", "orders", 0, start, end, 1) for start, end in kept]
    with pytest.raises(TableError, match="do not hold it"):
        check_continues(files, [QueueRange("orders", 0, 0, 5)])


def test_of_two_that_began_at_one_place_one_commits(tmp_path: Path) -> None:
    """Also the first time, when the table has no offset of the queue yet; files of the other are discarded."""
    for first, end in ((0, 2), (2, 3)):
        one, two = DeltaTarget(tmp_path, COLUMNS), DeltaTarget(tmp_path, COLUMNS)
        assert one.reached("orders", 0) == two.reached("orders", 0) == (Position(first) if first else None)
        times = range(first, end)
        mine, others = written(tmp_path, batch(first, *times)), written(tmp_path, batch(first, *times))
        one.commit(mine, {("orders", 0): Position(end)})
        with pytest.raises(LostRace):
            two.commit(others, {("orders", 0): Position(end)})
        two.discard([*mine, *others])
        assert [(tmp_path / file.path).exists() for file in (*mine, *others)] == [True, False]
    assert offsets_in(tmp_path) == [0, 1, 2]
    assert DeltaTarget(tmp_path, COLUMNS).reached("orders", 0) == Position(3)


def test_exports_of_other_queues_do_not_disturb_each_other(tmp_path: Path) -> None:
    one, two = DeltaTarget(tmp_path, COLUMNS), DeltaTarget(tmp_path, COLUMNS)
    one.commit(written(tmp_path, batch(0, 0)), {("orders", 0): Position(1)})
    two.commit(list(write_day_files(tmp_path, "orders", 1, [batch(7, 0)])), {("orders", 1): Position(8)})
    now = DeltaTarget(tmp_path, COLUMNS)
    assert (now.reached("orders", 0), now.reached("orders", 1), now.reached("a", 0)) == (Position(1), Position(8), None)


def test_a_table_knows_the_topic_in_which_it_goes_on(tmp_path: Path) -> None:
    """Also one of an earlier release, from the next commit on, which may have no files."""
    low = TopicIdentity("ffffffff-ffff-4fff-8fff-ffffffffffff", 0, 7)
    high = TopicIdentity("00000000-0000-4000-8000-000000000001", 3, 2**32 - 2)
    zero, one = ("orders", 0), ("orders", 1)
    DeltaTarget(tmp_path, COLUMNS).commit(written(tmp_path, batch(0, 0)), {zero: Position(1), one: Position(5)})
    for identity, offset in ((low, 1), (low, 1), (high, 0)):
        DeltaTarget(tmp_path, COLUMNS).commit([], {zero: Position(offset, identity)})
        target = DeltaTarget(tmp_path, COLUMNS)
        assert (target.reached(*zero), target.reached(*one)) == (Position(offset, identity), Position(5))
    assert offsets_in(tmp_path) == [0]


def test_a_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    DeltaTarget(tmp_path, COLUMNS)
    with pytest.raises(TableError, match="has other columns"):
        DeltaTarget(tmp_path, (*COLUMNS, "body"))


def offsets_in(folder: Path) -> list[int]:
    from deltalake import DeltaTable

    found: list[int] = DeltaTable(str(folder)).to_pyarrow_table().column("queue_offset").to_pylist()
    return sorted(found)

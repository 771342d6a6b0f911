"""Parquet files by day without a table: names are the record, and each offset is in one visible file. No Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from raftmq.tables.day_files import DayFile, write_day_files
from raftmq.tables.delta_table import DeltaTarget
from raftmq.tables.errors import LostRace, TableError
from raftmq.tables.parquet_folder import HIDDEN, ParquetTarget
from raftmq_wire.topic_identity import Position, TopicIdentity
from tests.raftmq.tables.test_day_files import COLUMNS, DAY_MS, batch

OLD = TopicIdentity("11111111-2222-4333-8444-555555555555", 0, 7)
NEW = OLD._replace(topic_id=9)


def written(folder: Path, first: int, end: int, queue_id: int = 0, topic: str = "orders") -> list[DayFile]:
    """Files of the offsets [first, end): message n was stored on day n // 10."""
    rows = batch(first, *(offset // 10 * DAY_MS for offset in range(first, end)), topic=topic)
    return list(write_day_files(folder, topic, queue_id, [rows], HIDDEN))


def visible(folder: Path) -> list[int]:
    """Offsets that a reader of the folder sees."""
    found: list[int] = ds.dataset(folder, format="parquet").to_table().column("queue_offset").to_pylist()
    return sorted(found)


def test_files_are_visible_from_the_commit_on(tmp_path: Path) -> None:
    target = ParquetTarget(tmp_path, COLUMNS)
    assert target.reached("orders", 0) is None
    files = written(tmp_path, 5, 25)
    assert visible_or_none(tmp_path) == []
    target.commit(files, {("orders", 0): Position(25)})
    assert visible(tmp_path) == [*range(5, 25)]
    assert sorted(path.parent.name for path in tmp_path.rglob("part-*")) == [f"day=1970-01-0{day}" for day in (1, 2, 3)]
    assert ParquetTarget(tmp_path, COLUMNS).reached("orders", 0) == Position(25)


def visible_or_none(folder: Path) -> list[int]:
    return visible(folder) if any(folder.rglob("part-*")) else []


def test_an_export_that_died_between_two_files_goes_on_behind_the_first(tmp_path: Path) -> None:
    ParquetTarget(tmp_path, COLUMNS).commit(written(tmp_path, 0, 20)[:1], {("orders", 0): Position(10)})
    target = ParquetTarget(tmp_path, COLUMNS)
    assert target.reached("orders", 0) == Position(10)
    target.commit(written(tmp_path, 10, 20), {("orders", 0): Position(20)})
    assert visible(tmp_path) == [*range(20)]


@pytest.mark.parametrize("starts", [(0, 0), (0, 5)])
def test_of_two_that_began_at_one_place_one_commits(tmp_path: Path, starts: tuple[int, int]) -> None:
    """Also if retention has moved the place where the second begins."""
    one, two = ParquetTarget(tmp_path, COLUMNS), ParquetTarget(tmp_path, COLUMNS)
    mine, theirs = written(tmp_path, starts[0], 20), written(tmp_path, starts[1], 30)
    others = written(tmp_path, 0, 4, queue_id=1)
    one.commit(mine, {("orders", 0): Position(20)})
    with pytest.raises(LostRace, match="another export wrote orders/0") as lost:
        two.commit([*theirs, *others], {("orders", 0): Position(30), ("orders", 1): Position(4)})
    assert lost.value.kept == others
    two.discard(theirs)
    assert visible(tmp_path) == sorted([*range(20), *range(4)])
    assert [path for path in tmp_path.rglob("*.parquet") if path.name.startswith(HIDDEN)] == []


def test_a_name_that_is_taken_is_never_replaced(tmp_path: Path) -> None:
    """If the file system knows no locks, the link decides."""
    target = ParquetTarget(tmp_path, COLUMNS)
    target.commit(written(tmp_path, 0, 3), {("orders", 0): Position(3)})
    target._reached = {("orders", 0): {None: 3}}
    with pytest.raises(LostRace):
        target.commit(written(tmp_path, 0, 7), {("orders", 0): Position(7)})
    assert visible(tmp_path) == [0, 1, 2]


def test_the_topic_made_again_begins_beside_the_old_one(tmp_path: Path) -> None:
    queue = ("orders", 0)
    ParquetTarget(tmp_path, COLUMNS).commit(written(tmp_path, 0, 12), {queue: Position(12, OLD)})
    target = ParquetTarget(tmp_path, COLUMNS)
    assert target.reached(*queue, OLD) == target.reached(*queue, NEW) == target.reached(*queue) == Position(12, OLD)
    target.commit(written(tmp_path, 0, 3), {queue: Position(3, NEW)})
    target = ParquetTarget(tmp_path, COLUMNS)
    assert target.reached(*queue, OLD) == Position(12, OLD)
    assert target.reached(*queue, NEW) == target.reached(*queue) == Position(3, NEW)
    assert visible(tmp_path) == sorted([*range(12), *range(3)])


def test_names_of_an_earlier_release_are_completed(tmp_path: Path) -> None:
    """Once with the next files, and at once where a queue has nothing new."""
    zero, one = ("orders", 0), ("orders", 1)
    files = [*written(tmp_path, 0, 12), *written(tmp_path, 0, 4, queue_id=1)]
    ParquetTarget(tmp_path, COLUMNS).commit(files, {zero: Position(12), one: Position(4)})
    target = ParquetTarget(tmp_path, COLUMNS)
    assert (target.reached(*zero, NEW), target.reached(*one, NEW)) == (Position(12), Position(4))
    target.commit(written(tmp_path, 12, 14), {zero: Position(14, NEW), one: Position(4, NEW)})
    target = ParquetTarget(tmp_path, COLUMNS)
    assert (target.reached(*zero, NEW), target.reached(*one, NEW)) == (Position(14, NEW), Position(4, NEW))
    assert target.reached(*zero) == Position(14, NEW)
    assert visible(tmp_path) == sorted([*range(14), *range(4)])


def test_names_of_topics_do_not_hide_files(tmp_path: Path) -> None:
    for topic in ("_hidden", "../%a-b", "a-1-0"):
        ParquetTarget(tmp_path, COLUMNS).commit(written(tmp_path, 0, 2, 3, topic), {(topic, 3): Position(2)})
        assert ParquetTarget(tmp_path, COLUMNS).reached(topic, 3) == Position(2)
    assert len(visible(tmp_path)) == 6


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "parquet").mkdir()
    (tmp_path / "delta").mkdir()
    ParquetTarget(tmp_path / "parquet", COLUMNS).commit(
        written(tmp_path / "parquet", 0, 1), {("orders", 0): Position(1)}
    )
    with pytest.raises(TableError, match="have other columns"):
        ParquetTarget(tmp_path / "parquet", (*COLUMNS, "body"))
    with pytest.raises(TableError, match="has Parquet files and no Delta table"):
        DeltaTarget(tmp_path / "parquet", COLUMNS)
    DeltaTarget(tmp_path / "delta", COLUMNS)
    with pytest.raises(TableError, match="is a Delta table"):
        ParquetTarget(tmp_path / "delta", COLUMNS)
    (file,) = (tmp_path / "parquet").rglob("part-*")
    assert pq.read_metadata(file).num_rows == 1

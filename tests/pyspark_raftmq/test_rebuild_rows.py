"""Rows derived from the log are those of the live node, and every row that differs is named. No Spark is needed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pyspark_raftmq.jobs.rebuild import RebuildReport, Work, check_edges, derive_parts, plan, report_of
from raftmq.arrow.log_copy import CopySource
from raftmq.copies.open_copy import opened_rows
from raftmq.copies.row_check import Checked, Difference
from statemachine.payload import ITEM
from statemachine.rows import keys
from statemachine.rows.kv import CQ, INDEX, Batch
from statemachine.rows.rocksdb_store import RocksKV
from tests.support.left_copies import Left

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

Rows = dict[tuple[str, bytes], bytes]


def run(log: CopySource, rows: CopySource, to: str = "") -> RebuildReport:
    """Rebuilds rows as Spark does it, in this process."""
    work = Work(log, rows, to)
    tasks = plan(work)
    made = list(chain.from_iterable(derive_parts(work, [task]) for task in tasks))
    checked = [part for part in made if isinstance(part, Checked)]
    edges: dict[object, list[object]] = {}
    for part in made:
        if not isinstance(part, Checked):
            edges.setdefault(part[0], []).append(part[1])
    return report_of(work, tasks, checked, list(check_edges(work, tasks[-1].is_open, edges.items())))  # type: ignore[arg-type]


def rows_of(source: CopySource) -> Rows:
    with opened_rows(source) as copy:
        return {
            (family, key): value for family in (CQ, INDEX) for key, value in copy.rows.scan(family, b"", b"\xff" * 40)
        }


def damaged(left: Left, to: Path, change: Callable[[Rows], Rows]) -> CopySource:
    """The backup with other rows: `change` gives the new value of each row, b"" to remove it."""
    shutil.copytree(left.backup.path, to)
    for path in to.rglob("*"):
        path.chmod(0o700)
    kv = RocksKV(str(to / "state"))
    batch = Batch()
    for (family, key), value in change(rows_of(left.backup)).items():
        if value:
            batch.put(family, key, value)
        else:
            batch.delete(family, key)
    kv.write(batch)
    kv.close()
    return CopySource("files", str(to))


@pytest.mark.parametrize("kind", ["backup", "tier"])
def test_derived_rows_are_the_live_ones(left: Left, kind: str, tmp_path: Path) -> None:
    found = run(getattr(left, kind), left.backup, str(tmp_path))
    assert (found.differences, found.underived) == ([], [])
    assert found.items >= sum(table.num_rows for table in left.tables.values())
    assert found.records > 0
    assert found.segments >= 3
    written: Rows = {}
    for path in tmp_path.iterdir():
        for row in pq.read_table(path).to_pylist():
            assert written.setdefault((row["family"], row["key"]), row["value"]) == row["value"]
    assert written == rows_of(left.backup), "bit by bit"


def test_each_of_a_hundred_planted_differences_is_named(left: Left, tmp_path: Path) -> None:
    chance = random.Random(17)
    planted: set[tuple[int, int, int, int]] = set()

    def change(rows: Rows) -> Rows:
        chunks = sorted(key for family, key in rows if family == CQ and len(key) > keys.CQ_BOUNDS_KEY_SIZE)
        changed: Rows = {}
        while len(planted) < 100:
            key = chance.choice(chunks)
            value = bytearray(changed.get((CQ, key), rows[CQ, key]))
            number = chance.randrange(len(value) // ITEM.size)
            name = (*keys.cq_queue(key), keys.cq_base(key) + number, ITEM.unpack_from(value, number * ITEM.size)[0])
            if name not in planted:
                planted.add(name)
                value[number * ITEM.size + chance.randrange(12, ITEM.size)] ^= 1 << chance.randrange(8)
            changed[CQ, key] = bytes(value)
        return changed

    found = run(left.backup, damaged(left, tmp_path / "damaged", change))
    named = [(each.topic_id, each.queue_id, each.offset, each.position) for each in found.differences]
    assert len(named) == 100
    assert set(named) == planted


def test_missing_and_additional_rows_are_named(left: Left, tmp_path: Path) -> None:
    """A row of each family is gone, and a queue has a row behind its end."""
    planted: list[Difference] = []

    def change(rows: Rows) -> Rows:
        last = max(key for family, key in rows if family == CQ and len(key) > keys.CQ_BOUNDS_KEY_SIZE)
        merged = next(key for family, key in rows if family == INDEX and len(key) > keys.INDEX_BUCKET_KEY_SIZE)
        gone_items = list(ITEM.iter_unpack(rows[CQ, last]))
        topic, queue = keys.cq_queue(last)
        base = keys.cq_base(last)
        planted.extend(
            Difference(CQ, topic, queue, base + number, item[0], "the row is missing")
            for number, item in enumerate(gone_items)
        )
        behind = base // 256 * 256 + 512
        planted.append(Difference(CQ, topic, queue, behind, 77, "the log has no such message"))
        return {
            (CQ, last): b"",
            (INDEX, merged): b"",
            (CQ, keys.cq_key(topic, queue, behind)): ITEM.pack(77, 1, 2, 3, 4),
        }

    found = run(left.backup, damaged(left, tmp_path / "damaged", change)).differences
    assert [each for each in found if each.family == CQ] == planted
    of_index = [each for each in found if each.family == INDEX]
    assert of_index
    assert all("is missing" in each.what and each.offset >= 0 for each in of_index)


def test_what_a_trimmed_log_cannot_tell_is_listed(left: Left, tmp_path: Path) -> None:
    """The rows of the first segment, which is missing, are taken as they are."""
    shutil.copytree(left.backup.path, tmp_path / "copy")
    source = CopySource("files", str(tmp_path / "copy"))
    work = Work(source, left.backup, "")
    tasks = plan(work)[1:]
    made = list(chain.from_iterable(derive_parts(work, [task]) for task in tasks))
    checked = [part for part in made if isinstance(part, Checked)]
    edges = [(part[0], [part[1]]) for part in made if not isinstance(part, Checked)]
    merged: dict[object, list[object]] = {}
    for name, pieces in edges:
        merged.setdefault(name, []).extend(pieces)
    found = report_of(work, tasks, checked, list(check_edges(work, True, merged.items())))  # type: ignore[arg-type]
    assert found.differences == []
    names = {(found.topics[each.topic_id], each.queue_id): (each.start, each.end) for each in found.underived}
    assert names["left-orders", 0] == (0, 150)
    assert names["left-other", 0] == (0, 3)
    assert ("left-orders", 1) not in names

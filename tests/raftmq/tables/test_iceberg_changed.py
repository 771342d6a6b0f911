"""Iceberg tables of topics to which other programs write, or which they change."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table
from pyiceberg.types import LongType

import raftmq
from raftmq.tables.errors import TableError
from raftmq.tables.formats import status_of
from raftmq.tables.iceberg_table import POSITIONS, IcebergTarget
from raftmq.tables.iceberg_upkeep import compact_iceberg
from raftmq.tables.kept_table import Round
from tests.support.followed_topics import send, stored
from tests.support.iceberg_rows import FILE, opened, rows_in, run_of

pytestmark = pytest.mark.live


def its_rows(folder: Path) -> Any:
    """Rows as another program writes them."""
    return opened(folder).scan(limit=3).to_arrow()


def test_rows_of_another_program_stay_and_ours_go_on(mq: raftmq.Client, topic: str, tmp_path: Path) -> None:
    """A compaction is one: its snapshots have none of ours in their summaries, and the old ones are expired."""
    with run_of(mq, topic, tmp_path) as run:
        run.round()
        opened(tmp_path).append(its_rows(tmp_path))
        send(mq, topic, 2)
        assert run.round().messages == 2
        for _ in range(3):
            table = opened(tmp_path)
            table.overwrite(table.scan().to_arrow())
        table = opened(tmp_path)
        table.maintenance.expire_snapshots().older_than(datetime.now(UTC).replace(tzinfo=None) + timedelta(1)).commit()
        assert len(opened(tmp_path).snapshots()) == 1
        send(mq, topic, 0, 4)
        assert run.round().messages == 4
        assert run.round() == Round()
    assert len(rows_in(tmp_path)) == len(stored(mq, topic)) + 3
    assert set(rows_in(tmp_path)) == {*stored(mq, topic)}


def set_back(table: Table) -> None:
    table.manage_snapshots().rollback_to_snapshot(table.snapshots()[0].snapshot_id).commit()


def set_back_and_written_to(table: Table) -> None:
    rows = table.scan().to_arrow()
    set_back(table)
    table.refresh().append(rows.slice(0, 2))


def set_back_and_expired(table: Table) -> None:
    """Nothing in the metadata tells of it any more: rows do."""
    rows = table.scan().to_arrow()
    set_back(table)
    for _ in range(3):
        table.refresh().append(rows.slice(0, 2))
    expired = table.maintenance.expire_snapshots()
    expired.older_than(datetime.now(UTC).replace(tzinfo=None) + timedelta(1)).commit()


def without_positions(table: Table) -> None:
    with table.transaction() as changes:
        changes.remove_properties(POSITIONS)


def with_damaged_positions(table: Table) -> None:
    with table.transaction() as changes:
        changes.set_properties({POSITIONS: '{"snapshot": 1}'})


def made_anew(table: Table) -> None:
    schema, name, location = table.schema(), ".".join(table.name()), table.location()
    table.catalog.drop_table(name)
    table.catalog.create_table(name, schema, location)


def elsewhere(table: Table) -> None:
    schema, name = table.schema(), ".".join(table.name())
    table.catalog.drop_table(name)
    table.catalog.create_table(name, schema, f"{table.location()}/elsewhere")


def with_another_type(table: Table) -> None:
    with table.update_schema() as schema:
        schema.update_column("queue_id", LongType())


def with_another_column(table: Table) -> None:
    with table.update_schema() as schema:
        schema.add_column("checked", LongType())


def without_a_column(table: Table) -> None:
    with table.update_schema() as schema:
        schema.delete_column("keys")


def by_another_partition(table: Table) -> None:
    with table.update_spec() as spec:
        spec.add_identity("topic")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (set_back, r"was set back, or replaced: rows are gone that it had\n.*was not made on"),
        (set_back_and_written_to, "was set back, or replaced"),
        (set_back_and_expired, "was set back, or replaced"),
        (without_positions, r"does not say which messages it has\nits property raftmq.positions is missing"),
        (with_damaged_positions, r"does not say which messages it has\nits property raftmq.positions is damaged"),
        (made_anew, "does not say which messages it has"),
        (elsewhere, r"is not in .*\nthe catalog has it in .*elsewhere"),
        (with_another_type, r"has other columns\nqueue_id is long, not int"),
        (with_another_column, r"has other columns\nit also has checked"),
        (without_a_column, r"has other columns\nit lacks keys"),
        (by_another_partition, "is not partitioned by day alone"),
    ],
)
def test_a_table_that_another_program_has_changed_is_refused_by_name(
    mq: raftmq.Client, topic: str, tmp_path: Path, changed: Callable[[Table], None], why: str
) -> None:
    """Nothing is guessed and nothing written, neither by the run that is at work nor by the next one."""
    with run_of(mq, topic, tmp_path) as run:
        run.round()
        send(mq, topic, 5)
        run.round()
        changed(opened(tmp_path))
        before = opened(tmp_path).metadata
        send(mq, topic, 2)
        with pytest.raises(TableError, match=why):
            run.round()
    with pytest.raises(TableError, match=why):
        run_of(mq, topic, tmp_path).__enter__()
    assert opened(tmp_path).metadata == before


@pytest.mark.parametrize("changed", [without_positions, with_damaged_positions])
def test_a_table_without_positions_is_not_compacted(
    mq: raftmq.Client, topic: str, tmp_path: Path, changed: Callable[[Table], None]
) -> None:
    """Also if there is nothing to merge, since snapshots expire that the positions count on."""
    with run_of(mq, topic, tmp_path) as run:
        run.round()
    compact_iceberg(tmp_path, FILE, 24)
    changed(opened(tmp_path))
    with pytest.raises(TableError, match="does not say which messages it has"):
        compact_iceberg(tmp_path, FILE, 0)
    assert rows_in(tmp_path) == stored(mq, topic)


def test_a_table_that_comes_back_in_the_midst_of_a_round_is_another(
    mq: raftmq.Client, topic: str, tmp_path: Path
) -> None:
    class Late(IcebergTarget):
        def commit(self, *given: Any) -> int:
            made_anew(opened(tmp_path))
            return super().commit(*given)

    with run_of(mq, topic, tmp_path, kind=Late) as run:
        assert run.round().version is None
        with pytest.raises(TableError, match="does not say which messages it has"):
            run.round()
    assert rows_in(tmp_path) == []


@pytest.mark.parametrize("count", [10, 40, 70])
def test_a_topic_that_was_made_anew_is_not_mixed_with_the_old(
    mq: raftmq.Client, topic: str, tmp_path: Path, count: int
) -> None:
    """However many messages it has: the offset where the table goes on may be there again."""
    with run_of(mq, topic, tmp_path) as run:
        run.round()
        mq.admin.delete_topic(topic)
        mq.admin.create_topic(topic, 2)
        send(mq, topic, count)
        with pytest.raises(TableError, match=r"goes on at offset 40 of .* queue 0, in another topic of this name"):
            run.round()
        problems = {queue.queue_id: queue.problem for queue in status_of(mq, tmp_path, FILE).queues}
        assert all("which is gone" in problem for problem in problems.values())
    with run_of(mq, topic, tmp_path, accept_loss=True) as run:
        assert run.round().messages == count
    with run_of(mq, topic, tmp_path) as run:
        assert run.round().messages == 0
    assert len(rows_in(tmp_path)) == 65 + count
    mq.admin.delete_topic(topic)

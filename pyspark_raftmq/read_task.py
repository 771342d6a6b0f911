"""The work of a Spark task: it reads one range of one queue, or one part of a copy, and returns it as Arrow batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

import raftmq
from pyspark_raftmq.early_stop import end_quietly
from pyspark_raftmq.errors import PlanError, ReadError, SourceError, UndecodedRead
from pyspark_raftmq.filter_bounds import NOTHING, Narrowing
from pyspark_raftmq.options import ReadOptions
from pyspark_raftmq.read_plan import plan_copy
from raftmq.arrow.log_copy import CopyPart, CopySource, LogCopy
from raftmq.arrow.ranges import QueueRange, Unreadable
from raftmq.arrow.read_rate import ReadRate
from raftmq.arrow.row_filter import RowFilter
from raftmq.arrow.tables import FOLLOWER, check_counted, followers_of, node_for, why_other_topic
from raftmq.arrow.undecodable import Undecodable, Undecoded
from raftmq.server_home import use_formats
from raftmq_wire.errors import LocalError
from raftmq_wire.queue_numbers import group_of

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


class RangePartition(InputPartition):  # type: ignore[misc]
    """The range of a queue that one task reads."""

    def __init__(self, planned: QueueRange) -> None:
        super().__init__(tuple(planned))
        self.planned = planned


class PartPartition(InputPartition):  # type: ignore[misc]
    """The part of a copy of the log that one task reads."""

    def __init__(self, part: CopyPart) -> None:
        super().__init__(part)
        self.part = part


def read_partition(
    options: ReadOptions, columns: tuple[str, ...], partition: InputPartition, rows: RowFilter | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of the partition in order: those that the filter `rows` keeps, or all without a filter. Raises
    ReadError; messages that retention removed, or whose bodies cannot be decompressed, are left out only if the options
    say so."""
    end_quietly()
    # If there are no partitions, Spark makes one of its own class.
    if isinstance(partition, RangePartition):
        yield from read_range(options, columns, partition.planned, rows)
    elif isinstance(partition, PartPartition):
        yield from read_part(options, columns, partition.part, rows)


def copy_partitions(options: ReadOptions, narrowing: Narrowing = NOTHING) -> list[InputPartition]:
    """Returns the parts of a copy of the log that the tasks read. Raises PlanError."""
    assert options.copy is not None
    with _opened(options.copy, PlanError) as copy:
        return [PartPartition(part) for part in plan_copy(copy, options, narrowing)]


def read_part(
    options: ReadOptions, columns: tuple[str, ...], part: CopyPart, rows: RowFilter | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of the part, as `read_partition` does, in the order of the log. Raises ReadError naming the file
    and the position."""
    assert options.copy is not None
    with _opened(options.copy, ReadError) as copy:
        from raftmq.copies.part_rows import part_batches

        pace, undecodable = ReadRate(options.max_bytes_per_second), Undecodable(options.on_undecodable)
        yield from part_batches(copy, part, columns, options.batch_rows, pace, undecodable, rows)
        undecodable.tell(copy.name)


@contextmanager
def _opened(source: CopySource, kind: type[SourceError]) -> Iterator[LogCopy]:
    """Opens the copy. Only this function imports the server's file formats, so a read from a cluster works where only
    the client is installed."""
    try:
        use_formats(f"readFrom={source.kind}")
    except LocalError as error:
        raise kind(error.what, error.why, error.fix) from error
    from raftmq.copies.open_copy import opened

    try:
        with opened(source) as copy:
            yield copy
    except Unreadable as error:
        raise kind(error.what, error.why, error.hint) from error


def read_range(
    options: ReadOptions, columns: tuple[str, ...], planned: QueueRange, rows: RowFilter | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a range, as `read_partition` does."""
    from raftmq.arrow.reading import RangeReader

    with options.connect() as mq:
        try:
            if not options.fail_on_data_loss and (another := why_other_topic(mq, planned)):
                logger.warning("%s is left out: %s", planned, another)
                return
            check_counted(mq, planned)
            followers = followers_of(mq, group_of(planned.queue_id)) if options.read_from == FOLLOWER else []
            node = node_for(mq, planned, followers)
            pace = ReadRate(options.max_bytes_per_second)
            undecodable = Undecodable(options.on_undecodable)
            skip_lost = not options.fail_on_data_loss
            reader = RangeReader(
                mq, planned, node=node, skip_lost=skip_lost, pace=pace, undecodable=undecodable, rows=rows
            )
            yield from reader.batches(columns, options.batch_rows)
            check_counted(mq, planned)  # else some rows may be from another topic of the same name
            undecodable.tell(str(planned))
        except Unreadable as error:
            kind = UndecodedRead if isinstance(error, Undecoded) else ReadError
            raise kind(error.what, error.why, error.hint) from error
        except raftmq.RaftMQError as error:
            raise ReadError(f"{planned} cannot be read", str(error), error.hint) from error

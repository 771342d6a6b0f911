"""`raftmq spark table`: a streaming query of Spark that keeps a Delta table up to date with topics.

A query begins at the offsets that the table has reached; Spark's checkpoint is deleted before each query. So it does
not matter whether the last commit of an interrupted query succeeded. Tasks read ranges and write files under hidden
names; the driver, which keeps the table, commits the files of a batch together with the offset that each queue has
reached. So `raftmq table run` can continue the table of a query, and the other way round.

The query stops at the first message that it cannot read, or that does not follow the last one in the table. Then the
table's own code decides, as in a run without Spark: it refuses to go on, or goes on with the messages that are there.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

import raftmq
from pyspark_raftmq.errors import UndecodedRead
from pyspark_raftmq.job_running import told_by_task
from raftmq.arrow.columns import arrow_schema
from raftmq.arrow.ranges import QueueRange
from raftmq.tables.day_files import DayFile
from raftmq.tables.errors import LostRace
from raftmq.tables.json_fields import merge
from raftmq.tables.kept_table import KeptTable, Round, ends_of
from raftmq.tables.missing import Kept, Queue, missing, moved
from raftmq.tables.table_folder import TablePlace
from raftmq.tables.table_rows import TableRows, Written
from raftmq_wire.errors import LocalError
from raftmq_wire.topic_identity import Position

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_AGAIN = "the same command: it goes on where the table ends"
_CHECKPOINT = "_raftmq.checkpoint"
"""The name of the folder with the checkpoint of the running query. It is in the table's folder; for a table on an
object store, it is in a temporary folder of the driver, which alone writes it."""
_TOLD = "told string"
"""The Spark schema of what a task returns: one string, JSON with its files and the fields that it met in bodies."""


class QueryFailed(LocalError):
    """The query ended with an error of Spark or of a task. Another one, started where the table ends, may succeed."""


class TableQuery:
    """A streaming query into a table that this process keeps, for `with`: until it ends, fails or is stopped."""

    def __init__(
        self,
        spark: SparkSession,
        mq: raftmq.Client,
        source: Mapping[str, str],
        kept: KeptTable,
        on_round: Callable[[Round], None],
    ) -> None:
        """`source` are the options of the topics' stream, without where it begins. `on_round` is called in another
        thread after each commit."""
        self._spark = spark
        self._mq = mq
        self._source = source
        self._topics = source["topic"].split(",")
        self._kept = kept
        self._on_round = on_round
        self._query: StreamingQuery | None = None
        self._temporary: TemporaryDirectory[str] | None = None
        self._adding = threading.Lock()
        self._stopped = False
        self._error: BaseException | None = None
        self._recorded: dict[Queue, Position | None] = {}
        """Queue -> the position that the table has reached, as far as this query knows; None if it has none."""
        self._next: dict[Queue, int] = {}
        """Queue -> the offset at which the next batch begins."""

    def start(self, every_s: float | None) -> None:
        """Begins where the table ends: a batch every `every_s` seconds or, with None, up to the topics' present ends.
        Raises TableError if the table cannot continue there, LocalError if Spark does not answer, and other errors as
        `KeptTable.add`."""
        _check_there(self._spark)
        starting = self._begin()
        checkpoint = self._checkpoint()
        reader = self._spark.readStream.format("raftmq").options(**self._source)
        frame = reader.option("startingOffsets", starting).option("maxOffsetsPerTrigger", self._most()).load()
        writer = frame.writeStream.foreachBatch(self._batch)
        if every_s is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{every_s} seconds")
        self._query = writer.option("checkpointLocation", checkpoint.as_uri()).start()

    def __enter__(self) -> TableQuery:
        return self

    def __exit__(self, *_: object) -> None:
        """Stops the query; a commit in progress ends first."""
        if self._query is not None:
            with self._adding:
                self._stopped = True
            with contextlib.suppress(Py4JError, OSError):  # Spark's process is gone, and the query with it
                self._query.stop()
        if self._temporary is not None:
            self._temporary.cleanup()

    @property
    def ended(self) -> bool:
        """True if the query has ended, with an error or without. Raises QueryFailed if Spark does not answer."""
        try:
            return self._query is None or not self._query.isActive
        except (Py4JError, OSError) as error:
            raise QueryFailed("Spark does not answer", _first_line(error), _AGAIN) from error

    def check(self) -> None:
        """Raises the error that ended the query, if one did: the error of a commit; LocalError for a body that cannot
        be decoded; QueryFailed for any other error, which may pass."""
        error = self._error or (self._query.exception() if self._query is not None else None)
        if error is None:
            return
        if not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise error
        told = told_by_task(str(error))
        if told is not None and f"{UndecodedRead.__qualname__}: " in str(error):
            raise LocalError(told[0], told[1], "the same command with --on-undecodable raw") from None
        raise QueryFailed(*(told or ("the streaming query has failed", _first_line(error), _AGAIN))) from None

    def _checkpoint(self) -> Path:
        """Returns the empty folder of the checkpoint. Raises OSError."""
        folder = self._kept.folder
        if isinstance(folder, Path):
            shutil.rmtree(folder / _CHECKPOINT, ignore_errors=True)
            return folder / _CHECKPOINT
        self._temporary = TemporaryDirectory(prefix="raftmq-checkpoint-", ignore_cleanup_errors=True)
        return Path(self._temporary.name, _CHECKPOINT)

    def _most(self) -> str:
        return str(self._kept.options.round_messages)

    def _begin(self) -> str:
        """Returns the offset at which the query begins in each queue, in the form of the option startingOffsets."""
        kept, accept_loss = self._kept, self._kept.options.accept_loss
        ends = ends_of(self._mq.admin, self._topics)
        target = kept.open()
        starts = {(each.topic, each.queue_id): each.start for each in missing(target, ends, accept_loss=accept_loss)}
        if changed := moved(target, ends, accept_loss=accept_loss):
            kept.add(target, [], [], changed)
            target = kept.open()
        self._recorded = {queue: target.reached(*queue) for queue in ends}
        self._next = {queue: starts.get(queue, found.end) for queue, found in ends.items()}
        told: dict[str, dict[str, int]] = {}
        for (topic, queue_id), offset in self._next.items():
            told.setdefault(topic, {})[str(queue_id)] = offset
        return json.dumps(told)

    def _batch(self, frame: DataFrame, number: int) -> None:
        with self._adding:
            if self._stopped:
                return
            try:
                self._on_round(self._add(frame))
            except BaseException as error:
                self._error = error
                raise

    def _add(self, frame: DataFrame) -> Round:
        """Writes and commits a batch. The identities of the topics are read before the tasks begin. Each task checks
        after its last message that its topic is still the one that was planned, so the identities read here are right
        for all rows."""
        ends = ends_of(self._mq.admin, self._topics)
        target = self._kept.open()
        with self._kept.attempt():
            files = self._kept.written(target, lambda rows: _written(frame, self._kept, rows)).files
            ranges = [self._range(queue, files, ends) for queue in sorted({file[2:4] for file in files})]
            for planned in ranges:
                queue = planned.topic, planned.queue_id
                if target.reached(*queue) != self._recorded.get(queue):
                    raise LostRace(f"another writer has written to the table: {planned}")
            done = self._kept.add(target, files, ranges, {})
        self._recorded.update(done.reached)
        self._next.update({queue: position.offset for queue, position in done.reached.items()})
        return done

    def _range(self, queue: Queue, files: Sequence[DayFile], ends: Mapping[Queue, Kept]) -> QueueRange:
        """Returns the range that the files of a queue must hold: from the end of the last batch to the end of the last
        file."""
        found = [file for file in files if file[2:4] == queue]
        start = self._next.get(queue, min(file.start for file in found))  # a new queue begins at its first file
        return QueueRange(*queue, start, max(file.end for file in found), ends[queue].counted_in)


def _check_there(spark: SparkSession) -> None:
    """Raises LocalError if Spark's process has ended."""
    try:
        ended, why = bool(spark.sparkContext._jsc.sc().isStopped()), "its session was stopped"
    except (Py4JError, OSError) as error:
        ended, why = True, _first_line(error)
    if ended:
        raise LocalError("Spark has ended", why, _AGAIN)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _written(frame: DataFrame, kept: KeptTable, rows: TableRows) -> Written:
    """Has tasks write the files of a batch; if a task ran twice, only those of the attempt that Spark accepted."""
    write = partial(_write, kept.folder, kept.hidden, rows)
    told = [json.loads(row.told) for row in frame.mapInArrow(write, _TOLD).collect()]
    return Written([DayFile(*file) for files, _ in told for file in files], merge([met for _, met in told]))


def _write(
    folder: TablePlace, prefix: str, rows: TableRows, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Writes the files of a task, whose rows are consecutive messages of one queue. Yields one row of the schema _TOLD;
    none if there are no rows."""
    import pyarrow as pa

    schema = arrow_schema(rows.read)
    filled = (pa.Table.from_batches([batch]).cast(schema) for batch in batches if batch.num_rows)
    cast = (batch for table in filled for batch in table.to_batches())
    first = next(cast, None)
    if first is not None:
        topic, queue_id = (first.column(name)[0].as_py() for name in ("topic", "queue_id"))
        told = json.dumps(rows.write(folder, topic, queue_id, itertools.chain((first,), cast), prefix))
        yield pa.RecordBatch.from_pydict({"told": [told]})

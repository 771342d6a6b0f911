"""The sink: writes a data frame to a topic, in batch or as a stream, each row once (docs/adr/0068).

A task stages its rows as an attempt; the driver commits the attempts that Spark accepted. A streaming query's write is
named by the query's id, which is kept in its checkpoint, and numbered by Spark's batch id; if a batch is replayed, the
cluster answers that it was committed. A batch write is named by the option `writeId`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

import raftmq
from pyspark_raftmq.errors import PlanError, WriteError
from pyspark_raftmq.writing.sink_options import SinkOptions
from pyspark_raftmq.writing.sink_task import StagedAttempt, stage_rows

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""The names of Spark's local properties with the id of a task's streaming query and of its batch."""


@dataclass
class TaskDone(WriterCommitMessage):  # type: ignore[misc]
    """The message that a finished task sends to the driver."""

    staged: StagedAttempt


class TopicWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes a batch. It is made on the driver and pickled to every task, so it holds no connection."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._name = f"write {options.write_id or uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        """Stages the rows of one attempt of a task. Raises WriteError."""
        return TaskDone(stage_rows(self._options, self._name, 0, iterator))

    def commit(self, messages: Sequence[TaskDone | None]) -> None:
        """Commits the write when all tasks are done. Raises WriteError if the commit is not confirmed; the rows may
        then have been written."""
        staged, write_id, topic = _staged(messages), self._options.write_id, self._options.topic
        earlier = commit(self._options, self._name, 0, staged)
        if _left_out(staged):
            logger.warning(
                'the write with writeId "%s" was committed before, so these rows were left out of the topic %s: a '
                "cluster takes each writeId once, whatever the topic; to write rows again, give another one",
                write_id,
                topic,
            )
        elif earlier and write_id is not None and any(each.attempts for each in staged):
            logger.warning(
                'the write with writeId "%s" was committed, by this program or by another one that wrote with the same '
                "writeId at the same time: the rows of only one of them are in the topic %s",
                write_id,
                topic,
            )

    def abort(self, messages: Sequence[TaskDone | None]) -> None:
        """Discards the staged rows after a task failed for good."""
        abort(self._options, self._name, 0)


class TopicStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """The sink of a streaming query."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        """Stages the rows of one attempt of a task in a batch. Raises WriteError."""
        context = TaskContext.get()
        query_id, batch_id = (context.getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID))
        if not query_id or not batch_id:
            raise WriteError(
                "this task does not know its query and batch",
                f"Spark set no local properties {_QUERY_ID} and {_BATCH_ID}",
                "write with df.writeStream in Spark 4.3 or newer, without foreachBatch",
            )
        return TaskDone(stage_rows(self._options, _name_of(query_id), int(batch_id), iterator))

    def commit(self, messages: Sequence[TaskDone | None], batchId: int) -> None:
        """Commits the batch when all its tasks are done. Raises WriteError if the commit is not confirmed; the rows may
        then have been written."""
        staged = _staged(messages)
        for name in {each.name for each in staged}:  # one name, or none if the batch had no task
            commit(self._options, name, batchId, staged)
        if _left_out(staged):  # a replayed batch: usual after a restart
            logger.info(
                "batch %d was committed before, so it was not written again to %s", batchId, self._options.topic
            )

    def abort(self, messages: Sequence[TaskDone | None], batchId: int) -> None:
        """Discards the staged rows after a task failed for good. If no task was done, they are discarded with the next
        batch, or expire."""
        for name in {each.name for each in _staged(messages)}:
            abort(self._options, name, batchId)


def check_topic(options: SinkOptions) -> None:
    """Raises PlanError if the topic does not exist, before a task starts. If the cluster does not answer now, the tasks
    ask it again, for `timeoutSeconds`."""
    with options.connect() as mq, suppress(raftmq.RaftMQError):
        try:
            mq.admin.describe_topic(options.topic)
        except raftmq.NotFound as error:
            raise PlanError(
                f"there is no topic {options.topic}", str(error), f"raftmq topic create {options.topic}"
            ) from error


def commit(options: SinkOptions, name: str, write: int, staged: Iterable[StagedAttempt]) -> bool:
    """Commits the rows that the tasks staged. Returns True if the write had already been committed, perhaps by an
    earlier request of this very call; then this commit changes nothing. Raises WriteError."""
    winners: dict[int, list[tuple[int, int]]] = {}
    for each in staged:
        for group, attempt in each.attempts.items():
            winners.setdefault(group, []).append(attempt)
    with options.connect() as mq:
        try:
            mq.admin.broker_groups()  # the client must learn the groups of brokers before it commits in them
            return mq.staged_writes(timeout_s=options.timeout_s).commit_in_groups(name, write, winners).earlier
        except raftmq.RaftMQError as error:
            raise WriteError(f"{name}, {write}, is not known to be committed", str(error), error.hint) from error


def abort(options: SinkOptions, name: str, write: int) -> None:
    """Discards the staged rows. Raises WriteError; then the cluster discards the rows when they expire."""
    with options.connect() as mq:
        try:
            for group in mq.admin.broker_groups():  # ascending: the first group decides for all
                mq.staged_writes(timeout_s=options.timeout_s).abort(name, write, group=group)
        except raftmq.RaftMQError as error:
            raise WriteError(f"what {name}, {write}, staged is not discarded", str(error), error.hint) from error


def _name_of(query_id: str) -> str:
    return f"query {query_id}"


def _left_out(staged: Iterable[StagedAttempt]) -> bool:
    """Returns True if a task had rows and did not stage them, because the write was committed before."""
    return any(each.committed_before for each in staged)


def _staged(messages: Sequence[TaskDone | None]) -> list[StagedAttempt]:
    return [message.staged for message in messages if message is not None]

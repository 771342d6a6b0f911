"""`spark.readStream`: which offsets each micro-batch covers. Spark keeps them in its checkpoint; nothing else is state.

Where a batch ends is decided once, by the leader, which confirms its leadership. A batch that is run again reads the
same rows. With the option `group`, what Spark has finished is committed as the offsets of that group, so that
`raftmq group describe` shows the lag of the stream. Nothing is ever read from there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

import raftmq
from pyspark_raftmq.errors import PlanError
from pyspark_raftmq.options import ReadOptions
from pyspark_raftmq.plan import no_plan, plan_topics, split, topics_of
from pyspark_raftmq.stream_offset import Queue, StreamOffset, ranges_between, read_offset, share
from pyspark_raftmq.task import RangePartition, read_partition
from pyspark_raftmq.topic_bounds import TopicBounds
from raftmq.arrow.ranges import LATEST

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_SAMPLE_MESSAGES = 32


class _Kept(NamedTuple):
    """The messages that a queue keeps: offsets from `first` up to, not including, `end`."""

    first: int
    end: int


class TopicStream(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A stream of messages. It has one connection on the driver; pickled to tasks, it has none."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._mq: raftmq.Client | None = None
        self._target: dict[Queue, _Kept] | None = None
        """The end of a query with the trigger availableNow."""
        self._committed: StreamOffset | None = None
        """The offset that was last committed for the group."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mq": None}

    def initialOffset(self) -> dict[str, Any]:
        """Returns the beginning of a query without a checkpoint: latest, unless the options say otherwise. Raises
        PlanError."""
        mq = self._connected()
        ranges = plan_topics(mq.admin, self._options, topics_of(mq, self._options), TopicBounds(LATEST))
        return StreamOffset({(each.topic, each.queue_id): each.start for each in ranges}).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """The query ends at what is stored now."""
        self._target = self._kept()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Returns the limit that the options set for a batch."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Returns the end of the batch that begins at `start`; `start` itself if there is nothing. Raises PlanError.

        Spark asks only when it has recorded that everything up to `start` is done, so that is when the group's offsets
        are committed: `commit` comes one batch late, and not at all for the last batch of an availableNow query.
        """
        done = read_offset(start)
        self._commit(done)
        kept = self._kept_to_target()
        first = {queue: done.next.get(queue, found.first) for queue, found in kept.items()}
        began = {queue: found.first for queue, found in kept.items() if queue not in done.next}
        jumps = self._jumps(done, kept)
        first.update(jumps)
        began.update(jumps)
        lags = {queue: found.end - first[queue] for queue, found in kept.items()}
        taken = self._within(limit, first, lags)
        if not jumps and not any(taken.values()):
            return start
        read = {queue: first[queue] + taken.get(queue, 0) for queue in kept}
        return StreamOffset({**done.next, **read}, began).to_json()

    def reportLatestOffset(self) -> dict[str, Any]:
        """Returns the ends of the queues as they are stored, for the progress reports of the query."""
        return StreamOffset({queue: found.end for queue, found in self._kept().items()}).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangePartition]:
        """The exact ranges between two offsets; the cluster is not asked."""
        options = self._options
        ranges = ranges_between(read_offset(start), read_offset(end))
        return [
            RangePartition(each) for each in split(ranges, options.min_partitions, options.max_records_per_partition)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One range, in a task. Raises ReadError rather than leave a message out."""
        return read_partition(self._options, self._columns, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: `latestOffset` has committed this or more."""

    def stop(self) -> None:
        """Ends the connection."""
        if self._mq is not None:
            self._mq.close()
            self._mq = None

    def _connected(self) -> raftmq.Client:
        if self._mq is None:
            self._mq = raftmq.connect(self._options.servers)
        return self._mq

    def _kept(self) -> dict[Queue, _Kept]:
        """Returns the offsets that each queue of the read keeps, by the leader's word. Raises PlanError."""
        mq = self._connected()
        found = {}
        for topic in topics_of(mq, self._options):
            try:
                queues = mq.admin.describe_topic(topic).queues
            except raftmq.NotFound as error:
                if self._options.fail_on_data_loss:
                    raise no_plan(self._options, topic, error) from error
                continue
            except raftmq.RaftMQError as error:
                raise no_plan(self._options, topic, error) from error
            for queue in queues:
                if self._options.topics.has(topic, queue.queue_id):
                    found[topic, queue.queue_id] = _Kept(queue.min_offset, queue.max_offset)
        return found

    def _kept_to_target(self) -> dict[Queue, _Kept]:
        """Returns the offsets that may be read. If a query ends at a target, a queue's present beginning counts:
        retention goes on meanwhile."""
        if self._target is None:
            return self._kept()
        if self._options.fail_on_data_loss:
            return self._target
        now = self._kept()
        return {
            queue: _Kept(min(max(found.first, now[queue].first), found.end), found.end)
            for queue, found in self._target.items()
            if queue in now
        }

    def _jumps(self, done: StreamOffset, kept: dict[Queue, _Kept]) -> dict[Queue, int]:
        """Returns new offsets for queues that end before what was read already, or that lost messages that were not
        read yet. They jump there at once, and not in steps of a batch. The offset that Spark records then is past them,
        so each is told once. Raises PlanError if the options do not accept that."""
        jumps = {}
        for queue, offset in done.next.items():
            found = kept.get(queue)
            if found is None or found.first <= offset <= found.end:
                continue
            where = f"{queue[0]} queue {queue[1]}"
            why = f"it keeps offsets {found.first} up to, not including, {found.end}"
            if self._options.fail_on_data_loss:
                raise PlanError(
                    f"the stream is at offset {offset} of {where}, which is not there",
                    why,
                    "messages were lost to the stream; to go on without them, set failOnDataLoss to false",
                )
            logger.warning("the stream was at offset %d of %s and goes on at %d: %s", offset, where, found.first, why)
            jumps[queue] = found.first
        return jumps

    def _within(self, limit: ReadLimit, first: dict[Queue, int], lags: dict[Queue, int]) -> dict[Queue, int]:
        """Returns the number of messages of each queue that the batch takes."""
        options = self._options
        if isinstance(limit, ReadAllAvailable):  # Spark's word stands above the options
            return lags
        if self._target is None and sum(lags.values()) < (options.min_offsets_per_trigger or 0):
            return {}
        if options.max_offsets_per_trigger is not None:
            lags = share(lags, options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            lags = self._within_bytes(options.max_bytes_per_trigger, first, lags)
        return lags

    def _within_bytes(self, most: int, first: dict[Queue, int], lags: dict[Queue, int]) -> dict[Queue, int]:
        """About `most` bytes, by the mean size of the first messages that wait in each queue; at least one message."""
        mq = self._connected()
        size = 0.0
        for (topic, queue_id), lag in lags.items():
            if lag:
                at = first[topic, queue_id]
                try:
                    pulled = mq.pull_frames_soon(topic, queue_id, at, _SAMPLE_MESSAGES).result()
                except raftmq.RaftMQError as error:
                    raise no_plan(self._options, topic, error) from error
                size += lag * len(pulled.frames) / max(1, pulled.next_offset - at)
        total = sum(lags.values())
        return lags if size <= most else share(lags, max(1, int(total * most / size)))

    def _commit(self, done: StreamOffset) -> None:
        """Commits for the group, best effort: what is shown of a stream must not stop it."""
        group = self._options.group
        if group is None or done == self._committed:
            return
        admin = self._connected().admin
        before = self._committed.next if self._committed is not None else {}
        try:
            if self._committed is None and group not in admin.groups():
                admin.create_group(group)
            for (topic, queue_id), offset in done.next.items():
                if before.get((topic, queue_id)) != offset:
                    admin.commit(group, topic, queue_id, offset)
        except raftmq.RaftMQError as error:
            logger.warning("the offsets of group %s were not committed: %s", group, error)
            return
        self._committed = done

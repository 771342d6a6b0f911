"""`spark.readStream`: decides which offsets each micro-batch covers. Spark keeps these offsets in its checkpoint; there
is no other state.

The end of a batch is read once, from the leader, which confirms its leadership first. A batch that is run again reads
the same rows. With the option `group`, the offsets that Spark has finished are committed for that group, so that
`raftmq group describe` shows the lag of the stream. The stream never reads these offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

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
from pyspark_raftmq.read_plan import no_plan, plan_topics, split, topics_of
from pyspark_raftmq.read_task import RangePartition, read_partition
from pyspark_raftmq.stream_offset import Queue, StreamOffset, id_key, ranges_between, read_offset, report_offset, share
from pyspark_raftmq.topic_bounds import TopicBounds
from raftmq.arrow.ranges import LATEST
from raftmq.tables.group_offsets import commit_offsets
from raftmq.tables.missing import Kept, kept_of
from raftmq_wire.queue_numbers import queue_text
from raftmq_wire.topic_identity import TopicIdentity, why_another

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_SAMPLE_MESSAGES = 32


def _ids(kept: Mapping[Queue, Kept]) -> dict[str, TopicIdentity]:
    """Returns the key that `id_key` gives a topic -> its identity, for each existing topic whose identity is known."""
    return {id_key(queue): found.counted_in for queue, found in kept.items() if found.counted_in is not None}


class TopicStream(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reads topics as a stream. It has one connection on the driver; pickled to tasks, it has none."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._mq: raftmq.Client | None = None
        self._target: dict[Queue, Kept] | None = None
        """The offsets at which a query with the trigger availableNow ends."""
        self._committed: StreamOffset | None = None
        """The stream offset that was last committed for the group."""
        self._planned: StreamOffset | None = None
        """The end of the batch that was planned last. Reports count the lag from there."""
        self._gone: frozenset[Queue] = frozenset()
        """The queues that a warning has already reported as gone."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mq": None}

    def initialOffset(self) -> dict[str, Any]:
        """Returns the offset at which a query without a checkpoint begins: latest, unless the options say otherwise.
        Raises PlanError."""
        mq = self._connected()
        ranges = plan_topics(mq.admin, self._options, topics_of(mq, self._options), TopicBounds(LATEST))
        ids = {id_key((each.topic, each.queue_id)): each.counted_in for each in ranges if each.counted_in is not None}
        return StreamOffset({(each.topic, each.queue_id): each.start for each in ranges}, ids=ids).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the end of the query at the messages that are stored now."""
        self._target = self._kept()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Returns the limit of a batch that the options set."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Returns the end of the batch that begins at `start`, in JSON form; `start` itself if there are no new
        messages. Raises PlanError.

        Spark calls this only after it has recorded that everything up to `start` is done, so the group's offsets are
        committed here. The commit therefore comes one batch late, and not at all for the last batch of an availableNow
        query.
        """
        done = read_offset(start)
        self._planned = self._end_of_batch(done, limit)
        return start if self._planned == done else self._planned.to_json()

    def _end_of_batch(self, done: StreamOffset, limit: ReadLimit) -> StreamOffset:
        """Returns the end of the batch that begins at `done`; `done` itself if there are no new messages, no queue's
        position jumps, and no topic has a new id."""
        kept = self._kept_to_target()
        self._tell_gone(done, kept)
        self._commit(done, kept)
        ids = {**done.ids, **_ids(kept)}
        first = {queue: done.next.get(queue, found.first) for queue, found in kept.items()}
        began = {queue: found.first for queue, found in kept.items() if queue not in done.next}
        jumps = self._jumps(done, kept)
        first.update(jumps)
        began.update(jumps)
        lags = {queue: found.end - first[queue] for queue, found in kept.items()}
        taken = self._within(limit, first, lags)
        if not jumps and not any(taken.values()) and ids == done.ids:
            return done
        read = {queue: first[queue] + taken.get(queue, 0) for queue in kept}
        left = {
            queue: offset
            for queue, offset in done.next.items()
            if not why_another(done.ids.get(id_key(queue)), ids.get(id_key(queue)))
        }
        return StreamOffset({**left, **read}, began, ids)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Returns the present ends of the queues, and the lag behind them, for the query's progress reports. Spark
        calls this when it has planned a batch, and uses the result only for reports."""
        kept = self._kept()
        reached = self._planned.next if self._planned is not None else {}
        lags = {queue: max(0, found.end - reached.get(queue, found.first)) for queue, found in kept.items()}
        return report_offset({queue: found.end for queue, found in kept.items()}, _ids(kept), lags)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangePartition]:
        """Returns the exact ranges between two offsets, without asking the cluster."""
        options = self._options
        ranges = ranges_between(read_offset(start), read_offset(end))
        return [
            RangePartition(each) for each in split(ranges, options.min_partitions, options.max_records_per_partition)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of one range, in a task. Raises ReadError rather than leave a message out."""
        return read_partition(self._options, self._columns, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: `latestOffset` has already committed this offset or a later one."""

    def stop(self) -> None:
        """Closes the connection."""
        if self._mq is not None:
            self._mq.close()
            self._mq = None

    def _connected(self) -> raftmq.Client:
        if self._mq is None:
            self._mq = self._options.connect()
        return self._mq

    def _kept(self) -> dict[Queue, Kept]:
        """Returns the offsets that each queue of the read keeps, as the leader reports them. Raises PlanError."""
        mq = self._connected()
        found: dict[Queue, Kept] = {}
        for topic in topics_of(mq, self._options):
            try:
                described = mq.admin.describe_topic(topic)
            except raftmq.NotFound as error:
                if self._options.fail_on_data_loss:
                    raise no_plan(self._options, topic, error) from error
                continue
            except raftmq.RaftMQError as error:
                raise no_plan(self._options, topic, error) from error
            found |= kept_of(topic, described)
        return {queue: kept for queue, kept in found.items() if self._options.topics.has(*queue)}

    def _kept_to_target(self) -> dict[Queue, Kept]:
        """Returns the range of offsets that may be read from each queue: all that it keeps now, or, for a query that
        ends at a target, up to the target. If the options accept losses, a range with a target begins at the queue's
        present first offset, because retention continues to remove messages, and a queue that no longer exists is left
        out. If a topic was created again during the query, the ends that its queues had when the query noticed become
        the new target."""
        if self._target is None:
            return self._kept()
        if self._options.fail_on_data_loss:
            return self._target
        now = self._kept()
        again = {
            topic
            for (topic, queue_id), found in self._target.items()
            if (topic, queue_id) in now and why_another(found.counted_in, now[topic, queue_id].counted_in)
        }
        if again:
            self._target = {queue: found for queue, found in self._target.items() if queue[0] not in again}
            self._target |= {queue: found for queue, found in now.items() if queue[0] in again}
        return {
            queue: found._replace(first=min(max(found.first, now[queue].first), found.end))
            for queue, found in self._target.items()
            if queue in now
        }

    def _jumps(self, done: StreamOffset, kept: dict[Queue, Kept]) -> dict[Queue, int]:
        """Returns new offsets for queues that now end before the offset that was read already, whose unread messages
        were removed, or whose topic was deleted and created again. Such a queue jumps to its new offset at once, not in
        steps of a batch. The offset that Spark records then lies past the loss, so each loss is reported once. Raises
        PlanError if the options do not accept losses."""
        jumps = {}
        for queue, offset in done.next.items():
            found = kept.get(queue)
            if found is None:
                continue
            another = done.position(queue).why_not_in(found.counted_in)
            if not another and found.first <= offset <= found.end:
                continue
            where = f"{queue[0]} queue {queue_text(queue[1])}"
            why = another or f"it keeps offsets {found.first} up to, not including, {found.end}"
            if self._options.fail_on_data_loss:
                place = "in another topic of this name" if another else "which is not there"
                raise PlanError(
                    f"the stream is at offset {offset} of {where}, {place}",
                    why,
                    "messages were lost to the stream; to go on without them, set failOnDataLoss to false",
                )
            logger.warning("the stream was at offset %d of %s and goes on at %d: %s", offset, where, found.first, why)
            jumps[queue] = found.first
        return jumps

    def _tell_gone(self, done: StreamOffset, kept: dict[Queue, Kept]) -> None:
        """Warns of queues that the stream has read and that no longer exist, such as those of a retired group of
        brokers: it is not known whether the stream has read them to their end. Each queue is reported once. A topic
        that was created again has a warning of its own."""
        now = _ids(kept)
        there = {queue for queue in done.next if not why_another(done.ids.get(id_key(queue)), now.get(id_key(queue)))}
        gone = frozenset(there - kept.keys())
        for queue in sorted(gone - self._gone):
            logger.warning(
                "%s queue %s is there no more; the stream had read it up to, not including, offset %d",
                queue[0],
                queue_text(queue[1]),
                done.next[queue],
            )
        self._gone = gone

    def _within(self, limit: ReadLimit, first: dict[Queue, int], lags: dict[Queue, int]) -> dict[Queue, int]:
        """Returns the number of messages that the batch takes from each queue; {} if fewer messages wait than
        `minOffsetsPerTrigger` asks for."""
        options = self._options
        if isinstance(limit, ReadAllAvailable):  # Spark's own limit takes precedence over the options
            return lags
        if self._target is None and sum(lags.values()) < (options.min_offsets_per_trigger or 0):
            return {}
        if options.max_offsets_per_trigger is not None:
            lags = share(lags, options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            lags = self._within_bytes(options.max_bytes_per_trigger, first, lags)
        return lags

    def _within_bytes(self, most: int, first: dict[Queue, int], lags: dict[Queue, int]) -> dict[Queue, int]:
        """Returns queue -> the number of messages to take, about `most` bytes in all, estimated by the mean size of the
        first waiting messages of each queue; at least one message."""
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

    def _commit(self, done: StreamOffset, kept: dict[Queue, Kept]) -> None:
        """Commits the offsets in `done` for the group, for queues that still exist, each with the identity of its
        topic. A failure is only logged: the offsets are for display, and must not stop the stream."""
        group = self._options.group
        if group is None or done == self._committed:
            return
        admin = self._connected().admin
        before = self._committed.next if self._committed is not None else {}
        moved = {}
        for queue, offset in done.next.items():
            found, position = kept.get(queue), done.position(queue)
            is_there = found is not None and not position.why_not_in(found.counted_in)
            if is_there and before.get(queue) != offset:
                moved[queue] = position
        try:
            commit_offsets(admin, group, moved)
        except raftmq.RaftMQError as error:
            logger.warning("the offsets of group %s were not committed: %s", group, error)
            return
        self._committed = done

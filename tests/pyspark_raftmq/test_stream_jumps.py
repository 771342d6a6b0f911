"""A stream that accepts the loss of data is past a removed range at once, and says so once. No Spark, no cluster."""

from __future__ import annotations

import logging
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pyspark_raftmq.errors import PlanError
from pyspark_raftmq.options import parse_options
from pyspark_raftmq.stream import TopicStream
from pyspark_raftmq.stream_offset import Queue, StreamOffset, ranges_between, read_offset
from raftmq.arrow.ranges import QueueRange
from raftmq.client.errors import Refused
from raftmq.tables.missing import Kept
from raftmq_wire.queue_numbers import number_of
from raftmq_wire.topic_identity import TopicIdentity

ZERO, ONE = ("t", 0), ("t", 1)
OLD = TopicIdentity("11111111-2222-4333-8444-555555555555", 0, 7)
NEW = OLD._replace(topic_id=9)


class Stream(TopicStream):
    """A stream to which the test says what the cluster keeps."""

    def __init__(self, kept: dict[Queue, Kept], **options: str) -> None:
        given = {"servers": "h:1", "topic": "t", "maxOffsetsPerTrigger": "2000", "failOnDataLoss": "false", **options}
        super().__init__(parse_options(given, stream=True), ("body",))
        self.kept = kept

    def _kept(self) -> dict[Queue, Kept]:
        return dict(self.kept)


def batches(stream: TopicStream, start: dict[str, Any], count_max: int = 50) -> list[list[QueueRange]]:
    """The ranges of each batch, until there is nothing more to read."""
    found: list[list[QueueRange]] = []
    while len(found) < count_max and (end := stream.latestOffset(start, ReadMaxRows(2000))) != start:
        found.append(ranges_between(read_offset(start), read_offset(end)))
        start = end
    return found


def test_what_was_removed_is_jumped_over_in_one_batch(caplog: pytest.LogCaptureFixture) -> None:
    stream = Stream({ZERO: Kept(196_000, 197_500, None), ONE: Kept(0, 400, None)})
    start = StreamOffset({ZERO: 0, ONE: 400}).to_json()
    assert batches(stream, start) == [[QueueRange("t", 0, 196_000, 197_500)]]
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 1
    assert "was at offset 0 of t queue 0 and goes on at 196000" in said[0]


def test_a_queue_of_which_nothing_is_left_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """The batch has no rows; it records where the queue goes on."""
    stream = Stream({ZERO: Kept(500, 500, None)})
    start = StreamOffset({ZERO: 10}).to_json()
    assert batches(stream, start) == [[]]
    assert len(caplog.records) == 1


def test_a_query_that_ends_at_a_target_does_not_walk_what_goes_meanwhile() -> None:
    stream = Stream({ZERO: Kept(0, 100_000, None)})
    stream.prepareForTriggerAvailableNow()
    stream.kept = {ZERO: Kept(99_000, 120_000, None)}
    assert batches(stream, StreamOffset({ZERO: 0}).to_json()) == [[QueueRange("t", 0, 99_000, 100_000)]]
    stream.kept = {ZERO: Kept(110_000, 120_000, None)}
    assert batches(stream, StreamOffset({ZERO: 0}).to_json()) == [[]]


def test_without_the_option_the_query_ends() -> None:
    stream = Stream({ZERO: Kept(5, 9, None)}, failOnDataLoss="true")
    with pytest.raises(PlanError, match="the stream is at offset 1 of t queue 0, which is not there"):
        stream.latestOffset(StreamOffset({ZERO: 1}).to_json(), ReadAllAvailable())


@pytest.mark.parametrize("other", [NEW, OLD._replace(cluster="99999999-2222-4333-8444-555555555555")])
@pytest.mark.parametrize("end", [50, 100, 150])
def test_another_topic_of_the_name_is_refused_by_name(other: TopicIdentity, end: int) -> None:
    """However many messages it has: the offset of the stream may be there again."""
    stream = Stream({ZERO: Kept(0, end, other)}, failOnDataLoss="true")
    with pytest.raises(PlanError, match="at offset 100 of t queue 0, in another topic of this name") as caught:
        stream.latestOffset(StreamOffset({ZERO: 100}, ids={"t": OLD}).to_json(), ReadAllAvailable())
    assert str(other.topic_id) in caught.value.why or other.cluster in caught.value.why


def test_another_topic_begins_at_its_beginning_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """All queues of it: those that the old one had too, a new one, and none that only the old one had."""
    stream = Stream({ZERO: Kept(0, 150, NEW), ("t", 2): Kept(0, 5, NEW)}, maxOffsetsPerTrigger="1000")
    start = StreamOffset({ZERO: 100, ONE: 70}, ids={"t": OLD}).to_json()
    assert batches(stream, start) == [[QueueRange("t", 0, 0, 150, NEW), QueueRange("t", 2, 0, 5, NEW)]]
    assert [record.getMessage() for record in caplog.records] == [
        "the stream was at offset 100 of t queue 0 and goes on at 0: it counts in the topic with id 7, which is gone; "
        "the one with id 9 is another"
    ]
    end = read_offset(stream.latestOffset(start, ReadAllAvailable()))
    assert (end.next, end.ids) == ({ZERO: 150, ("t", 2): 5}, {"t": NEW})


def test_a_checkpoint_of_an_earlier_release_is_completed() -> None:
    """Once, by a batch without rows if nothing is new; from then on the topic is known."""
    stream = Stream({ZERO: Kept(0, 100, OLD)}, failOnDataLoss="true")
    start = StreamOffset({ZERO: 100}).to_json()
    end = stream.latestOffset(start, ReadAllAvailable())
    assert read_offset(end) == StreamOffset({ZERO: 100}, ids={"t": OLD})
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    stream.kept = {ZERO: Kept(0, 150, NEW)}
    with pytest.raises(PlanError, match="in another topic"):
        stream.latestOffset(end, ReadAllAvailable())


def test_a_node_of_an_earlier_release_takes_nothing_away() -> None:
    stream = Stream({ZERO: Kept(0, 120, None)}, failOnDataLoss="true")
    end = read_offset(stream.latestOffset(StreamOffset({ZERO: 100}, ids={"t": OLD}).to_json(), ReadAllAvailable()))
    assert end == StreamOffset({ZERO: 120}, ids={"t": OLD})


def test_a_topic_made_again_during_a_query_that_ends_at_a_target() -> None:
    stream = Stream({ZERO: Kept(0, 100, OLD), ONE: Kept(0, 10, OLD)})
    stream.prepareForTriggerAvailableNow()
    stream.kept = {ZERO: Kept(0, 40, NEW)}
    start = StreamOffset({ZERO: 0, ONE: 0}, ids={"t": OLD}).to_json()
    end = stream.latestOffset(start, ReadAllAvailable())
    assert ranges_between(read_offset(start), read_offset(end)) == [QueueRange("t", 0, 0, 40, NEW)]
    stream.kept = {ZERO: Kept(0, 4000, NEW)}
    assert stream.latestOffset(end, ReadAllAvailable()) == end


class Committing(Stream):
    """One that commits offsets for a consumer group; the cluster has the queues of `kept` alone."""

    def __init__(self, kept: dict[Queue, Kept]) -> None:
        super().__init__(kept, group="lake", failOnDataLoss="true")
        self.admin = self
        self.committed: dict[Queue, int] = {}

    def _connected(self) -> Any:
        return self

    def commit(self, *asked: Any) -> None:
        _, topic, queue_id, position = asked
        if (topic, queue_id) not in self.kept:
            raise Refused(f"topic {topic} has no queue {queue_id}")
        self.committed[topic, queue_id] = position.offset


def test_a_queue_whose_group_of_brokers_has_retired_keeps_no_others_from_being_committed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gone = ("t", number_of(2, 3))
    stream = Committing({ZERO: Kept(0, 10, None), gone: Kept(0, 7, None)})
    del stream.kept[gone]
    start = stream.latestOffset(StreamOffset({gone: 7, ZERO: 5}).to_json(), ReadAllAvailable())
    assert stream.committed == {ZERO: 5}
    assert stream.latestOffset(start, ReadAllAvailable()) == start
    assert stream.committed == {ZERO: 10}
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith("t queue 2/3 is there no more; the stream had read it up to, not including, offset 7")

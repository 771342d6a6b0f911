"""The plan of a read: the offsets of each queue that it covers, fixed once, on the driver, before any task runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import raftmq
from pyspark_raftmq.errors import PlanError
from pyspark_raftmq.filter_bounds import NOTHING, Narrowing, narrow
from pyspark_raftmq.options import ReadOptions
from pyspark_raftmq.subscription_options import Topics
from pyspark_raftmq.topic_bounds import TopicBounds
from raftmq.arrow.log_copy import CopyPart, LogCopy, cut
from raftmq.arrow.ranges import Catalog, QueueRange, Unreadable, plan_topic
from raftmq_wire.queue_numbers import queue_text, queues_text

_WORDS = ("the option startingOffsets", "the option endingOffsets")


def plan(options: ReadOptions, narrowing: Narrowing = NOTHING) -> list[QueueRange]:
    """Returns the ranges of a batch read, topic by topic and in order of queue ids. Raises PlanError.

    Bounds come from the leader, which confirms its leadership for each, so everything acknowledged before the plan is
    included.
    """
    with options.connect() as mq:
        topics = topics_of(mq, options)
        _check_any(options, topics)
        ranges = plan_topics(mq.admin, options, topics, options.ending)
        return ranges if narrowing == NOTHING else narrow(ranges, narrowing, mq.admin)


def plan_copy(copy: LogCopy, options: ReadOptions, narrowing: Narrowing = NOTHING) -> list[CopyPart]:
    """Returns the parts of a read from a copy of the log, lowest first. Raises PlanError."""
    try:
        topics: Sequence[str] = options.topics.names
        if options.topics.pattern is not None:
            wanted = re.compile(options.topics.pattern)
            topics = [name for name in copy.topics() if wanted.fullmatch(name)]
        _check_any(options, topics)
        ranges = narrow(plan_topics(copy, options, topics, options.ending), narrowing, copy)
        return cut(copy.segments(ranges), options.min_partitions, options.max_records_per_partition)
    except Unreadable as error:
        raise PlanError(error.what, error.why, error.hint) from error


def _check_any(options: ReadOptions, topics: Sequence[str]) -> None:
    if not topics:
        raise PlanError(
            f"no topic matches {options.topics.pattern}", "there is nothing to read", "see raftmq topic list"
        )


def topics_of(mq: raftmq.Client, options: ReadOptions) -> list[str]:
    """Returns the names of the topics to read: those that the options list, or those that match their pattern at
    present. Raises PlanError."""
    if options.topics.pattern is None:
        return list(options.topics.names)
    wanted = re.compile(options.topics.pattern)
    try:
        system = set(mq.admin.system_topics())
        return [name for name in mq.admin.topics() if name not in system and wanted.fullmatch(name)]
    except raftmq.RaftMQError as error:
        raise no_plan(options, "the topics", error) from error


def plan_topics(catalog: Catalog, options: ReadOptions, topics: Sequence[str], ending: TopicBounds) -> list[QueueRange]:
    """Returns the range of each queue of the topics: from the start in `options` up to the end in `ending`. Raises
    PlanError."""
    found: list[QueueRange] = []
    for topic in topics:
        try:
            planned = plan_topic(
                catalog,
                topic,
                options.starting.of(topic),
                ending.of(topic),
                clamp=not options.fail_on_data_loss,
                words=_WORDS,
            )
        except raftmq.RaftMQError as error:
            raise no_plan(options, topic, error) from error
        found += chosen(options.topics, topic, planned)
    return found


def chosen(topics: Topics, topic: str, planned: Sequence[QueueRange]) -> list[QueueRange]:
    """Returns the planned ranges of a topic, or only those of the queues that the option `assign` names. Raises
    PlanError for a queue that does not exist."""
    missing = sorted(set(topics.queues.get(topic, ())) - {each.queue_id for each in planned})
    if missing:
        raise PlanError(
            f"the option assign names queue {queue_text(missing[0])} of {topic}",
            f"the topic has queues {queues_text(each.queue_id for each in planned)}",
            "leave that queue out",
        )
    return [each for each in planned if topics.has(topic, each.queue_id)]


def split(ranges: Sequence[QueueRange], at_least: int | None, most_records: int | None) -> list[QueueRange]:
    """Divides the ranges further: into at least `at_least` ranges if there are that many messages, none with more than
    `most_records` messages. Empty ranges are left out."""
    total = sum(each.end - each.start for each in ranges)
    size = total if at_least is None else max(1, total // at_least)
    if most_records is not None:
        size = min(size, most_records)
    return [part for each in ranges for part in _cut(each, size)]


def _cut(planned: QueueRange, size: int) -> Iterator[QueueRange]:
    """Yields parts of almost equal length, with at most `size` messages each."""
    count = planned.end - planned.start
    parts = -(-count // size) if count else 0
    for part in range(parts):
        start, end = (planned.start + count * each // parts for each in (part, part + 1))
        yield planned._replace(start=start, end=end)


def no_plan(options: ReadOptions, topic: str, error: raftmq.RaftMQError) -> PlanError:
    """Turns an error of the cluster into the PlanError that a Spark user sees. `topic`: the topic that the request was
    about."""
    if isinstance(error, Unreadable):
        return PlanError(error.what, error.why, error.hint)
    if isinstance(error, raftmq.NotFound):
        return PlanError(f"there is no topic {topic}", str(error), error.hint)
    if isinstance(error, raftmq.Unreachable):
        return PlanError(
            f"no server answers at {options.servers}",
            str(error),
            "check the option servers, and that every executor reaches the addresses that `raftmq status` lists",
        )
    return PlanError(f"the offsets of {topic} are not known", str(error), error.hint)

"""The start and the end of a read, as options give them: words, times, or JSON by topic and queue in the form of
Spark's Kafka source."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from pyspark_raftmq.errors import OptionError, write
from pyspark_raftmq.subscription_options import Topics
from raftmq.arrow.ranges import EARLIEST, LATEST, AtTime, Bound, Bounds
from raftmq_wire.topic_identity import Position, TopicIdentity, parse_identity

IDENTITY = "id"
"""The key of the topic's identity in the JSON object that maps queue ids to offsets."""
_KAFKAS = {-2: EARLIEST, -1: LATEST}


class TopicBounds(NamedTuple):
    """The bounds of each topic: `by_topic` where it names the topic, else `default`."""

    default: Bound
    by_topic: Mapping[str, Bounds] = {}

    def of(self, topic: str) -> Bounds:
        """Returns the bounds of one topic."""
        return self.by_topic.get(topic, Bounds(self.default))


def parse_offsets(name: str, text: str, unlisted: Bound, topics: Topics) -> TopicBounds:
    """Parses `earliest`, `latest`, or a JSON object: topic -> queue id -> offset; for a single topic, queue id ->
    offset.

    An offset is a number, one of those words, or Kafka's -2 (earliest) and -1 (latest). In place of a queue id, `id`
    has the identity of the topic in which the offsets count. `unlisted` is the bound of queues that are not listed.
    Raises OptionError.
    """
    if text.strip().lower() in (EARLIEST, LATEST):
        return TopicBounds(text.strip().lower())
    table = _object(name, text)
    if not any(isinstance(value, dict) for value in table.values()):
        if len(topics.names) != 1:
            _refuse(name, text, "there are several topics: name each")
        table = {topics.names[0]: table}
    return TopicBounds(unlisted, _by_topic(name, text, table, unlisted, topics, _offset))


def parse_time(name: str, text: str, unlisted: Bound, topics: Topics) -> TopicBounds:
    """Parses one time for all queues: milliseconds since the epoch, or ISO 8601, which is UTC without a zone. Raises
    OptionError."""
    del unlisted, topics
    text = text.strip()
    if text.isdecimal():
        return TopicBounds(AtTime(int(text)))
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise OptionError(
            f"the option {name} is not understood: {text}", str(error), write(name, "2026-01-31T00:00:00+00:00")
        ) from error
    time = time if time.tzinfo else time.replace(tzinfo=datetime.UTC)
    return TopicBounds(AtTime(int(time.timestamp() * 1000)))


def parse_times(name: str, text: str, unlisted: Bound, topics: Topics) -> TopicBounds:
    """Parses a JSON object in Kafka's form: topic -> queue id -> milliseconds since the epoch. Raises OptionError."""
    return TopicBounds(unlisted, _by_topic(name, text, _object(name, text), unlisted, topics, _time))


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        table = json.loads(text)
    except ValueError as error:
        _refuse(name, text, str(error), error)
    if not isinstance(table, dict):
        _refuse(name, text, "it is JSON, but no object")
    return table


def _by_topic(
    name: str, text: str, table: dict[str, Any], unlisted: Bound, topics: Topics, parse: Any
) -> dict[str, Bounds]:
    found = {}
    for topic, queues in table.items():
        if not isinstance(queues, dict):
            _refuse(name, text, f'"{topic}" has no object of queues')
        if topics.names and topic not in topics.names:
            _refuse(name, text, f"the topic {topic} is not read")
        bounds = {
            _queue(name, text, topics, topic, queue): parse(name, text, queues[queue])
            for queue in queues
            if queue != IDENTITY or parse is not _offset
        }
        if IDENTITY in queues and parse is _offset:
            identity = _identity(name, text, queues[IDENTITY])
            bounds = {
                queue: Position(bound, identity) if isinstance(bound, int) else bound for queue, bound in bounds.items()
            }
        found[topic] = Bounds(unlisted, bounds)
    return found


def _identity(name: str, text: str, value: object) -> TopicIdentity:
    try:
        return parse_identity(str(value))
    except ValueError as error:
        _refuse(name, text, str(error), error)


def _queue(name: str, text: str, topics: Topics, topic: str, queue: str) -> int:
    if not queue.isdecimal():
        _refuse(name, text, f'"{queue}" is no queue id')
    if not topics.has(topic, int(queue)):
        _refuse(name, text, f"queue {queue} of {topic} is not read")
    return int(queue)


def _offset(name: str, text: str, value: object) -> Bound:
    if value in (EARLIEST, LATEST):
        return str(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < -2:
        _refuse(name, text, f"{value!r} is no offset")
    return _KAFKAS.get(value, value)


def _time(name: str, text: str, value: object) -> Bound:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        _refuse(name, text, f"{value!r} is no time in milliseconds since the epoch")
    return AtTime(value)


def _refuse(name: str, text: str, why: str, cause: Exception | None = None) -> NoReturn:
    raise OptionError(
        f"the option {name} is not understood: {text}",
        why,
        f"write earliest, latest, or JSON by topic and queue: "
        f'.option("{name}", \'{{"orders": {{"0": 120, "1": -1}}}}\')',
    ) from cause

"""Shows how far a streaming query has read each topic, from Spark's report about the query:
`topic_progress(query.lastProgress)`.

Spark's API for sources in Python has no metrics: its class PythonMicroBatchStream does not implement
ReportsSourceMetrics, so `metrics` of a source stays empty. The reports have offsets, and in `latestOffset`, which a
source writes for reports only, this source writes its lag, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pyspark_raftmq.stream_offset import VERSION


class TopicProgress(NamedTuple):
    """The progress of a streaming query in one topic. `end_offsets`: queue id -> the offset after the last message that
    a batch was planned with. `latest_offsets`: queue id -> the end of the queue then. `lags`: queue id -> messages
    between the two."""

    topic: str
    end_offsets: Mapping[int, int]
    latest_offsets: Mapping[int, int]
    lags: Mapping[int, int]

    @property
    def lag(self) -> int:
        """The number of messages of the topic that the query has yet to read."""
        return sum(self.lags.values())


def topic_progress(progress: Any) -> list[TopicProgress]:
    """Returns the progress in each topic that the query reads with this source, by source and name.

    `progress`: a report of Spark, as `query.lastProgress`, an element of `query.recentProgress`, or `event.progress` in
    `onQueryProgress` of a StreamingQueryListener; None before the first one. Other sources are left out.
    """
    sources: Iterable[Mapping[str, Any]] = progress["sources"] if progress else ()
    return [each for source in sources for each in _of_source(source)]


def _of_source(source: Mapping[str, Any]) -> list[TopicProgress]:
    end, latest = _parsed(source.get("endOffset")), _parsed(source.get("latestOffset"))
    if end.get("v") != VERSION or "lag" not in latest:
        return []
    topics = sorted(end["topics"].keys() | latest["topics"].keys())
    return [TopicProgress(topic, *(_numbered(each.get(topic, {})) for each in _parts(end, latest))) for topic in topics]


def _parts(end: Mapping[str, Any], latest: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    return end["topics"], latest["topics"], latest["lag"]


def _parsed(offset: Any) -> Mapping[str, Any]:
    """Returns an offset of a report, which is JSON in some versions of Spark's classes, and parsed in others; {} for an
    offset of another source."""
    try:
        found = json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _numbered(queues: Mapping[str, int]) -> dict[int, int]:
    return {int(queue): offset for queue, offset in queues.items()}

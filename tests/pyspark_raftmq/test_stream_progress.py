"""Spark's reports about a stream say how far it is in each topic. No Spark, no cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pyspark_raftmq import topic_progress
from pyspark_raftmq.stream_offset import StreamOffset
from pyspark_raftmq.stream_progress import TopicProgress
from raftmq.tables.missing import Kept
from tests.pyspark_raftmq.test_stream_jumps import ONE, ZERO, Stream

KAFKAS = {"description": "KafkaV2[Subscribe[t]]", "endOffset": '{"t":{"0":5}}', "latestOffset": '{"t":{"0":9}}'}


def report(stream: Stream, start: dict[str, Any], limit: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Plans a batch as Spark does; returns its end, and what the report has of the source."""
    end = stream.latestOffset(start, limit)
    return end, {"startOffset": start, "endOffset": end, "latestOffset": stream.reportLatestOffset()}


def test_the_lag_is_what_no_batch_was_planned_for() -> None:
    stream = Stream({ZERO: Kept(0, 3000, None), ONE: Kept(100, 1100, None)})
    start, source = report(stream, StreamOffset({ZERO: 0}).to_json(), ReadMaxRows(2000))
    assert topic_progress({"sources": [source]}) == [
        TopicProgress("t", {0: 1500, 1: 600}, {0: 3000, 1: 1100}, {0: 1500, 1: 500})
    ]
    _, source = report(stream, start, ReadAllAvailable())
    (last,) = topic_progress({"sources": [source]})
    assert (last.lag, last.end_offsets) == (0, last.latest_offsets)
    stream.kept[ONE] = Kept(100, 1107, None)  # between the plan and the report
    (last,) = topic_progress({"sources": [{**source, "latestOffset": stream.reportLatestOffset()}]})
    assert last.lags == {0: 0, 1: 7}


def test_reports_in_either_form_beside_other_sources() -> None:
    stream = Stream({ZERO: Kept(0, 30, None)})
    _, source = report(stream, StreamOffset({ZERO: 0}).to_json(), ReadAllAvailable())
    written = {name: json.dumps(value) for name, value in source.items()}
    wanted = [TopicProgress("t", {0: 30}, {0: 30}, {0: 0})]
    for each in (source, written):
        assert topic_progress({"sources": [KAFKAS, each, {"endOffset": None, "latestOffset": "no JSON"}]}) == wanted


def test_no_report_yet() -> None:
    assert topic_progress(None) == []

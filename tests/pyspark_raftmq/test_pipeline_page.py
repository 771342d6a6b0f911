"""The Python examples of the pages about Spark run as they stand, against a cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import raftmq
from pyspark_raftmq import topic_progress
from tests.support.topic_rows import wait_for_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.timeout(180)]

DOCS = Path(__file__).parents[2] / "docs"
NAMES = ("pipeline.md", "spark-streams.md", "spark-writing.md")
PAGES = "".join((DOCS / name).read_text(encoding="utf-8") for name in NAMES)
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGES, re.MULTILINE | re.DOTALL)
SERVERS = '"127.0.0.1:9876;127.0.0.1:9877;127.0.0.1:9878"'
FOLDER = '"/tmp/lake"'
TOPIC = "guide"
MESSAGES = 12


@pytest.mark.ci
def test_the_examples_run(spark: SparkSession, servers: str, mq: raftmq.Client, tmp_path: Path) -> None:
    mq.admin.create_topic(TOPIC, 4)
    mq.admin.create_topic("copies", 2)
    mq.send_batch(TOPIC, [b"tea"] * MESSAGES, queue_id=0)
    text = "\n".join(EXAMPLES).replace('"orders"', f'"{TOPIC}"')  # other tests count what is in orders
    for written, here in ((SERVERS, servers), (FOLDER, str(tmp_path / "lake"))):
        assert text.count(written) == 1
        text = text.replace(written, repr(here))
    names: dict[str, Any] = {}
    exec(compile(text, "docs/pipeline.md", "exec"), names)
    assert names["table"].num_rows == MESSAGES
    assert names["bodies"].num_rows == MESSAGES - 1
    assert names["orders"].count() == MESSAGES
    assert [(each.topic, each.end_offsets, each.lag) for each in topic_progress(names["query"].lastProgress)] == [
        (TOPIC, {0: MESSAGES, 1: 0, 2: 0, 3: 0}, 0)
    ]
    assert {row.tag for row in wait_for_rows(mq, "copies", MESSAGES)} == {"copy"}
    assert spark.read.parquet(str(tmp_path / "lake" / "orders")).count() == MESSAGES

"""Exports and tables of Spark on an object store: commands of their own, whose tasks have it from the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

import raftmq
from raftmq.tables import store_folder
from raftmq.tables.delta_log import opened
from raftmq.tables.store_folder import StoreFolder
from tests.support import s3_server
from tests.support.pace import at_most
from tests.support.s3_server import BUCKET

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.ci]

TOPIC = "to-a-store"


@pytest.fixture(scope="module")
def store() -> Iterator[None]:
    keys = {"AWS_ACCESS_KEY_ID": "access-key", "AWS_SECRET_ACCESS_KEY": "secret-key", "AWS_REGION": "us-east-1"}
    with s3_server.moto() as endpoint, pytest.MonkeyPatch.context() as patch:
        for name, value in {**keys, "AWS_ENDPOINT_URL": endpoint}.items():
            patch.setenv(name, value)
        store_folder._client.cache_clear()
        yield
    store_folder._client.cache_clear()


def spark(servers: str, *words: str) -> list[dict[str, object]]:
    """Runs the command; returns what it printed."""
    command = [sys.executable, "-m", "raftmq", "spark", *words, "--servers", servers, "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=at_most(120), env={**os.environ}, check=False)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def rows_in(where: StoreFolder) -> list[tuple[int, int]]:
    table = opened(where).to_pyarrow_table(columns=["queue_id", "queue_offset"])
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_each_goes_on_where_the_other_ended(servers: str, store: None) -> None:
    where = StoreFolder(f"s3://{BUCKET}/lake/orders")
    with raftmq.connect(servers) as mq:
        mq.admin.create_topic(TOPIC, 2)

        def send() -> None:
            mq.send_batch(TOPIC, [b"x"] * 40, queue_id=0)
            mq.send_batch(TOPIC, [b"x"] * 25, queue_id=1)

        send()
        (exported,) = spark(servers, "export", TOPIC, "--to", where.url)
        assert exported["messages"] == 65
        send()
        kept = spark(servers, "table", TOPIC, "--to", where.url, "--once")
        assert sum(int(str(each["messages"])) for each in kept if "messages" in each) == 65
        send()
        (exported,) = spark(servers, "export", TOPIC, "--to", where.url)
        assert exported["messages"] == 65
        queues = mq.admin.describe_topic(TOPIC).queues
        stored = [(queue.queue_id, offset) for queue in queues for offset in range(queue.max_offset)]
    assert rows_in(where) == sorted(stored)

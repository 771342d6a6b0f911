"""Spark over TLS and as a user, where rules are enforced: what it reads and writes, and where the secret is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import raftmq
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(400)]
NAME, SECRET = "lake-of-tests", "the-planted-secret-of-the-lake"
COUNT = 40
RIGHTS = {
    "Topic:marker-orders": ["Sub", "Get"],
    "Topic:marker-copies": ["Sub", "Get", "Pub"],
    "Group:TOOLS_CONSUMER": ["Sub"],
    "Group:marker-lake": ["Sub", "Create"],
    "Group:query *": ["Pub"],
}
"""Exactly the rights that docs/pipeline.md names: for reads, for the option `group`, and for the writes of streams."""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One node that takes TLS alone, and a user that may read and write two topics."""
    cluster = LocalCluster(tmp_path_factory.mktemp("secured") / "data")
    cluster.up(1, free_base_port(4), tls=True, auth=True)
    with raftmq.connect(cluster.servers, **cluster.client_options) as root:
        for topic in ("marker-orders", "marker-copies"):
            root.admin.create_topic(topic, 2)
            root.send_batch(topic, [b"%d" % number for number in range(COUNT)], queue_id=0)
        root.admin.create_user(NAME, SECRET)
        for resource, actions in RIGHTS.items():
            root.admin.set_rule(NAME, resource, actions)
    yield cluster
    cluster.down()


def options_of(cluster: LocalCluster) -> dict[str, str]:
    ca = str(cluster.data / "tls" / "ca.crt")
    return {"servers": cluster.servers, "accessKey": NAME, "secretKey": SECRET, "tlsCa": ca}


def test_a_stream_copies_as_a_user_and_leaves_no_secret(
    secured: LocalCluster, spark: SparkSession, tmp_path: Path
) -> None:
    given, checkpoint = options_of(secured), tmp_path / "checkpoint"
    source = spark.readStream.format("raftmq").options(**given, topic="marker-orders", group="marker-lake")
    rows = source.option("startingOffsets", "earliest").option("columns", "body,queue_id").load()
    sink = rows.writeStream.format("raftmq").options(**given, topic="marker-copies")
    query = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
        said = str(query.lastProgress)
    finally:
        query.stop()
    batch = spark.read.format("raftmq").options(**given, topic="marker-copies").load()
    assert batch.count() == 2 * COUNT
    with raftmq.connect(secured.servers, **secured.client_options) as root:
        assert "marker-lake" in root.admin.groups(), "the offsets were committed"
    said += batch._jdf.queryExecution().toString()
    assert SECRET not in said
    kept = {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}
    assert [path for path, data in kept.items() if SECRET.encode() in data] == []
    assert any(b"marker-orders" in data for data in kept.values()), "the search finds what is there"


def test_without_a_right_nothing_is_read_and_the_error_has_no_secret(
    secured: LocalCluster, spark: SparkSession
) -> None:
    with raftmq.connect(secured.servers, **secured.client_options) as root:
        root.admin.create_topic("hidden", 1)
    frame = spark.read.format("raftmq").options(**options_of(secured), topic="hidden")
    with pytest.raises(Exception, match="hidden") as caught:
        frame.load().count()
    assert SECRET not in str(caught.value)
    wrong = frame.option("secretKey", f"{SECRET}-but-wrong")
    with pytest.raises(Exception, match="hidden") as caught:
        wrong.load().count()
    assert SECRET not in str(caught.value)


READ = {"Topic:marker-orders": ["Sub", "Get"], "Group:TOOLS_CONSUMER": ["Sub"]}
"""The rights of a plain read."""
ROWS: dict[str, tuple[dict[str, list[str]], tuple[str, str]]] = {
    "a read": (READ, ("Topic:marker-orders", "Get")),
    "subscribePattern": ({**READ, "Cluster:*": ["List"]}, ("Cluster:*", "List")),
    "index and term": ({**READ, "Cluster:*": ["Get"]}, ("Cluster:*", "Get")),
    "a batch": ({"Topic:marker-written": ["Pub"], "Group:write *": ["Pub"]}, ("Group:write *", "Pub")),
}
"""The rows of docs/pipeline.md that the stream above does not need: their rights, and one without which it fails."""


@pytest.mark.parametrize("row", ROWS)
def test_the_rights_of_the_page_suffice_and_without_one_of_them_it_fails(
    secured: LocalCluster, spark: SparkSession, row: str
) -> None:
    rights, (resource, action) = ROWS[row]
    user = f"{row.replace(' ', '-')}-user"
    with raftmq.connect(secured.servers, **secured.client_options) as root:
        root.admin.create_topic("marker-written", 1)
        root.admin.create_user(user, SECRET)
        for each, actions in rights.items():
            root.admin.set_rule(user, each, actions)
    given = {**options_of(secured), "accessKey": user}

    def run() -> int:
        if row == "a batch":
            frame = spark.range(3).selectExpr("cast(id as string) as body")
            sink = frame.write.format("raftmq").mode("append")
            sink.options(**given, topic="marker-written").save()
            return COUNT
        which = {"subscribePattern": "marker-order.*"} if row == "subscribePattern" else {"topic": "marker-orders"}
        if row == "index and term":
            which["columns"] = "queue_offset,index,term"
        return len(spark.read.format("raftmq").options(**given, **which).load().collect())

    assert run() == COUNT
    with raftmq.connect(secured.servers, **secured.client_options) as root:
        left = [each for each in rights[resource] if each != action]
        if left:
            root.admin.set_rule(user, resource, left)
        else:
            root.admin.delete_rule(user, resource)
    with pytest.raises(Exception, match=f"no right to .*{action}"):
        run()

"""Spark in clusters of two and of four groups of brokers: a read has the queues of all, a write to all comes once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

import raftmq
from pyspark_raftmq.jobs.export import export
from pyspark_raftmq.options import parse_options
from pyspark_raftmq.writing.sink import TopicWriter
from pyspark_raftmq.writing.sink_options import parse_sink_options
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from raftmq.tables.errors import TableError
from raftmq.tables.kept_table import TableOptions
from raftmq.tables.table_run import TableRun
from raftmq.tables.table_status import table_status
from raftmq_wire.codes import RequestCode
from raftmq_wire.queue_numbers import group_of, number_of
from tests.support.pace import at_most
from tests.support.small_segments import small_segments
from tests.support.stream_between_topics import StreamBetweenTopics
from tests.support.topic_rows import wait_for_rows
from tests.support.wait_until import wait

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.ci, pytest.mark.spark, pytest.mark.live, pytest.mark.timeout(400)]


@pytest.fixture(scope="module", params=[2, 4], ids=lambda count: f"{count} groups")
def groups(request: pytest.FixtureRequest) -> list[int]:
    """The groups of the cluster."""
    return [*range(1, 1 + request.param)]


@pytest.fixture(scope="module")
def queues(groups: list[int]) -> list[int]:
    """The queues of a topic, two in each group."""
    return [number_of(group, queue) for group in groups for queue in (0, 1)]


@pytest.fixture(scope="module")
def cluster(groups: list[int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path_factory.mktemp("groups") / "data")
    with small_segments():
        made.up(1, free_base_port(4 * len(groups)), groups=len(groups), timeout_s=at_most(60))
    yield made
    made.down()


@pytest.fixture(scope="module")
def servers(cluster: LocalCluster) -> str:
    """Those of the second group alone: any server will do."""
    return ";".join(f"127.0.0.1:{node.namesrv_port}" for node in cluster.of_group(2))


@pytest.fixture(scope="module")
def mq(servers: str) -> Iterator[raftmq.Client]:
    with raftmq.connect(servers) as client:
        yield client


def groups_of(rows: list[raftmq.Message]) -> dict[int, int]:
    return dict(Counter(group_of(row.queue_id) for row in rows))


def test_a_write_to_all_groups_comes_once(
    spark: SparkSession, servers: str, mq: raftmq.Client, queues: list[int], groups: list[int]
) -> None:
    mq.admin.create_topic("both-batch", 2)
    named = f"element_at(array({', '.join(map(str, queues))}), CAST(id % {len(queues)} AS INT) + 1)"
    frame = spark.range(100).selectExpr("CAST(id AS STRING) AS body", f"{named} AS queue_id")
    sink = frame.write.format("raftmq").mode("append").options(servers=servers, topic="both-batch", sliceRows=7)
    for _ in range(2):
        sink.option("writeId", "both-one").save()
    rows = wait_for_rows(mq, "both-batch", 100)
    assert sorted(int(row.body) for row in rows) == list(range(100))
    assert all(row.queue_id == queues[int(row.body) % len(queues)] for row in rows)
    free = spark.range(100, 200).selectExpr("CAST(id AS STRING) AS body")
    free.write.format("raftmq").mode("append").options(servers=servers, topic="both-batch", sliceRows=7).save()
    rows = wait_for_rows(mq, "both-batch", 200)
    assert sorted(int(row.body) for row in rows) == list(range(200))
    assert sorted(groups_of(rows)) == groups
    assert min(groups_of(rows).values()) > 120 / len(groups), "rows without a queue go to all"


def test_a_read_has_the_queues_of_all_groups(
    spark: SparkSession, servers: str, mq: raftmq.Client, queues: list[int]
) -> None:
    mq.admin.create_topic("both-read", 2)
    for queue in queues:
        mq.send_batch("both-read", [b"%d" % number for number in range(20)], queue_id=queue)
    read = spark.read.format("raftmq").options(servers=servers, topic="both-read")
    columns = "queue_id,queue_offset,body,index,term"
    found = read.option("columns", columns).load().collect()
    assert sorted((row.queue_id, row.queue_offset) for row in found) == [(q, o) for q in queues for o in range(20)]
    assert all(row["index"] > 0 and row["term"] > 0 for row in found)
    chosen = read.option("startingOffsets", f'{{"0": 18, "{queues[-1]}": 15}}').option("columns", columns)
    assert Counter(row.queue_id for row in chosen.load().collect()) == {
        **dict.fromkeys(queues, 20),
        0: 2,
        queues[-1]: 5,
    }
    table = raftmq.read_arrow("both-read", servers=servers)
    assert sorted(set(table["queue_id"].to_pylist())) == queues


def test_a_table_has_the_queues_of_all_groups(
    spark: SparkSession, servers: str, mq: raftmq.Client, tmp_path: Path, queues: list[int]
) -> None:
    """A topic has another identity in each group, and one that is made anew is told from the old one in each."""
    columns = ("topic", "queue_id", "queue_offset", "store_ms")
    mq.admin.create_topic("both-table", 2)
    options = parse_options({"servers": servers, "topic": "both-table", "columns": ",".join(columns)})
    for count in (3, 2):  # the second is added by the other kind of writer
        for queue in queues:
            mq.send_batch("both-table", [b"x"] * count, queue_id=queue)
        if count == 3:
            assert export(spark, options, tmp_path).messages == 3 * len(queues)
        else:
            with TableRun(mq, ["both-table"], tmp_path, TableOptions(columns)) as run:
                assert run.round().messages == 2 * len(queues)
    rows = DeltaTable(str(tmp_path)).to_pyarrow_table(columns=["queue_id", "queue_offset"]).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [(queue, at) for queue in queues for at in range(5)]
    assert [(each.queue_id, each.problem) for each in table_status(mq, tmp_path).queues] == [(q, "") for q in queues]
    mq.admin.delete_topic("both-table")
    mq.admin.create_topic("both-table", 2)
    assert all("which is gone" in each.problem for each in table_status(mq, tmp_path).queues)
    with pytest.raises(TableError, match="in another topic of this name"):
        export(spark, options, tmp_path)


def test_a_stream_reads_all_groups_once_through_restarts(
    spark: SparkSession, servers: str, mq: raftmq.Client, tmp_path: Path, queues: list[int]
) -> None:
    for name in ("both-from", "both-to"):
        mq.admin.create_topic(name, 2)
    stream = StreamBetweenTopics(
        spark, servers, "both-from", "both-to", tmp_path / "checkpoint", columns="body,queue_id"
    )

    for queue in queues:
        mq.send_batch("both-from", [b"%d-%d" % (queue, number) for number in range(10)], queue_id=queue)
    stream.run()
    stream.forget_the_end()
    stream.run()
    mq.send_batch("both-from", [b"last"], queue_id=queues[2])
    stream.run()
    rows = wait_for_rows(mq, "both-to", 10 * len(queues) + 1)
    assert {bytes(row.body) for row in rows} == {
        b"last",
        *(b"%d-%d" % (queue, number) for queue in queues for number in range(10)),
    }
    assert all(row.queue_id == int(row.body.split(b"-")[0]) for row in rows if row.body != b"last")


@pytest.mark.parametrize("stops", ["before the first prepares", "before the commit", "after the commit"])
@pytest.mark.parametrize("killed", [1, 2])
def test_a_driver_that_dies_on_the_way(
    cluster: LocalCluster,
    servers: str,
    mq: raftmq.Client,
    monkeypatch: pytest.MonkeyPatch,
    stops: str,
    killed: int,
    queues: list[int],
    groups: list[int],
) -> None:
    """Somebody runs the write again, and a group's only node was killed meanwhile: every row once."""
    from raftmq.client.producing.staged_writes_client import StagedWrites

    topic = f"both-dies-{killed}-{stops.replace(' ', '-')}"
    mq.admin.create_topic(topic, 2)
    given = {"servers": servers, "topic": topic, "writeId": topic}
    writer = TopicWriter(parse_sink_options(given, stream=False))
    at = {"before the first prepares": RequestCode.PREPARE_WRITE, "before the commit": RequestCode.COMMIT_GROUPS}

    def staged() -> list[Any]:
        import pyarrow as pa

        chosen = pa.array([queues[number % len(queues)] for number in range(40)], pa.int32())
        bodies = pa.array([str(number) for number in range(40)], pa.string())
        return [writer.write(iter([pa.record_batch({"body": bodies, "queue_id": chosen})]))]

    class DriverDiedError(Exception):
        pass

    real = StagedWrites._ask

    def ask(self: StagedWrites, code: RequestCode, *rest: Any) -> Any:
        if code == at.get(stops):
            raise DriverDiedError
        return real(self, code, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(StagedWrites, "_ask", ask)
        if stops == "after the commit":
            writer.commit(staged())
        else:
            with pytest.raises(DriverDiedError):
                writer.commit(staged())
    victim = cluster.of_group(killed)[0]
    cluster.kill(victim.name)
    cluster.restart(victim.name)
    wait(lambda: all(mq.admin.describe_topic(topic).queues), "all groups answer")
    writer.commit(staged())
    rows = wait_for_rows(mq, topic, 40)
    assert sorted(int(row.body) for row in rows) == list(range(40))
    assert groups_of(rows) == dict.fromkeys(groups, 40 // len(groups))

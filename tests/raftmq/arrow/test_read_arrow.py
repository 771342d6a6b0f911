"""A topic as a table and as a Parquet file, read from a real cluster."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raftmq
from raftmq.arrow.columns import DEFAULT_COLUMNS, arrow_schema
from raftmq.arrow.ranges import QueueRange, Unreadable
from raftmq.arrow.tables import followers_of, node_for, read_batches, select
from raftmq.cli import run
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from raftmq_wire.errors import ExitCode
from raftmq_wire.topic_identity import Position
from tests.support.rows import each_row
from tests.support.small_segments import small_segments

pytestmark = pytest.mark.live

TOPIC = "tables"
QUEUES = 2
MESSAGES = 20_000
"""A queue has more of them than a batch, and a batch more than a pull."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes; queue 0 holds the even numbers and queue 1 the odd ones."""
    live = LocalCluster(tmp_path_factory.mktemp("arrow") / "data")
    with small_segments():
        live.up(3, free_base_port(12))
    with raftmq.connect(live.servers) as mq:
        mq.admin.create_topic(TOPIC, QUEUES)
        for queue in range(QUEUES):
            for at in range(queue, MESSAGES, 1000):
                bodies = [str(number).encode() for number in range(at, min(MESSAGES, at + 1000), QUEUES)]
                mq.send_batch(TOPIC, bodies, queue_id=queue, key="k", properties={"n": str(queue)})
    yield live
    live.down()


@pytest.fixture
def servers(cluster: LocalCluster) -> str:
    return cluster.servers


@pytest.mark.parametrize("read_from", ["follower", "leader"])
def test_a_table_holds_every_message(servers: str, read_from: str) -> None:
    table = raftmq.read_arrow(TOPIC, servers=servers, read_from=read_from)
    assert table.schema == arrow_schema(DEFAULT_COLUMNS)
    assert table.column("queue_offset").to_pylist() == [*range(MESSAGES // 2)] * 2
    wanted = [str(n).encode() for queue in range(QUEUES) for n in range(queue, MESSAGES, QUEUES)]
    assert table.column("body").to_pylist() == wanted
    assert set(table.column("keys").to_pylist()) == {"k"}


def test_index_and_term_are_the_same_from_every_node(servers: str) -> None:
    """Their values are compared with the log itself in tests/raftmq/copies."""
    names = ("queue_id", "position", "index", "term")
    table = raftmq.read_arrow(TOPIC, servers=servers, columns=names)
    assert table.equals(raftmq.read_arrow(TOPIC, servers=servers, columns=names, read_from="leader"))
    first = table.filter(pa.compute.equal(table["queue_id"], 0))
    assert first["index"].to_pylist() == sorted(first["index"].to_pylist())
    assert len(set(first["index"].to_pylist())) >= MESSAGES // 1000, "one entry for each batch that was sent"
    assert min(table["term"].to_pylist()) >= 1


def test_the_table_equals_what_a_consumer_is_handed(servers: str) -> None:
    with raftmq.connect(servers) as mq, mq.consumer("readers", TOPIC, follow=False) as consumer:
        rows = sorted((m.queue_id, m.queue_offset, m.body, m.message_id, m.store_ms, m.position) for m in consumer)
    names = ("queue_id", "queue_offset", "body", "message_id", "store_ms", "position")
    table = raftmq.read_arrow(TOPIC, servers=servers, columns=names)
    assert [tuple(row.values()) for row in table.to_pylist()] == rows


def test_ranges_by_queue_and_time(servers: str) -> None:
    def read(start: object = "earliest", end: object = "latest") -> list[tuple[int, int]]:
        table = raftmq.read_arrow(TOPIC, start, end, servers=servers, columns=("queue_id", "queue_offset"))  # type: ignore[arg-type]
        return [tuple(row.values()) for row in table.to_pylist()]

    assert read({0: 3, 1: "latest"}, {0: 5}) == [(0, 3), (0, 4)]
    long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    far_off = datetime.datetime(2200, 1, 1, tzinfo=datetime.UTC)
    assert len(read(long_ago, far_off)) == MESSAGES
    assert read(far_off) == read("earliest", long_ago) == []


def test_a_data_frame(servers: str) -> None:
    frame = raftmq.read_pandas(TOPIC, {0: 0, 1: "latest"}, {0: 2}, servers=servers, columns=("queue_offset", "body"))
    assert frame.to_dict("list") == {"queue_offset": [0, 1], "body": [b"0", b"2"]}


@each_row(
    ("arguments", "error", "said"),
    [
        ({"topic": "no-such-topic"}, raftmq.NotFound, "no-such-topic"),
        ({"start": 70_000}, raftmq.Failed, "start asks for offset 70000 of tables queue 0"),
        ({"start": {9: 0}}, raftmq.Failed, "start names queue 9 of tables"),
        ({"start": "first"}, ValueError, "start='first' is not"),
        ({"end": {"0": 1}}, ValueError, "'0' is no queue id"),
        ({"start": datetime.datetime(2020, 1, 1)}, ValueError, "no time zone"),  # noqa: DTZ001
        ({"columns": ["boddy"]}, ValueError, "no column 'boddy'"),
        ({"read_from": "anyone"}, ValueError, "read_from='anyone'"),
    ],
)
def test_what_is_not_there_is_named(
    servers: str, arguments: dict[str, object], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        raftmq.read_arrow(**{"topic": TOPIC, "servers": servers, **arguments})  # type: ignore[arg-type]


def test_export_writes_what_is_read(servers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "out.parquet"
    before = os.umask(0o022)
    try:
        assert run(["export", TOPIC, "--to", str(to), "--servers", servers, "--json"]) == ExitCode.OK
    finally:
        os.umask(before)
    assert to.stat().st_mode & 0o777 == 0o644, "the user named it"
    assert json.loads(capsys.readouterr().out)["messages"] == MESSAGES
    written = pq.read_table(to)
    assert written.equals(raftmq.read_arrow(TOPIC, servers=servers))
    assert [path.name for path in tmp_path.iterdir()] == ["out.parquet"]


def test_export_of_an_empty_topic_is_a_file_without_rows(servers: str, tmp_path: Path) -> None:
    with raftmq.connect(servers) as mq:
        mq.admin.create_topic("nothing-yet", 1)
    to = tmp_path / "none.parquet"
    assert run(["export", "nothing-yet", "--to", str(to), "--servers", servers, "--columns", "body"]) == ExitCode.OK
    assert pq.read_table(to).schema == pa.schema([("body", pa.binary())])


def test_an_export_that_fails_leaves_no_file(servers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "out.parquet"
    assert run(["export", "no-such-topic", "--to", str(to), "--servers", servers]) != ExitCode.OK
    assert run(["export", TOPIC, "--to", str(to), "--servers", servers, "--columns", "boddy"]) == ExitCode.USAGE
    assert run(["export", TOPIC, "--to", str(tmp_path / "no" / "x"), "--servers", servers]) == ExitCode.FAILED
    assert "cannot be written" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("read_from", ["follower", "leader"])
def test_a_read_goes_on_when_the_leader_is_killed(cluster: LocalCluster, read_from: str) -> None:
    """A read that was begun at one leader is finished with the next: every offset once, in order."""
    with raftmq.connect(cluster.servers) as mq:
        selection = select(mq, TOPIC, columns=("queue_id", "queue_offset"), read_from=read_from)
        batches = read_batches(mq, selection)
        read = [next(batches)]
        leader = cluster.wait_leader()
        cluster.kill(leader)
        read += batches
    cluster.restart(leader)
    rows = [(queue, offset) for batch in read for queue, offset in zip(*batch.to_pydict().values(), strict=True)]
    assert rows == [(queue, offset) for queue in range(QUEUES) for offset in range(MESSAGES // QUEUES)]


@pytest.mark.ci
def test_a_read_goes_on_when_its_follower_is_killed(cluster: LocalCluster) -> None:
    with raftmq.connect(cluster.servers) as mq:
        selection = select(mq, TOPIC, columns=("queue_id", "queue_offset"))
        asked = node_for(mq, QueueRange(TOPIC, 0, 0, 1), followers_of(mq))
        assert asked is not None
        victim = next(node.id for node in cluster.nodes if asked.endswith(f":{node.broker_port}"))
        batches = read_batches(mq, selection)
        read = [next(batches)]
        cluster.kill(victim)
        read += batches
    cluster.restart(victim)
    assert sum(batch.num_rows for batch in read) == MESSAGES


def test_a_topic_made_again_is_not_read_for_the_old_one(servers: str) -> None:
    """Neither by a plan, nor from a position that a program has kept, however many messages the new one has."""
    with raftmq.connect(servers) as mq:
        mq.admin.create_topic("again", 1)
        mq.send_batch("again", [b"old"] * 4)
        old = mq.admin.identity("again")
        assert old is not None
        assert raftmq.read_arrow("again", {0: Position(3, old)}, servers=servers).num_rows == 1
        selection = select(mq, "again")
        mq.admin.delete_topic("again")
        mq.admin.create_topic("again", 1)
        mq.send_batch("again", [b"new"] * 6)
        with pytest.raises(Unreadable, match=f"another topic of this name: .* id {old.topic_id}, which is gone"):
            list(read_batches(mq, selection))
        with pytest.raises(Unreadable, match="start asks for offset 3 of another topic again"):
            raftmq.read_arrow("again", {0: Position(3, old)}, servers=servers)
        assert raftmq.read_arrow("again", {0: Position(3)}, servers=servers).num_rows == 3


def test_rows_that_a_new_topic_may_have_given_are_not_returned(
    servers: str,
) -> None:
    """The topic is made again while it is read."""
    with raftmq.connect(servers) as mq:
        mq.admin.create_topic("meanwhile", 1)
        mq.send_batch("meanwhile", [b"old"] * 4)
        batches = read_batches(mq, select(mq, "meanwhile"))
        assert next(batches).num_rows == 4
        mq.admin.delete_topic("meanwhile")
        mq.admin.create_topic("meanwhile", 1)
        with pytest.raises(Unreadable, match="another topic of this name"):
            list(batches)


def test_a_follower_that_has_the_old_topic_still_is_not_asked(servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with raftmq.connect(servers) as mq:
        (planned, *_) = select(mq, TOPIC).ranges
        followers = followers_of(mq)
        assert node_for(mq, planned, followers) in followers
        identity, old = mq.admin.identity, planned.counted_in
        assert old is not None
        behind = old._replace(topic_id=old.topic_id - 1)
        monkeypatch.setattr(mq.admin, "identity", lambda topic, node=None: behind if node else identity(topic))
        assert node_for(mq, planned, followers) is None

"""A table that follows topics: each message once, whoever dies, writes beside it, or makes the topic anew."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable

import raftmq
from raftmq.arrow.columns import DEFAULT_COLUMNS
from raftmq.cli import cli
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from raftmq.tables.delta_table import DeltaTarget
from raftmq.tables.errors import TableError
from raftmq.tables.kept_table import TableOptions
from raftmq.tables.local_keeper import LocalKeeper
from raftmq.tables.table_run import TableRun
from raftmq.tables.table_status import table_status
from raftmq.tables.upkeep import SMALL_BYTES, compact, small_files, vacuum
from tests.support.followed_topics import send, stored
from tests.support.pace import at_most

pytestmark = pytest.mark.live

OPTIONS = TableOptions(DEFAULT_COLUMNS)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    live = LocalCluster(tmp_path_factory.mktemp("followed") / "data")
    live.up(3, free_base_port(12))
    yield live
    live.down()


@pytest.fixture(scope="module")
def mq(cluster: LocalCluster) -> Iterator[raftmq.Client]:
    with raftmq.connect(cluster.servers) as client:
        yield client


def rows_in(folder: Path) -> list[tuple[int, int]]:
    table = DeltaTable(str(folder)).to_pyarrow_table(columns=["queue_id", "queue_offset"])
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def visible(folder: Path) -> set[str]:
    """Names of files that a reader takes who reads the folder and not the table."""
    return {path.name for path in folder.glob("day=*/[!_]*.parquet")}


def named(folder: Path) -> set[str]:
    return {uri.rpartition("/")[2] for uri in DeltaTable(str(folder)).file_uris()}


def test_rounds_go_on_where_the_table_ends(mq: raftmq.Client, topic: str, tmp_path: Path) -> None:
    with TableRun(mq, [topic], tmp_path, OPTIONS._replace(round_messages=30)) as run:
        done = [run.round() for _ in range(4)]
        assert [(each.messages, each.left) for each in done] == [(29, 36), (29, 7), (7, 0), (0, 0)]
        assert [each.version for each in done] == [1, 2, 3, None]
        send(mq, topic, 0, 3)
        assert run.round().messages == 3
    assert rows_in(tmp_path) == stored(mq, topic)
    assert visible(tmp_path) == named(tmp_path)


def test_a_table_has_one_run_at_a_time(mq: raftmq.Client, topic: str, tmp_path: Path) -> None:
    second = TableRun(mq, [topic], tmp_path, OPTIONS)
    with TableRun(mq, [topic], tmp_path, OPTIONS), pytest.raises(TableError, match="another run keeps the table"):
        second.__enter__()
    with TableRun(mq, [topic], tmp_path, OPTIONS) as run:
        assert run.round().messages == 65


class Died(BaseException):
    """Nothing of a run may catch it."""


@pytest.mark.parametrize("committed", [False, True])
def test_what_a_killed_round_leaves_is_counted_once(
    mq: raftmq.Client, topic: str, tmp_path: Path, committed: bool
) -> None:
    """A commit that is not known to have happened, too: the table says whether it did."""

    class Dies(DeltaTarget):
        def commit(self, files: Any, reached: Any, keeper: int | None = None) -> int:
            if committed:
                super().commit(files, reached, keeper)
            raise Died

    class Leaving(LocalKeeper):
        def remove_strays(self) -> None:
            """Removes nothing: the process is gone."""

    with TableRun(mq, [topic], tmp_path, OPTIONS, Dies, keeper=Leaving(tmp_path)) as run, suppress(Died):
        run.round()
    assert len(visible(tmp_path)) == 2
    assert bool(named(tmp_path)) is committed
    with TableRun(mq, [topic], tmp_path, OPTIONS) as run:
        assert visible(tmp_path) == named(tmp_path)
        assert run.round().messages == (0 if committed else 65)
    assert rows_in(tmp_path) == stored(mq, topic)


def test_a_writer_beside_it_costs_a_round_and_no_row(mq: raftmq.Client, topic: str, tmp_path: Path) -> None:
    """An export that reaches the same messages between the plan of a round and its commit."""

    class Overtaken(DeltaTarget):
        def commit(self, files: Any, reached: Any, keeper: int | None = None) -> int:
            other = [file._replace(path=file.path.replace("run-", "other-")) for file in files]
            for mine, copied in zip(files, other, strict=True):
                (tmp_path / copied.path).write_bytes((tmp_path / mine.path).read_bytes())
            DeltaTarget(tmp_path, DEFAULT_COLUMNS).commit(other, reached)
            return super().commit(files, reached, keeper)

    with TableRun(mq, [topic], tmp_path, OPTIONS, Overtaken) as run:
        assert run.round()[:4] == (0, 0, 0, None)
        assert run.round() == (0, 0, 0, None, 0, 0, {})
    assert rows_in(tmp_path) == stored(mq, topic)
    assert visible(tmp_path) == named(tmp_path)


@pytest.mark.parametrize("count", [10, 40, 70])
def test_a_topic_that_was_made_anew_is_not_mixed_with_the_old(
    mq: raftmq.Client, topic: str, tmp_path: Path, count: int
) -> None:
    """However many messages it has: the offset where the table goes on may be there again."""
    with TableRun(mq, [topic], tmp_path, OPTIONS) as run:
        run.round()
        mq.admin.delete_topic(topic)
        mq.admin.create_topic(topic, 2)
        send(mq, topic, count)
        with pytest.raises(TableError, match=r"goes on at offset 40 of .* queue 0, in another topic of this name"):
            run.round()
        problems = {queue.queue_id: queue.problem for queue in table_status(mq, tmp_path).queues}
        assert all("which is gone" in problem for problem in problems.values())
    with TableRun(mq, [topic], tmp_path, OPTIONS._replace(accept_loss=True)) as run:
        assert run.round().messages == count
    with TableRun(mq, [topic], tmp_path, OPTIONS) as run:
        assert run.round().messages == 0
    assert len(rows_in(tmp_path)) == 65 + count
    mq.admin.delete_topic(topic)


def test_small_files_become_one_and_the_others_go(mq: raftmq.Client, topic: str, tmp_path: Path) -> None:
    with TableRun(mq, [topic], tmp_path, OPTIONS) as run:
        for _ in range(5):
            assert run.round().version is not None
            send(mq, topic, 3, 2)
        ((day, count),) = small_files(tmp_path).items()
        assert count == 10
        assert compact(tmp_path, at_least=11) == (0, 0, 0)
        assert compact(tmp_path) == (10, 1, 0)
        assert small_files(tmp_path) == {day: 1}
        assert compact(tmp_path) == (0, 0, 0), "one file stays as it is"
        assert run.round().messages == 5, "and the offsets are those of before"
        assert rows_in(tmp_path) == stored(mq, topic)
    (tmp_path / f"day={day}" / "_of-an-export.tmp").touch()
    with TableRun(mq, [topic], tmp_path, OPTIONS):
        assert len(visible(tmp_path) - named(tmp_path)) == 10, "readers of older versions need what was merged"
        assert (tmp_path / f"day={day}" / "_of-an-export.tmp").exists()
        assert vacuum(tmp_path, keep_hours=1).deleted == 0
        assert vacuum(tmp_path, keep_hours=0).deleted == 10
    assert rows_in(tmp_path) == stored(mq, topic)
    assert visible(tmp_path) == named(tmp_path)


def test_the_status_says_what_is_missing(mq: raftmq.Client, topic: str, tmp_path: Path) -> None:
    with pytest.raises(TableError, match="is no Delta table"):
        table_status(mq, tmp_path)
    with TableRun(mq, [topic], tmp_path, OPTIONS) as run:
        run.round()
        assert table_status(mq, tmp_path).kept
    send(mq, topic, 0, 7)
    found = table_status(mq, tmp_path)
    assert (found.kept, found.behind, found.unfit, found.gone) == (False, 7, 0, [])
    assert (found.version, found.files, found.small, found.rows) == (1, 2, 2, 65)
    assert [(queue.queue_id, queue.offset, queue.behind) for queue in found.queues] == [(0, 40, 0), (1, 25, 7)]
    assert found.queues[0].behind_s == 0 < found.queues[1].behind_s == found.behind_s
    assert 0 <= time.time() * 1000 - found.committed_ms < 3_600_000
    assert found.bytes < SMALL_BYTES
    mq.admin.create_topic(topic, 3)
    send(mq, topic, 0, 0, 5)
    assert [queue.behind for queue in table_status(mq, tmp_path).queues] == [0, 7, 5], "a queue that is new"
    mq.admin.delete_topic(topic)
    assert table_status(mq, tmp_path).gone == [topic]


def command(mq: raftmq.Client, *words: str) -> Result:
    return CliRunner().invoke(cli, [*words, "--servers", ";".join(mq.servers)], catch_exceptions=True)


def test_the_commands(mq: raftmq.Client, topic: str, tmp_path: Path) -> None:
    ran = command(mq, "table", "run", topic, "--to", str(tmp_path / "t"), "--once", "--group", "lake", "--json")
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout.splitlines()[0])["messages"] == 65
    assert [mq.admin.committed("lake", topic, queue) for queue in (0, 1)] == [40, 25]
    shown = command(mq, "table", "status", str(tmp_path / "t"), "--json")
    assert (shown.exit_code, json.loads(shown.stdout)["rows"]) == (0, 65)
    compacted = CliRunner().invoke(cli, ["table", "compact", str(tmp_path / "t")])
    assert compacted.stdout == "2 small files became 1; deleted: 0 files\n"
    mq.admin.delete_topic(topic)
    mq.admin.create_topic(topic, 2)
    assert command(mq, "table", "status", str(tmp_path / "t")).exit_code == 1


@pytest.mark.ci
def test_twenty_kills_cost_no_row(mq: raftmq.Client, topic: str, tmp_path: Path) -> None:
    """kill -9 of the process at random moments, with messages coming in and small files being merged."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    chance, folder = random.Random(seed), tmp_path / "t"
    words = [sys.executable, "-m", "raftmq", "table", "run", topic, "--to", str(folder)]
    words += ["--servers", ";".join(mq.servers)]
    for number in range(20):
        log = tmp_path / f"log{number}"
        with log.open("w") as out:
            running = subprocess.Popen([*words, "--every", "1s", "--compact-at", "4"], stdout=out, stderr=out)
        until((folder / "_raftmq.lock").exists)
        until_s = time.monotonic() + chance.uniform(0.5, 2.5)
        while time.monotonic() < until_s:
            send(mq, topic, chance.randrange(20), chance.randrange(20))
            time.sleep(0.05)
        assert running.poll() is None, log.read_text()
        running.kill()
        running.wait()
    subprocess.run([*words, "--once"], check=True, stdout=subprocess.DEVNULL)
    assert rows_in(folder) == stored(mq, topic)
    assert named(folder) <= visible(folder)


def until(holds: Callable[[], object]) -> None:
    end_s = time.monotonic() + at_most(60)
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.05)

"""Tables on an object store: each message once, whoever dies, is paused, or does not get an answer."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import obstore
import pytest
from click.testing import CliRunner, Result
from deltalake.exceptions import DeltaError

import raftmq
from cluster.config.storage_sections import TierSection
from cluster.tier.store.store_by_url import cloud_client
from raftmq.arrow.columns import DEFAULT_COLUMNS
from raftmq.cli import cli
from raftmq.commands.data.table_steps import passing
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from raftmq.tables import store_folder, store_keeper
from raftmq.tables.delta_log import opened
from raftmq.tables.delta_table import DeltaTarget
from raftmq.tables.errors import TableError
from raftmq.tables.kept_table import KeptTable, TableOptions
from raftmq.tables.store_folder import LIST_CHUNK, StoreFailed, StoreFolder
from raftmq.tables.store_keeper import StoreKeeper
from raftmq.tables.table_rows import MoreColumns
from raftmq.tables.table_run import TableRun
from raftmq.tables.upkeep import compact, vacuum
from raftmq_wire.errors import ExitCode
from tests.support.followed_topics import send, stored
from tests.support.pace import at_most
from tests.support.stopped_store import StoppableStore
from tests.support.store_proxy import StoreProxy

pytestmark = pytest.mark.live

OPTIONS = TableOptions(DEFAULT_COLUMNS)


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[raftmq.Client]:
    live = LocalCluster(tmp_path_factory.mktemp("followed") / "data")
    live.up(3, free_base_port(12))
    try:
        with raftmq.connect(live.servers) as client:
            yield client
    finally:
        live.down()


def rows_in(where: StoreFolder) -> list[tuple[int, int]]:
    table = opened(where).to_pyarrow_table(columns=["queue_id", "queue_offset"])
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def there(where: StoreFolder) -> set[str]:
    """Names of data files on the store."""
    return {path.rpartition("/")[2] for page in where.files("") for path in page if path.startswith("day=")}


def named(where: StoreFolder) -> set[str]:
    return {uri.rpartition("/")[2] for uri in opened(where).file_uris()}


def test_rounds_go_on_where_the_table_ends(
    mq: raftmq.Client, topic: str, where: StoreFolder, proxy: StoreProxy
) -> None:
    with TableRun(mq, [topic], where, OPTIONS._replace(round_messages=30)) as run:
        done = [run.round() for _ in range(4)]
        assert [(each.messages, each.left) for each in done] == [(29, 36), (29, 7), (7, 0), (0, 0)]
        assert [each.version for each in done] == [1, 2, 3, None]
        send(mq, topic, 0, 3)
        assert run.round().messages == 3
        proxy.requests()
        assert run.round().messages == 0
        about_the_table = [each for each in proxy.requests() if "lease" not in each]
        assert len(about_the_table) <= 3, f"a round without messages asks only what is new: {about_the_table}"
    assert rows_in(where) == stored(mq, topic)
    assert there(where) == named(where)


def test_a_table_has_one_run_at_a_time(mq: raftmq.Client, topic: str, where: StoreFolder) -> None:
    with (
        kept(where, over_after_s=1.0),
        pytest.raises(TableError, match=r"another run keeps the table s3://.*") as refused,
    ):
        TableRun(mq, [topic], where, OPTIONS).__enter__()
    assert refused.value.exit_code is ExitCode.REFUSED
    with TableRun(mq, [topic], where, OPTIONS) as run:
        assert run.round().messages == 65, "who ended gave the lease back"


def kept(where: StoreFolder, over_after_s: float) -> KeptTable:
    return KeptTable(where, OPTIONS, keeper=StoreKeeper(where, over_after_s))


class Died(BaseException):
    """Nothing of a run may catch it."""


@pytest.mark.parametrize("committed", [False, True])
def test_what_a_killed_round_leaves_is_counted_once(
    mq: raftmq.Client, topic: str, where: StoreFolder, committed: bool
) -> None:
    class Dies(DeltaTarget):
        def commit(self, files: Any, reached: Any, keeper: int | None = None) -> int:
            if committed:
                super().commit(files, reached, keeper)
            raise Died

    with TableRun(mq, [topic], where, OPTIONS, Dies) as run, suppress(Died):
        run.round()
    assert len(there(where)) == 2
    assert bool(named(where)) is committed
    with TableRun(mq, [topic], where, OPTIONS) as run:
        assert run.round().messages == (0 if committed else 65)
        send(mq, topic, 1)
        assert run.round().messages == 1
    assert rows_in(where) == stored(mq, topic)
    assert there(where) == named(where), "the commit has removed what no other commit can name"


def test_a_writer_beside_it_costs_a_round_and_no_row(mq: raftmq.Client, topic: str, where: StoreFolder) -> None:
    """An export that reaches the same messages between the plan of a round and its commit."""

    class Overtaken(DeltaTarget):
        def commit(self, files: Any, reached: Any, keeper: int | None = None) -> int:
            other = [file._replace(path=file.path.replace("run-", "other-")) for file in files]
            for mine, copied in zip(files, other, strict=True):
                obstore.copy(cloud_client(where.url, TierSection(), 0), mine.path, copied.path)
            DeltaTarget(where, DEFAULT_COLUMNS).commit(other, reached)
            return super().commit(files, reached, keeper)

    with TableRun(mq, [topic], where, OPTIONS, Overtaken) as run:
        assert run.round()[:4] == (0, 0, 0, None)
        assert run.round().messages == 0
    assert rows_in(where) == stored(mq, topic)


def test_files_are_removed_although_others_are_gone(tmp_path: Path) -> None:
    """A folder tells of a file that is gone, as Google's stores do; S3's do not."""
    paths = [f"day=1/{number}.parquet" for number in range(LIST_CHUNK + 30)]
    gone = {paths[0], paths[LIST_CHUNK - 1], paths[LIST_CHUNK + 3]}
    (tmp_path / "day=1").mkdir()
    for path in (*set(paths) - gone, "day=1/stays.parquet"):
        (tmp_path / path).touch()
    StoreFolder(tmp_path.as_uri()).remove(paths)
    assert [each.name for each in (tmp_path / "day=1").iterdir()] == ["stays.parquet"]


class PausedFolder(StoreFolder):
    """A place whose single objects, the lease among them, its process reaches only while it is not stopped."""

    stores: ClassVar[list[StoppableStore]] = []

    def objects(self) -> Any:
        self.stores.append(StoppableStore(super().objects()))
        return self.stores[-1]


def test_a_paused_run_loses_no_row_and_brings_none_twice(mq: raftmq.Client, topic: str, where: StoreFolder) -> None:
    """It sleeps between its files and its commit. Meanwhile its lease ends, and another run commits messages of another
    topic and removes what it takes for strays. Nothing but the number in each commit of a run keeps the first one from
    naming files that are gone."""
    other = f"{topic}-2"
    mq.admin.create_topic(other, 1)
    send(mq, other, 5)
    paused, second = StoreKeeper(PausedFolder(where.url), 0.5), StoreKeeper(where, 0.5)
    (store,) = PausedFolder.stores
    woken = TableRun(mq, [other], where, OPTIONS, keeper=second)
    of_both = TableRun(mq, [other, topic], where, OPTIONS, keeper=second)

    class Sleeping(DeltaTarget):
        sleeps = iter([True])

        def commit(self, files: Any, reached: Any, keeper: int | None = None) -> int:
            if next(self.sleeps, False):
                store.is_stopped = True
                woken.__enter__()
                assert woken.round().messages == 5
                store.is_stopped = False
            return super().commit(files, reached, keeper)

    with TableRun(mq, [topic], where, OPTIONS, Sleeping, keeper=paused) as run:
        assert run.round().version is None, "its commit fails"
        brought: list[int] = []  # until it has heard, it may commit once more: nothing is there twice either way
        with pytest.raises(TableError, match="another run has taken the table") as over:
            go_on(run, brought)
    assert over.value.why.endswith("keeps it since this one was silent for 0.5 s")
    assert of_both.round().messages + sum(brought) == 65
    woken.__exit__()
    assert len(rows_in(where)) == 70
    assert there(where) == named(where)


def test_two_runs_at_once_bring_nothing_twice(mq: raftmq.Client, topic: str, where: StoreFolder) -> None:
    """As if there were no lease: it may be that two believe that they have it."""
    first, second = (
        TableRun(mq, [topic], where, OPTIONS._replace(round_messages=7), keeper=Alone(where)) for _ in range(2)
    )
    with first, second, ThreadPoolExecutor(2) as pool:
        running = [pool.submit(rounds_of, run) for run in (first, second)]
        ended = [each.exception(at_most(60)) for each in running]
    assert None in ended, "one of them goes on to the end"
    assert all(each is None or isinstance(each, TableError) for each in ended)
    with TableRun(mq, [topic], where, OPTIONS) as run:
        run.round()
    assert rows_in(where) == stored(mq, topic)
    assert named(where) <= there(where)


class Alone(StoreKeeper):
    """Takes no lease."""

    def take(self) -> None:
        self._thread.__enter__()


def go_on(run: TableRun, brought: list[int]) -> None:
    """Makes rounds until one fails; notes the messages of each."""
    end_s = time.monotonic() + at_most(60)
    while time.monotonic() < end_s:
        brought.append(run.round().messages)


def rounds_of(run: TableRun) -> int:
    """Makes rounds until there is nothing left, or another run has taken over; returns the messages."""
    brought = 0
    while (done := run.round()).left or done.messages:
        brought += done.messages
    return brought


def test_lost_answers_bring_nothing_twice(mq: raftmq.Client, topic: str, where: StoreFolder, proxy: StoreProxy) -> None:
    """The store carries a write out, and nobody learns of it."""
    chance = random.Random(seed := random.randrange(1 << 32))
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    with TableRun(mq, [topic], where, OPTIONS._replace(more=MoreColumns(json=True, grows=True))) as run:
        proxy.order(f"lose 0.3 {seed}")
        for number in range(12):
            mq.send_batch(topic, [json.dumps({f"f{number // 4}": 1}).encode()] * chance.randrange(1, 5), queue_id=0)
            with suppress(StoreFailed, OSError, DeltaError):
                run.round()
            if number == 6:
                with suppress(StoreFailed, OSError, DeltaError):
                    compact(where)
        proxy.order("pass")
        while run.round().left:
            pass
        mq.send(topic, b"the last one")
        assert run.round().messages == 1
    assert rows_in(where) == stored(mq, topic)
    assert {name for name in there(where) - opened_known(where) if name.startswith("run-")} == set()


def opened_known(where: StoreFolder) -> set[str]:
    return DeltaTarget(where, DEFAULT_COLUMNS, MoreColumns(json=True, grows=True)).known_names()


def test_small_files_become_one_and_the_others_go(mq: raftmq.Client, topic: str, where: StoreFolder) -> None:
    with TableRun(mq, [topic], where, OPTIONS) as run:
        for _ in range(12):  # a checkpoint is among them
            assert run.round().version is not None
            send(mq, topic, 1, 1)
        assert compact(where)[:2] == (24, 1)
        assert run.round().messages == 2, "and the offsets are those of before"
        assert len(there(where) - named(where)) == 24, "readers of older versions need what was merged"
        assert vacuum(where, keep_hours=1).deleted == 0
        assert vacuum(where, keep_hours=0).deleted == 24
    assert rows_in(where) == stored(mq, topic)
    assert there(where) == named(where)


def command(mq: raftmq.Client, *words: str) -> Result:
    return CliRunner().invoke(cli, [*words, "--servers", ";".join(mq.servers)], catch_exceptions=True)


def test_the_commands(mq: raftmq.Client, topic: str, where: StoreFolder) -> None:
    ran = command(mq, "table", "run", topic, "--to", where.url, "--once", "--group", "store", "--json")
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout.splitlines()[0])["messages"] == 65
    assert json.loads(ran.stdout.splitlines()[0])["table"] == where.url
    assert [mq.admin.committed("store", topic, queue) for queue in (0, 1)] == [40, 25]
    shown = command(mq, "table", "status", where.url, "--json")
    assert (shown.exit_code, json.loads(shown.stdout)["rows"], json.loads(shown.stdout)["kept"]) == (0, 65, False)
    with kept(where, 60):
        assert json.loads(command(mq, "table", "status", where.url, "--json").stdout)["kept"]
    compacted = CliRunner().invoke(cli, ["table", "compact", where.url])
    assert compacted.stdout == "2 small files became 1; deleted: 0 files\n"
    assert CliRunner().invoke(cli, ["table", "compact", f"{where.url}-2"]).exit_code == 1


MISTAKES = [
    ("lie", "", "ignored"),
    ("refuse", "", "check the keys in AWS_ACCESS_KEY_ID"),
    ("silent", "", "check AWS_ENDPOINT_URL"),
    ("pass", "s3://no-such-bucket/x", "there is no such bucket"),
]


@pytest.mark.parametrize(("order", "url", "told"), MISTAKES)
def test_a_store_that_cannot_have_a_table_is_refused(
    mq: raftmq.Client,
    topic: str,
    where: StoreFolder,
    proxy: StoreProxy,
    monkeypatch: pytest.MonkeyPatch,
    order: str,
    url: str,
    told: str,
) -> None:
    """At the start, and with what to do. Nothing is left there."""
    monkeypatch.setattr(store_keeper, "_POLICY", store_keeper._POLICY.__class__(total_s=0.1))
    proxy.order(order)
    ran = command(mq, "table", "run", topic, "--to", url or where.url, "--once")
    assert ran.exit_code in (ExitCode.FAILED, ExitCode.UNREACHABLE), ran.output
    assert told in ran.output
    proxy.order("pass")
    assert there(where) == set()


@pytest.mark.parametrize("url", ["http://host/table", "s3:/bucket", "s3://bucket/a b", "s3://key:secret@bucket/x"])
def test_what_is_no_store_is_said_before_anything_else(url: str) -> None:
    ran = CliRunner().invoke(cli, ["table", "run", "orders", "--to", url])
    assert ran.exit_code == ExitCode.USAGE
    assert "type:    --to s3://bucket/prefix" in ran.output
    assert "secret" not in ran.output


def test_a_run_waits_for_a_store_that_is_away(
    mq: raftmq.Client, topic: str, where: StoreFolder, proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_folder, "RETRIES", 0)
    with TableRun(mq, [topic], where, OPTIONS) as run:
        proxy.order("silent")
        with pytest.raises(StoreFailed, match=r"the store s3://.* failed"), passing(where, again=False):
            run.round()
        with passing(where, again=True):
            run.round()
        proxy.order("pass")
        assert run.round().messages == 65
    assert rows_in(where) == stored(mq, topic)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [pytest.param(3, marks=pytest.mark.ci), pytest.param(20, marks=pytest.mark.slow)])
def test_kills_and_lost_answers_cost_no_row(
    mq: raftmq.Client, topic: str, where: StoreFolder, proxy: StoreProxy, tmp_path: Path, kills: int
) -> None:
    """kill -9 of the process at random moments, with messages coming in, small files being merged, and answers of the
    store lost after it has carried out what it was asked."""
    chance = random.Random(seed := random.randrange(1 << 32))
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    words = [sys.executable, "-m", "raftmq", "table", "run", topic, "--to", where.url]
    words += ["--servers", ";".join(mq.servers)]
    for number in range(kills):
        proxy.order(f"lose {chance.choice((0, 0.05, 0.2))} {chance.randrange(1 << 32)}")
        log = tmp_path / f"log{number}"
        with log.open("w") as out:
            running = subprocess.Popen([*words, "--every", "1s", "--compact-at", "4"], stdout=out, stderr=out)
        begun_s, until_s = time.monotonic(), chance.uniform(1, 12) + (20 if number else 0)
        while time.monotonic() < begun_s + until_s and running.poll() is None:
            send(mq, topic, chance.randrange(20), chance.randrange(20))
            time.sleep(0.1)
        running.kill()  # a probe whose answers were lost may have ended it before
        running.wait()
    proxy.order("pass")
    subprocess.run([*words, "--once"], check=True, stdout=subprocess.DEVNULL, timeout=at_most(120))
    send(mq, topic, 1)
    subprocess.run([*words, "--once"], check=True, stdout=subprocess.DEVNULL, timeout=at_most(120))
    assert rows_in(where) == stored(mq, topic)
    target = DeltaTarget(where, DEFAULT_COLUMNS)
    assert target.file_names() <= there(where)
    assert {name for name in there(where) - target.known_names() if name.startswith("run-")} == set()

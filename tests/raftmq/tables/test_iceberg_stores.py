"""An Iceberg table on an object store: each message once, whoever dies, is paused, or does not get an answer."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import obstore
import pytest
from click.testing import CliRunner, Result
from pyiceberg.exceptions import CommitFailedException

import raftmq
from cluster.config.storage_sections import TierSection
from cluster.tier.store.store_by_url import cloud_client
from raftmq.cli import cli
from raftmq.tables.errors import CatalogError, LostRace, TableError
from raftmq.tables.iceberg_place import IcebergPlace
from raftmq.tables.iceberg_table import IcebergTarget, data_files, named_files
from raftmq.tables.iceberg_upkeep import compact_iceberg
from raftmq.tables.kept_iceberg import KeptIceberg
from raftmq.tables.store_folder import StoreFailed, StoreFolder
from raftmq.tables.store_keeper import StoreKeeper
from raftmq.tables.table_rows import MoreColumns
from raftmq.tables.table_run import TableRun
from tests.support.followed_topics import send, stored
from tests.support.iceberg_rest import CODES, LATER, LOST_AFTER, LOST_BEFORE, RestCatalogServer
from tests.support.iceberg_rows import OPTIONS, named, opened, rows_in, run_of
from tests.support.pace import at_most
from tests.support.store_proxy import StoreProxy

pytestmark = pytest.mark.live


@pytest.fixture
def rest(proxy: StoreProxy, tmp_path: Path) -> Iterator[RestCatalogServer]:
    """The catalog reaches the store as well: it writes the files of metadata."""
    store = {"s3.endpoint": proxy.endpoint, "s3.region": "us-east-1"}
    with RestCatalogServer(tmp_path / "rest", store=store).running() as server:
        yield server


@pytest.fixture(params=["sql", "rest"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> IcebergPlace:
    if request.param == "rest":
        found: IcebergPlace = request.getfixturevalue("rest").place
        return found
    return sql_in(tmp_path)


def sql_in(folder: Path) -> IcebergPlace:
    return IcebergPlace(properties={"type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}"})


def there(where: StoreFolder) -> set[str]:
    """Names of files with rows on the store."""
    return {path.rpartition("/")[2] for path in data_files(where, "")}


def known(where: StoreFolder, place: IcebergPlace) -> set[str]:
    """Names of the files on the store that some snapshot names."""
    urls = {f"{where.url}/{path}" for path in data_files(where, "")}
    return {url.rpartition("/")[2] for url in named_files(opened(where, place), urls)}


def test_rounds_go_on_where_the_table_ends(
    mq: raftmq.Client, topic: str, where: StoreFolder, place: IcebergPlace
) -> None:
    with run_of(mq, topic, where, place, round_messages=30) as run:
        done = [run.round() for _ in range(4)]
        assert [(each.messages, each.left) for each in done] == [(29, 36), (29, 7), (7, 0), (0, 0)]
        send(mq, topic, 0, 3)
        assert run.round().messages == 3
    assert rows_in(where, place) == stored(mq, topic)
    assert there(where) == named(where, place)
    assert opened(where, place).location() == where.url


def test_a_table_has_one_run_at_a_time(mq: raftmq.Client, topic: str, where: StoreFolder, tmp_path: Path) -> None:
    place = sql_in(tmp_path)
    held = KeptIceberg(where, OPTIONS, place, keeper=StoreKeeper(where, 1.0))
    with held, pytest.raises(TableError, match=r"another run keeps the table s3://.*"):
        run_of(mq, topic, where, place).__enter__()
    with run_of(mq, topic, where, place) as run:
        assert run.round().messages == 65


class Died(BaseException):
    """Nothing of a run may catch it."""


@pytest.mark.parametrize("committed", [False, True])
def test_what_a_killed_round_leaves_is_counted_once(
    mq: raftmq.Client, topic: str, where: StoreFolder, place: IcebergPlace, committed: bool
) -> None:
    class Dies(IcebergTarget):
        def commit(self, files: Any, reached: Any) -> int:
            if committed:
                super().commit(files, reached)
            raise Died

    with run_of(mq, topic, where, place, Dies) as run, suppress(Died):
        run.round()
    assert len(there(where)) == 2
    assert bool(named(where, place)) is committed
    with run_of(mq, topic, where, place) as run:
        assert run.round().messages == (0 if committed else 65)
    with run_of(mq, topic, where, place):
        assert there(where) == named(where, place)
    assert rows_in(where, place) == stored(mq, topic)


class BeforeListing(StoreFolder):
    """A place at which something happens just before its files are listed."""

    happens: ClassVar[list[Callable[[], None]]] = []

    def files(self, prefix: str) -> Iterator[list[str]]:
        while self.happens:
            self.happens.pop()()
        yield from super().files(prefix)


def test_a_file_for_a_commit_on_a_newer_snapshot_stays(
    mq: raftmq.Client, topic: str, where: StoreFolder, tmp_path: Path
) -> None:
    """A run whose lease has ended removes strays. Meanwhile the run that has taken over commits, and writes a file for
    its next commit."""
    place, written = sql_in(tmp_path), list[str]()
    late = KeptIceberg(BeforeListing(where.url), OPTIONS, place, keeper=Alone(where))
    client = cloud_client(where.url, TierSection(), 0)

    def write(snapshot: int) -> str:
        obstore.put(client, f"day=2026-01-01/run-at{snapshot}-x.parquet", b"rows")
        return f"run-at{snapshot}-x.parquet"

    def go_on() -> None:
        with run_of(mq, topic, where, place) as run:
            assert run.round().messages == 65
        written.append(write(opened(where, place).metadata.current_snapshot_id or 0))

    with late:
        old = write(0)
        BeforeListing.happens.append(go_on)
        late.remove_strays()
    assert there(where) == {*named(where, place), *written}, f"{old} can be in no commit any more"


def test_two_runs_at_once_bring_nothing_twice(
    mq: raftmq.Client, topic: str, where: StoreFolder, place: IcebergPlace
) -> None:
    """As if there were no lease: it may be that two believe that they have it."""
    options = OPTIONS._replace(iceberg=place, round_messages=7)
    first, second = (TableRun(mq, [topic], where, options, keeper=Alone(where)) for _ in range(2))
    with first, second, ThreadPoolExecutor(2) as pool:
        running = [pool.submit(rounds_of, run) for run in (first, second)]
        assert sum(each.result(at_most(120)) for each in running) == 65
    assert rows_in(where, place) == stored(mq, topic)
    with run_of(mq, topic, where, place):
        assert there(where) == known(where, place)


class Alone(StoreKeeper):
    """Takes no lease."""

    def take(self) -> None:
        self._thread.__enter__()


def rounds_of(run: TableRun) -> int:
    """Makes rounds until there is nothing left; returns the messages."""
    brought = 0
    while (done := run.round()).left or done.messages:
        brought += done.messages
    return brought


def test_lost_answers_bring_nothing_twice(
    mq: raftmq.Client, topic: str, where: StoreFolder, proxy: StoreProxy, rest: RestCatalogServer
) -> None:
    """Of the store and of the catalog, with columns that come, and small files that are merged."""
    chance, place = random.Random(seed := random.randrange(1 << 32)), rest.place
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    faults: list[str | int] = ["", "", "", LOST_BEFORE, LOST_AFTER, LATER, *CODES]
    failures = (CatalogError, StoreFailed, OSError, LostRace)
    with run_of(mq, topic, where, place, more=MoreColumns(json=True, grows=True)) as run:
        proxy.order(f"lose 0.1 {seed}")
        for number in range(10):
            mq.send_batch(topic, [json.dumps({f"f{number // 4}": 1}).encode()] * chance.randrange(1, 5), queue_id=0)
            rest.faults[:] = chance.choices(faults, k=3)
            with suppress(*failures):
                run.round()
            if number in (5, 8):
                with suppress(*failures):
                    compact_iceberg(where, place, keep_hours=0)
            while rest.held and chance.random() < 0.5:
                with suppress(CommitFailedException):
                    rest.held.pop(chance.randrange(len(rest.held)))()
        rest.faults.clear()
        proxy.order("pass")
        while run.round().version is not None:
            pass
        mq.send(topic, b"the last one")
        assert run.round().messages == 1
    assert rows_in(where, place) == stored(mq, topic)
    with run_of(mq, topic, where, place, more=MoreColumns(json=True, grows=True)):
        assert there(where) == known(where, place)


def test_small_files_become_one_and_the_others_go(
    mq: raftmq.Client, topic: str, where: StoreFolder, place: IcebergPlace
) -> None:
    with run_of(mq, topic, where, place) as run:
        for _ in range(4):
            assert run.round().version is not None
            send(mq, topic, 1, 1)
        assert compact_iceberg(where, place, 0)[:2] == (8, 1)
        assert run.round().messages == 2, "and the offsets are those of before"
    assert compact_iceberg(where, place, 0)[:2] == (3, 1)
    assert rows_in(where, place) == stored(mq, topic)
    assert there(where) == known(where, place)


def command(mq: raftmq.Client, *words: str) -> Result:
    return CliRunner().invoke(cli, ["table", *words, "--servers", ";".join(mq.servers)], catch_exceptions=True)


def test_the_commands(mq: raftmq.Client, topic: str, where: StoreFolder, tmp_path: Path) -> None:
    uri = f"uri=sqlite:///{tmp_path / 'catalog.db'}"
    catalog = ["--catalog-property", "type=sql", "--catalog-property", uri]
    ran = command(mq, "run", topic, "--to", where.url, "--once", "--format", "iceberg", *catalog, "--json")
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout.splitlines()[0])["messages"] == 65
    shown = command(mq, "status", where.url, "--json", *catalog)
    assert (shown.exit_code, json.loads(shown.stdout)["rows"]) == (0, 65)
    compacted = CliRunner().invoke(cli, ["table", "compact", where.url, *catalog])
    assert compacted.stdout == "2 small files became 1; deleted: 0 files\n", compacted.output
    assert rows_in(where, sql_in(tmp_path)) == stored(mq, topic)


def test_a_delta_table_there_is_no_iceberg_table(
    mq: raftmq.Client, topic: str, where: StoreFolder, tmp_path: Path
) -> None:
    with TableRun(mq, [topic], where, OPTIONS._replace(iceberg=None)) as run:
        assert run.round().messages == 65
    with pytest.raises(TableError, match="has files, and the catalog has no table"):
        run_of(mq, topic, where, sql_in(tmp_path)).__enter__()
    assert there(where), "its files stay"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [pytest.param(3, marks=pytest.mark.ci), pytest.param(20, marks=pytest.mark.slow)])
def test_kills_and_lost_answers_cost_no_row(
    mq: raftmq.Client, topic: str, where: StoreFolder, proxy: StoreProxy, tmp_path: Path, kills: int
) -> None:
    """kill -9 of the process at random moments, with messages coming in, small files being merged, and answers of the
    store lost after it has carried out what it was asked."""
    chance, place = random.Random(seed := random.randrange(1 << 32)), sql_in(tmp_path)
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    words = [sys.executable, "-m", "raftmq", "table", "run", topic, "--to", where.url, "--format", "iceberg"]
    words += [word for each in place.properties.items() for word in ("--catalog-property", "=".join(each))]
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
    for _ in range(2):
        subprocess.run([*words, "--once"], check=True, stdout=subprocess.DEVNULL, timeout=at_most(120))
        send(mq, topic, 1)
    subprocess.run([*words, "--once"], check=True, stdout=subprocess.DEVNULL, timeout=at_most(120))
    assert rows_in(where, place) == stored(mq, topic)
    assert {name for name in there(where) - known(where, place) if name.startswith("run-")} == set()

"""An Iceberg table that follows topics: each message once, whoever dies, writes beside it, or sets it back."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException

import raftmq
from raftmq.arrow.columns import DEFAULT_COLUMNS
from raftmq.tables.errors import CatalogError, LostRace, TableError
from raftmq.tables.iceberg_catalog import load
from raftmq.tables.iceberg_place import IcebergPlace
from raftmq.tables.iceberg_table import IcebergTarget, OneCommit
from raftmq.tables.iceberg_upkeep import compact_iceberg
from raftmq.tables.kept_iceberg import KeptIceberg
from raftmq.tables.kept_table import Round
from raftmq.tables.table_rows import MoreColumns
from raftmq.tables.table_run import TableRun
from tests.support.followed_topics import send, stored
from tests.support.iceberg_rest import CODES, LATER, LOST_AFTER, LOST_BEFORE, RestCatalogServer
from tests.support.iceberg_rows import OPTIONS, named, rows_in, run_of, visible
from tests.support.pace import at_most

pytestmark = pytest.mark.live


def test_rounds_go_on_where_the_table_ends(mq: raftmq.Client, topic: str, tmp_path: Path, place: IcebergPlace) -> None:
    folder = tmp_path / "a table"
    with run_of(mq, topic, folder, place, round_messages=30) as run:
        done = [run.round() for _ in range(4)]
        assert [(each.messages, each.left) for each in done] == [(29, 36), (29, 7), (7, 0), (0, 0)]
        assert [each.version for each in done] == [1, 2, 3, None]
        send(mq, topic, 0, 3)
        assert run.round().messages == 3
    assert rows_in(folder, place) == stored(mq, topic)
    assert visible(folder) == named(folder, place)


def test_a_table_has_one_run_at_a_time(mq: raftmq.Client, topic: str, tmp_path: Path) -> None:
    second = run_of(mq, topic, tmp_path)
    with run_of(mq, topic, tmp_path), pytest.raises(TableError, match="another run keeps the table"):
        second.__enter__()
    with run_of(mq, topic, tmp_path) as run:
        assert run.round().messages == 65


def test_no_delta_table_is_made_among_its_files(mq: raftmq.Client, topic: str, tmp_path: Path) -> None:
    with run_of(mq, topic, tmp_path) as run:
        assert run.round().messages == 65
    with pytest.raises(TableError, match="has an Iceberg table") as refused:
        TableRun(mq, [topic], tmp_path, OPTIONS._replace(iceberg=None)).__enter__()
    assert "--format iceberg" in refused.value.fix
    assert not (tmp_path / "_delta_log").exists()


class Died(BaseException):
    """Nothing of a run may catch it."""


@pytest.mark.parametrize("committed", [False, True])
def test_what_a_killed_round_leaves_is_counted_once(
    mq: raftmq.Client, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """A commit that is not known to have happened, too: its files stay while it may still happen."""
    sent = OneCommit.send

    def die(self: OneCommit, snapshot_id: int) -> None:
        if committed:
            sent(self, snapshot_id)
        raise Died

    with run_of(mq, topic, tmp_path) as run:
        monkeypatch.setattr(OneCommit, "send", die)
        with suppress(Died):
            run.round()
    monkeypatch.undo()
    assert len(visible(tmp_path)) == 2
    assert bool(named(tmp_path)) is committed
    with run_of(mq, topic, tmp_path) as run:
        assert len(visible(tmp_path)) == 2
        assert run.round().messages == (0 if committed else 65)
    with run_of(mq, topic, tmp_path):
        assert visible(tmp_path) == named(tmp_path)
    assert rows_in(tmp_path) == stored(mq, topic)


def test_of_two_writers_of_the_same_messages_one_commits(
    mq: raftmq.Client, topic: str, tmp_path: Path, place: IcebergPlace
) -> None:
    """Another writer reaches the same messages between the plan of a round and its commit. pyiceberg itself would add
    them once more, on top of its snapshot."""
    folder = tmp_path / "t"

    class Overtaken(IcebergTarget):
        def commit(self, files: Any, reached: Any) -> int:
            same = [file._replace(path=file.path.replace("/run-", "/run-other-")) for file in files]
            for mine, copied in zip(files, same, strict=True):
                (folder / copied.path).write_bytes((folder / mine.path).read_bytes())
            with load(place, folder) as catalog:
                IcebergTarget(catalog, place, folder, DEFAULT_COLUMNS).commit(same, reached)
            return super().commit(files, reached)

    with run_of(mq, topic, folder, place, Overtaken) as run:
        assert run.round()[:4] == (0, 0, 0, None)
        assert run.round() == Round()
        assert visible(folder) == named(folder, place)
    assert rows_in(folder, place) == stored(mq, topic)


# --- answers that are lost --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [LOST_BEFORE, LOST_AFTER, *CODES])
def test_a_commit_whose_answer_is_lost_is_counted_once(
    mq: raftmq.Client, topic: str, tmp_path: Path, rest: RestCatalogServer, fault: str | int
) -> None:
    """If the catalog carried it out, the table says so at once, whatever the answer was."""
    folder = tmp_path / "t"
    with run_of(mq, topic, folder, rest.place) as run:
        rest.faults.append(fault)
        if fault == LOST_BEFORE:
            with pytest.raises(CatalogError, match="it is not known whether the catalog has changed"):
                run.round()
        else:
            assert run.round().messages == 65
        assert len(visible(folder)) == 2, "while the commit may still happen"
        send(mq, topic, 5)
        assert run.round().messages == (70 if fault == LOST_BEFORE else 5)
    with run_of(mq, topic, folder, rest.place) as run:
        assert run.round() == Round()
        assert visible(folder) == named(folder, rest.place)
    assert rows_in(folder, rest.place) == stored(mq, topic)


@pytest.mark.parametrize("in_time", [True, False])
def test_a_commit_that_is_carried_out_later(
    mq: raftmq.Client, topic: str, tmp_path: Path, rest: RestCatalogServer, in_time: bool
) -> None:
    """Before the next round: the table has its messages, and its files. After it: the catalog refuses it."""
    folder = tmp_path / "t"
    with run_of(mq, topic, folder, rest.place) as run:
        rest.faults.append(LATER)
        with pytest.raises(CatalogError, match="it is not known"):
            run.round()
    with run_of(mq, topic, folder, rest.place) as run:
        (later,) = rest.held
        if in_time:
            later()
        assert run.round().messages == (0 if in_time else 65)
        if not in_time:
            with pytest.raises(CommitFailedException):
                later()
    with run_of(mq, topic, folder, rest.place) as run:
        assert run.round() == Round()
        assert visible(folder) == named(folder, rest.place)
    assert rows_in(folder, rest.place) == stored(mq, topic)


@pytest.mark.parametrize("rounds", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_answers_that_are_lost_at_random_cost_no_row(
    mq: raftmq.Client, topic: str, tmp_path: Path, rest: RestCatalogServer, rounds: int
) -> None:
    """With columns that come, and small files that are merged."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    chance, folder = random.Random(seed), tmp_path / "t"
    faults: list[str | int] = ["", "", LOST_BEFORE, LOST_AFTER, LATER, *CODES]
    with run_of(mq, topic, folder, rest.place, more=MoreColumns(json=True, grows=True)) as run:
        for _ in range(rounds):
            field = chance.choice("abcdef")
            mq.send_batch(topic, [f'{{"{field}": 1}}'.encode()] * chance.randint(1, 5), queue_id=chance.randrange(2))
            rest.faults[:] = chance.choices(faults, k=3)
            with suppress(CatalogError):
                run.round()
            with suppress(CatalogError, LostRace):
                compact_iceberg(folder, rest.place, keep_hours=0)
            while rest.held and chance.random() < 0.5:
                with suppress(CommitFailedException):
                    rest.held.pop(chance.randrange(len(rest.held)))()
            if chance.random() < 0.2:
                with suppress(CatalogError):
                    KeptIceberg(folder, OPTIONS, rest.place).remove_strays()
        rest.faults.clear()
        while run.round().version is not None:
            pass
    assert rows_in(folder, rest.place) == stored(mq, topic)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [pytest.param(4, marks=pytest.mark.ci), pytest.param(20, marks=pytest.mark.slow)])
def test_kills_cost_no_row(mq: raftmq.Client, topic: str, tmp_path: Path, kills: int) -> None:
    """kill -9 of the process at random moments, with messages coming in and small files being merged."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    chance, folder = random.Random(seed), tmp_path / "t"
    words = [sys.executable, "-m", "raftmq", "table", "run", topic, "--to", str(folder), "--format", "iceberg"]
    words += ["--servers", ";".join(mq.servers)]
    for number in range(kills):
        log = tmp_path / f"log{number}"
        with log.open("w") as out:
            running = subprocess.Popen([*words, "--every", "1s", "--compact-at", "4"], stdout=out, stderr=out)
        until(lambda log=log, run=running: "version" in log.read_text() or run.poll() is not None)  # type: ignore[misc]
        until_s = time.monotonic() + chance.uniform(0, 2)
        while time.monotonic() < until_s:
            send(mq, topic, chance.randrange(20), chance.randrange(20))
            time.sleep(0.05)
        assert running.poll() is None, log.read_text()
        running.kill()
        running.wait()
        send(mq, topic, 1)
    subprocess.run([*words, "--once"], check=True, stdout=subprocess.DEVNULL)
    assert rows_in(folder) == stored(mq, topic)
    assert named(folder) <= visible(folder)


def until(holds: Callable[[], object]) -> None:
    end_s = time.monotonic() + at_most(60)
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.05)

"""The catalogs of Iceberg tables: wrong ones, silent ones, and how a command names one."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyiceberg.catalog.sql import SqlCatalog

import raftmq
from raftmq.cli import cli
from raftmq.commands.data.table_steps import passing
from raftmq.local.process import free_base_port
from raftmq.tables.errors import CatalogError
from raftmq.tables.iceberg_catalog import load
from raftmq.tables.iceberg_place import IcebergPlace
from tests.support.iceberg_rest import LOST_BEFORE, RestCatalogServer
from tests.support.iceberg_rows import run_of

pytestmark = pytest.mark.live


def test_a_catalog_that_is_not_there_is_named(mq: raftmq.Client, topic: str, tmp_path: Path) -> None:
    nowhere = f"uri=http://127.0.0.1:{free_base_port(1)}"
    ran = command(mq, "run", topic, "--to", str(tmp_path / "t"), "--format", "iceberg", "--catalog-property", nowhere)
    assert ran.exit_code == 4
    assert "the catalog raftmq does not answer as it should" in ran.output
    unknown = command(mq, "run", topic, "--to", str(tmp_path / "t"), "--format", "iceberg", "--catalog", "lake")
    assert (unknown.exit_code, "there is no catalog lake" in unknown.output) == (2, True)
    assert command(mq, "status", str(tmp_path / "t"), "--catalog-property", nowhere).exit_code == 4
    assert command(mq, "compact", str(tmp_path / "t"), "--catalog-property", nowhere).exit_code == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--catalog", "lake"], "a Delta table has no catalog"),
        (["--format", "iceberg", "--catalog-property", "uri"], "--catalog-property uri has no value"),
        (["--format", "iceberg", "--table", "sales"], "--table sales names no namespace"),
    ],
)
def test_options_that_do_not_fit(mq: raftmq.Client, topic: str, tmp_path: Path, words: list[str], said: str) -> None:
    ran = command(mq, "run", topic, "--to", str(tmp_path), *words)
    assert (ran.exit_code, said in ran.output) == (2, True), ran.output


@pytest.mark.parametrize(
    ("words", "place", "said", "do"),
    [
        (["run", "orders", "--format", "iceberg", "--to"], "s3://bucket/lake", "needs a catalog", "--catalog lake"),
        (
            ["run", "orders", "--format", "iceberg", "--catalog", "lake", "--to"],
            "gs://bucket/lake",
            "there can be no",
            "",
        ),
        (["status", "--catalog", "lake"], "az://bucket/lake", "there can be no", "with another place"),
        (["compact", "--table", "a.b"], "s3://bucket/lake", "needs a catalog", "--catalog-property uri="),
    ],
)
def test_a_place_that_cannot_have_an_iceberg_table_is_refused(
    mq: raftmq.Client, words: list[str], place: str, said: str, do: str
) -> None:
    """Before anything is asked of a cluster, a catalog or a store."""
    ran = command(mq, *words, place)
    assert ran.exit_code == 2, ran.output
    assert said in ran.output
    assert do in ran.output


def test_a_catalog_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(CatalogError, match="Read timed out"):
            load(IcebergPlace(properties={"uri": uri, "raftmq.timeout-s": "0.2"}), tmp_path)


def test_a_round_while_the_catalog_is_away_is_told_and_made_again(
    mq: raftmq.Client, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "t"
    server = RestCatalogServer(tmp_path / "rest")
    with server.running():
        run = run_of(mq, topic, folder, server.place).__enter__()
    with passing(folder, again=True):
        run.round()
    assert "stays as it is: the catalog raftmq does not answer as it should" in capsys.readouterr().err
    with server.again().running() as second:
        second.faults.append(LOST_BEFORE)
        with passing(folder, again=True):
            run.round()
        assert capsys.readouterr().err.startswith("it is not known whether the catalog has changed")
        assert run.round().messages == 65
        run.__exit__()


def command(mq: raftmq.Client, *words: str) -> Result:
    servers = [] if words[0] == "compact" else ["--servers", ";".join(mq.servers)]
    return CliRunner().invoke(cli, ["table", *words, *servers], catch_exceptions=True)


def test_the_commands(mq: raftmq.Client, topic: str, tmp_path: Path, place: IcebergPlace) -> None:
    folder = str(tmp_path / "t")
    where = [word for each in place.properties.items() for word in ("--catalog-property", "=".join(each))]
    options = ["--to", folder, "--format", "iceberg", *where, "--once", "--group", "lake", "--json"]
    ran = command(mq, "run", topic, *options)
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout.splitlines()[0])["messages"] == 65
    assert [mq.admin.committed("lake", topic, queue) for queue in (0, 1)] == [40, 25]
    shown = command(mq, "status", folder, *where, "--json")
    assert (shown.exit_code, json.loads(shown.stdout)["rows"]) == (0, 65)
    compacted = command(mq, "compact", folder, *where)
    assert compacted.stdout == "2 small files became 1; deleted: 0 files\n"
    mq.admin.delete_topic(topic)
    mq.admin.create_topic(topic, 2)
    assert command(mq, "status", folder, *where).exit_code == 1


def test_a_catalog_of_the_configuration(
    mq: raftmq.Client, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One catalog, two tables, as pyiceberg's own file names it."""
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    uri = f"sqlite:///{tmp_path / 'lake.db'}"
    (tmp_path / ".pyiceberg.yaml").write_text(f"catalog:\n  lake:\n    type: sql\n    uri: {uri}\n")
    for number, words in enumerate(([], ["--table", "sales.orders"])):
        place = ["--format", "iceberg", "--catalog", "lake", *words]
        ran = command(mq, "run", topic, "--to", str(tmp_path / f"t{number}"), *place, "--once")
        assert ran.exit_code == 0, ran.output
    with SqlCatalog("lake", uri=uri) as catalog:
        tables = [catalog.load_table(name) for name in ("raftmq.t0", "sales.orders")]
    assert [table.scan().count() for table in tables] == [65, 65]

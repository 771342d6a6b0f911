"""`read_arrow` reads copies of the log without a cluster: the tables are those that the nodes gave."""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import raftmq
from raftmq.arrow import tables
from raftmq.arrow.columns import COLUMNS, DEFAULT_COLUMNS, arrow_schema
from raftmq_wire.errors import LocalError
from tests.support.left_copies import ORDERS, OTHER, Left
from tests.support.pace import at_most
from tests.support.rows import each_row

pytestmark = pytest.mark.live


@pytest.mark.parametrize("kind", ["backup", "directory", "tier"])
def test_the_tables_are_those_of_the_nodes(left: Left, kind: str) -> None:
    source = getattr(left, kind)
    for topic, wanted in left.tables.items():
        read = raftmq.read_arrow(topic, read_from=source.kind, path=source.path, columns=tuple(COLUMNS))
        assert read.equals(wanted)
    few = raftmq.read_arrow(ORDERS, read_from=source.kind, path=Path(source.path) if kind != "tier" else source.path)
    assert few.schema == arrow_schema(DEFAULT_COLUMNS)
    assert few.column("body").equals(left.tables[ORDERS].column("body"))
    assert raftmq.read_arrow(OTHER, read_from=source.kind, path=source.path, columns=["tag"]).num_rows == 9


def test_ranges_and_times(left: Left) -> None:
    def read(start: object, end: object = "latest") -> pa.Table:
        given = {"read_from": "tier", "path": left.tier.path, "columns": ["queue_offset", "queue_id", "store_ms"]}
        return raftmq.read_arrow(ORDERS, start, end, **given)  # type: ignore[arg-type] # as a user writes it

    assert read({0: 3, 1: "latest"}, {0: 5}).to_pydict()["queue_offset"] == [3, 4]
    middle = datetime.datetime.fromtimestamp(left.middle_ms / 1000, datetime.UTC)
    whole = left.tables[ORDERS].select(["queue_offset", "queue_id", "store_ms"])
    assert read(middle).equals(whole.filter(pc.greater_equal(whole["store_ms"], left.middle_ms)))
    assert read("latest").num_rows == 0


@each_row(
    ("arguments", "error", "said"),
    [
        ({"read_from": "tier"}, ValueError, "needs path: the URL of the store"),
        ({"read_from": "files"}, ValueError, "needs path: the folder of a backup"),
        ({"read_from": "files", "path": "/x", "cluster": "u"}, ValueError, 'cluster is for read_from="tier"'),
        ({"read_from": "files", "path": "s3://b/x"}, LocalError, "path is a path on this machine"),
        ({"read_from": "tier", "path": "s3://b", "servers": "h:1"}, ValueError, "servers was given"),
        ({"read_from": "files", "path": "/nowhere", "access_key": "ann"}, ValueError, "access_key was given"),
        ({"read_from": "files", "path": "/nowhere", "secret_key": "s"}, ValueError, "secret_key was given"),
        ({"read_from": "files", "path": "/nowhere", "tls": False}, ValueError, "tls was given"),
        ({"read_from": "follower", "path": "/x"}, ValueError, "path and cluster are for"),
        ({"read_from": "file", "path": "/x"}, ValueError, "path and cluster are for"),
        ({"read_from": "files", "path": "/nowhere"}, raftmq.Failed, "is no copy of a log"),
    ],
)
def test_arguments_that_do_not_go_together(arguments: dict[str, str], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        raftmq.read_arrow("t", **arguments)  # type: ignore[arg-type] # what a user may write


def test_a_damaged_copy_is_named(left: Left, tmp_path: Path) -> None:
    from shutil import copytree

    copytree(left.backup.path, tmp_path / "copy")
    segment = min((tmp_path / "copy" / "log").iterdir())
    segment.chmod(0o600)
    data = segment.read_bytes()
    at = data.index(b"x" * 100) + 50
    segment.write_bytes(data[:at] + b"y" + data[at + 1 :])
    with pytest.raises(raftmq.Failed, match=f"{segment.name} is damaged at position"):
        raftmq.read_arrow(OTHER, read_from="files", path=tmp_path / "copy")


def test_a_client_without_the_server_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(wanted: str) -> None:
        raise LocalError(f"{wanted} needs the formats of the server", "not installed", "pip install 'raftmq[server]'")

    monkeypatch.setattr(tables, "use_formats", missing)
    with pytest.raises(LocalError, match="read_from='files' needs the formats of the server"):
        raftmq.read_arrow("t", read_from="files", path="/x")


def test_no_read_imports_pandas(left: Left) -> None:
    """pyarrow does, in many of its conversions, where it is installed."""
    pytest.importorskip("pandas")
    code = (
        "import sys, raftmq\n"
        f"table = raftmq.read_arrow({ORDERS!r}, read_from='files', path={left.backup.path!r})\n"
        "assert table.num_rows == 540, table.num_rows\n"
        "assert 'pandas' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=at_most(60), check=False
    )
    assert done.returncode == 0, done.stderr

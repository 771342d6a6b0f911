"""`raftmq` is the client under the name that users import, and nothing more."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import raftmq
import raftmq.arrow.tables
import raftmq.client
from tests.support.pace import at_most

ROOT = Path(__file__).parents[2]


def test_it_exports_what_the_client_exports_and_the_tables() -> None:
    tables = {"read_arrow", "read_pandas"}
    assert sorted(raftmq.__all__) == sorted({*raftmq.client.__all__, *tables})
    assert all(getattr(raftmq, name) is getattr(raftmq.client, name) for name in raftmq.client.__all__)
    assert all(getattr(raftmq, name) is getattr(raftmq.arrow.tables, name) for name in tables)


def test_every_error_is_a_raftmq_error() -> None:
    for error in (raftmq.Failed, raftmq.Unknown, raftmq.Refused, raftmq.NotFound):
        assert issubclass(error, raftmq.RaftMQError)


def test_a_name_that_it_does_not_export_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'raftmq' has no attribute 'conect'"):
        _ = raftmq.conect  # type: ignore[attr-defined]
    assert dir(raftmq) == sorted(raftmq.__all__)


def test_it_holds_no_logic() -> None:
    """The only statements that act add the server's rooms to the path, and find a name in the client when asked."""
    body = ast.parse((ROOT / "raftmq" / "__init__.py").read_text()).body
    doing = [node for node in body[1:] if not isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node).partition("(")[0].partition(" =")[0].partition(":")[0] for node in doing] == [
        "__path__ += rooms",
        "if TYPE_CHECKING",
        "__all__",
        "if not TYPE_CHECKING",
    ]


def test_importing_it_loads_no_server() -> None:
    """A program that only sends messages does not pay for RocksDB or the HTTP API."""
    code = "import sys, raftmq; raftmq.connect; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True, timeout=at_most(60)
    )
    assert {"rocksdict", "aiohttp", "raftlog.core.raft", "click"} & set(loaded.stdout.split()) == set()


def test_it_says_its_version() -> None:
    assert raftmq.__version__ == version("raftmq")

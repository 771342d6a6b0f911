"""`raftmq` is the client under the name that users import, and nothing more."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import cluster.client
import raftmq

ROOT = Path(__file__).parents[2]


def test_it_exports_what_the_client_exports() -> None:
    assert sorted(raftmq.__all__) == sorted(cluster.client.__all__)
    assert all(getattr(raftmq, name) is getattr(cluster.client, name) for name in raftmq.__all__)


def test_every_error_is_a_raftmq_error() -> None:
    for error in (raftmq.Failed, raftmq.Unknown, raftmq.Refused, raftmq.NotFound):
        assert issubclass(error, raftmq.RaftMQError)


def test_it_holds_no_logic() -> None:
    """The only statement that does something is the check."""
    body = ast.parse((ROOT / "raftmq" / "__init__.py").read_text()).body
    doing = [node for node in body[1:] if not isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node).partition("(")[0].partition(" =")[0] for node in doing] == [
        "check_own_packages",
        "__all__",
    ]


def test_importing_it_loads_no_server() -> None:
    """A program that only sends messages does not pay for RocksDB or the HTTP API."""
    code = "import sys, raftmq; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60
    )
    assert {"rocksdict", "aiohttp", "raftlog.core.raft", "click"} & set(loaded.stdout.split()) == set()

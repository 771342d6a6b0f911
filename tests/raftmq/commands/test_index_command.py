"""`raftmq index` reads files that lie anywhere: what they say, and the exit code for each damage."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest
from click.testing import CliRunner, Result

from raftmq.cli import cli
from statemachine.index_file.index_format import IndexMeta, key_row, pack_keys
from statemachine.index_file.index_writer import IndexWriter
from statemachine.message_index import key_hash
from statemachine.payload import ITEM


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """One message at position 1100 with a key, in a segment from 1000 to 2000."""
    path = tmp_path / "x.idx"
    with path.open("wb") as out:
        writer = IndexWriter(out.write)
        writer.add_queue(7, 1, 40, [ITEM.pack(1100, 100, 1, 0, 50)])
        writer.add_keys(pack_keys([key_row(key_hash(7, b"order-1"), 100)]))
        writer.finish(IndexMeta(UUID(int=3), 1000, 2000, 5, 9, 2, 50, 60, 0, 0, 0, 1, 0))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["index", *map(str, arguments)])


def test_an_intact_file(file: Path) -> None:
    shown = run("check", file)
    assert shown.exit_code == 0
    assert "1 message in 1 queue, 1 key" in shown.output
    told = json.loads(run("check", file, "--json").output)
    assert (told["intact"], told["base"], told["last_index"], told["cluster_id"]) == (True, 1000, 9, str(UUID(int=3)))


def test_a_key(file: Path) -> None:
    found = run("find", file, "--topic-id", 7, "--key", "order-1")
    assert (found.exit_code, found.output) == (0, "1100\n")
    assert run("find", file, "--topic-id", 8, "--key", "order-1").exit_code == 1
    assert json.loads(run("find", file, "--topic-id", 7, "--key", "x", "--json").output)["positions"] == []


def test_a_damaged_file(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-60] ^= 1
    file.write_bytes(data)
    shown = run("check", file)
    assert shown.exit_code == 1
    assert "DAMAGED" in shown.output
    assert json.loads(run("check", file, "--json").output)["intact"] is False
    found = run("find", file, "--topic-id", 7, "--key", "order-1")
    assert found.exit_code == 3


@pytest.mark.parametrize("data", [b"", b"x" * 5000])
def test_another_file(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(data)
    assert run("check", path).exit_code == 1

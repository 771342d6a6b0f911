"""A stopped node's directory, as a release recorded it, with its state brought up to the end of its log."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cluster.backup.create import BackupOrder, create
from raftlog.frame import make_entry, tail_after
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.node_dir import open_node_dir
from raftlog.types import EntryType
from statemachine.broker_state import BrokerState
from statemachine.rows.rocksdb_store import RocksKV
from tests.support.archives import extract

RECORDED = Path(__file__).parents[2] / "data" / "format-10.tar.xz"


class Stopped(NamedTuple):
    """A node's directory that nobody has open."""

    data: Path
    checkpoint: Path
    expected: dict[str, Any]

    def request(self, to: Path, made_ms: int = 1_700_000_000_000, **changes: Any) -> BackupOrder:
        facts = {"cluster_name": "DefaultCluster", "broker_name": "raftmq", **changes}
        return BackupOrder(data=str(self.data), checkpoint=str(self.checkpoint), to=str(to), made_ms=made_ms, **facts)

    def grow(self, number: int, size: int = 1000) -> Path:
        """Appends and applies entries that change no row but the mark; returns a new checkpoint."""
        opened = open_node_dir(OsFileSystem(), self.data)
        kv = RocksKV(str(self.data / "state"))
        state, log = BrokerState(kv), opened.log
        entries, tail = [], log.tail
        for _ in range(number):
            entry = make_entry(
                tail,
                term=tail.term,
                entry_type=EntryType.NOOP,
                payload=bytes(size),
                timestamp_ms=0,
                group_id=log.genesis.group_id,
                segment_size=log.segment_size,
            )
            entries.append(entry)
            tail = tail_after(tail, entry)
        log.append(entries)
        state.apply(log.read_entries(state.applied.index + 1, log.tail.index + 1, 1 << 30))
        checkpoint = self.data / "checkpoints" / f"made-{log.tail.index}"
        checkpoint.parent.mkdir(exist_ok=True)
        kv.checkpoint(str(checkpoint))
        kv.close()
        opened.close(clean=True)
        return checkpoint


@pytest.fixture(scope="session")
def unpack() -> Callable[[Path], dict[str, Any]]:
    """unpack(folder) -> what the recording release says is in folder/clean and folder/killed."""

    def unpacked(folder: Path) -> dict[str, Any]:
        extract(RECORDED, folder)
        told: dict[str, Any] = json.loads((folder / "expected.json").read_text())
        return told

    return unpacked


@pytest.fixture(scope="session")
def _stopped(tmp_path_factory: pytest.TempPathFactory, unpack: Callable[[Path], dict[str, Any]]) -> Stopped:
    folder = tmp_path_factory.mktemp("node")
    expected = unpack(folder)
    node = Stopped(folder / "killed", Path(), expected["killed"])
    return node._replace(checkpoint=node.grow(0))


@pytest.fixture
def stopped(tmp_path: Path, _stopped: Stopped) -> Stopped:
    """A copy of its own for each test."""
    data = Path(shutil.copytree(_stopped.data, tmp_path / "node"))
    return _stopped._replace(data=data, checkpoint=data / _stopped.checkpoint.relative_to(_stopped.data))


@pytest.fixture(scope="session")
def _backup(tmp_path_factory: pytest.TempPathFactory, _stopped: Stopped) -> Path:
    return Path(create(_stopped.request(tmp_path_factory.mktemp("backups") / "to", copy_all=True)).path)


@pytest.fixture
def backup(tmp_path: Path, _backup: Path) -> Path:
    """A backup of that node, a copy of its own for each test."""
    return Path(shutil.copytree(_backup, tmp_path / "to" / _backup.name))

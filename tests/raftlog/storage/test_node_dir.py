"""Directories that are not what the node thinks: each error says what, why, and what to type."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest
from google_crc32c import value as crc32c

from jepsen_like.fakes.memory_fs import MemoryFileSystem, PowerCut
from raftlog.errors import CorruptLogError, IdentityError, StorageError
from raftlog.frame import make_entry
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.files.hard_state import HardStateStore
from raftlog.storage.files.identity import Expected, Identity
from raftlog.storage.node_dir import create_node_dir, open_node_dir
from raftlog.types import EntryType, HardState, NodeId

CLUSTER = UUID(int=1)
OTHER = UUID(int=2)
UUID1 = UUID(int=11)
IDENTITY = Identity(CLUSTER, 7, NodeId(1), UUID1, 100)
GENESIS = Genesis(CLUSTER, 7, 4096, 100, (Voter(NodeId(1), UUID1), Voter(NodeId(2), UUID(int=12))))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    create_node_dir(OsFileSystem(), tmp_path / "n1", IDENTITY, GENESIS)
    return tmp_path / "n1"


def refused(path: Path, expected: Expected | None = None) -> str:
    """The message; three lines: what, why, what to type."""
    with pytest.raises(IdentityError) as caught:
        open_node_dir(OsFileSystem(), path, expected)
    message = str(caught.value)
    assert message.count("\n") == 2
    assert str(path) in message
    return message


def test_opens_what_it_created(directory: Path) -> None:
    node = open_node_dir(OsFileSystem(), directory, Expected(CLUSTER, 7, NodeId(1)))
    assert node.identity == IDENTITY
    assert node.log.genesis == GENESIS
    assert node.log.report.clean
    assert node.hard_state_store.load() == HardState(0, NodeId(0), 0)
    node.close(clean=True)
    again = open_node_dir(OsFileSystem(), directory)
    assert again.log.report.bytes_scanned == 0
    again.close(clean=False)


def test_another_cluster_node_or_group(directory: Path) -> None:
    assert f"belongs to cluster {CLUSTER}, not to cluster {OTHER}" in refused(directory, Expected(cluster_uuid=OTHER))
    assert "belongs to node 1, not to node 2" in refused(directory, Expected(node_id=NodeId(2)))
    assert "belongs to group 7, not to group 8" in refused(directory, Expected(group_id=8))
    open_node_dir(OsFileSystem(), directory).close(clean=True)  # a refusal leaves the lock free


def test_in_use_names_the_process(directory: Path) -> None:
    """The holder is another process: flock excludes across processes, and goes with its holder."""
    script = (
        "import sys; from pathlib import Path; from raftlog.storage.files.fs import OsFileSystem;"
        "from raftlog.storage.node_dir import open_node_dir;"
        "node = open_node_dir(OsFileSystem(), Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        assert f"in use by process {holder.pid}." in refused(directory)
        holder.kill()
        holder.wait()
    open_node_dir(OsFileSystem(), directory).close(clean=True)


def test_without_its_log_folder_a_node_says_so_in_three_lines(directory: Path, tmp_path: Path) -> None:
    (directory / "log").rename(tmp_path / "elsewhere")
    what, why, fix = refused(directory).split("\n")
    assert what == f"{directory} has no log folder: the log of this node is gone."
    assert "acknowledged" in why
    assert "raftmq node replace" in fix


def test_empty_missing_and_half_made(tmp_path: Path) -> None:
    assert "holds no node" in refused(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()
    (tmp_path / "empty").mkdir()
    assert "holds no node" in refused(tmp_path / "empty")
    assert "holds no node" in refused(tmp_path / "empty")  # although LOCK is there now
    half = tmp_path / "half"
    (half / "log").mkdir(parents=True)
    assert "raftmq node replace ID" in refused(half), "never empty under the same id"
    assert "only if no node of this cluster ever started: mv" in refused(half)
    with pytest.raises(IdentityError, match=r"not empty \(log\)"):
        create_node_dir(OsFileSystem(), half, IDENTITY, GENESIS)


def test_damaged_and_newer_identity(directory: Path) -> None:
    path = directory / "IDENTITY"
    good = path.read_bytes()
    path.write_bytes(good[:40] + b"\xff" + good[41:])
    assert "IDENTITY is damaged" in refused(directory)
    path.write_bytes(good[:10])
    assert "IDENTITY is damaged" in refused(directory)
    newer = good[8:9] + b"\x0b" + good[10:] + b"fields of a later day"
    path.write_bytes(good[:4] + crc32c(newer).to_bytes(4) + newer)
    assert "has format 11: a newer RaftMQ wrote it" in refused(directory)
    path.write_bytes(good)
    open_node_dir(OsFileSystem(), directory).close(clean=True)


def test_mixture_of_two_nodes(directory: Path, tmp_path: Path) -> None:
    other = tmp_path / "n9"
    create_node_dir(OsFileSystem(), other, IDENTITY._replace(cluster_uuid=OTHER), GENESIS._replace(cluster_uuid=OTHER))
    (other / "IDENTITY").replace(directory / "IDENTITY")
    assert "mixture of two nodes" in refused(directory)


def test_hard_state_older_than_the_log(directory: Path) -> None:
    node = open_node_dir(OsFileSystem(), directory)
    node.hard_state_store.save(HardState(3, NodeId(1), 0))
    tail = node.log.tail
    node.log.append(
        [
            make_entry(
                tail, term=3, entry_type=EntryType.NOOP, payload=b"", timestamp_ms=0, group_id=7, segment_size=4096
            )
        ]
    )
    node.close(clean=True)
    open_node_dir(OsFileSystem(), directory).close(clean=True)
    (directory / "hard_state").unlink()
    HardStateStore.create(OsFileSystem(), directory / "hard_state", 7).close()
    with pytest.raises(CorruptLogError, match="term 3, but the saved term is 0"):
        open_node_dir(OsFileSystem(), directory)


def test_stranger_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match="not a voter"):
        create_node_dir(OsFileSystem(), tmp_path / "x", IDENTITY._replace(node_uuid=OTHER), GENESIS)
    with pytest.raises(IdentityError, match="different clusters"):
        create_node_dir(OsFileSystem(), tmp_path / "x", IDENTITY._replace(cluster_uuid=OTHER), GENESIS)
    assert not (tmp_path / "x").exists()


def test_power_cut_while_creating_leaves_nothing_or_all() -> None:
    path = Path("/cluster/n1")
    fs = MemoryFileSystem()
    create_node_dir(fs, path, IDENTITY, GENESIS)
    for number in range(1, fs.calls + 1):
        fs = MemoryFileSystem()
        fs.cut_power_at(number)
        with pytest.raises(PowerCut):
            create_node_dir(fs, path, IDENTITY, GENESIS)
        fs.crash(number)
        if fs.exists(path / "IDENTITY"):
            assert open_node_dir(fs, path).log.genesis == GENESIS, number
        else:
            with pytest.raises(IdentityError, match=r"holds no node|interrupted"):
                open_node_dir(fs, path)


def test_a_disk_error_is_a_storage_error() -> None:
    path = Path("/cluster/n1")
    fs = MemoryFileSystem()
    create_node_dir(fs, path, IDENTITY, GENESIS)
    made = fs.calls
    open_node_dir(fs, path).close(clean=False)
    opening = fs.calls - made
    for number in range(1, opening + 1):
        fs.restart()
        fs.fail_call(fs.calls + number)
        with suppress(StorageError):
            open_node_dir(fs, path).close(clean=False)
        assert not fs.locks, "the lock is let go"

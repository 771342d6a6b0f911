"""What a build before 0.1.0 wrote is refused by name at its first bytes, and left as it is (tests/data/earlier)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from cluster.backup import metadata
from cluster.backup.from_tier import TierRestore, rebuild
from cluster.backup.remote import stored
from cluster.backup.replay import RestoreTarget
from cluster.backup.restore import restore
from cluster.backup.verify import verify
from cluster.config.local_layout import read_cluster
from cluster.peer import wire
from cluster.peer.connections import Inlet
from cluster.replication.acks import early_answer_file
from cluster.runtime.peer_frames import WireError
from cluster.state import manifest as checkpoint_manifest
from cluster.state import table_checksums
from cluster.state.fsck import Fsck
from cluster.tier.published_manifest import ManifestPublisher
from cluster.tier.store.directory_store import DirectoryStore
from cluster.tier.store.errors import OtherFormat
from raftlog.errors import CorruptLogError, FrameError, IdentityError
from raftlog.frame import decode_entries
from raftlog.storage.files import hard_state, install_file, log_first, run_file, vote_withheld
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.node_dir import open_node_dir
from raftlog.storage.segments import segment
from raftmq_wire.errors import LocalError
from statemachine.broker_state import BrokerState
from statemachine.checkpoint_reader import CheckpointReader
from statemachine.index_file.index_format import IndexFileError
from statemachine.index_file.index_reader import drive, open_index
from statemachine.rows.kv import KVError
from statemachine.rows.rocksdb_store import RocksKV
from tests.support.archives import extract
from tests.support.rows import each_row

RECORDED = Path(__file__).parents[2] / "data" / "earlier" / "builds.tar.xz"
GROUP = 1
EARLIER = r"a build before RaftMQ 0\.1\.0 wrote it"
NOW_MS = 1_800_000_000_000
FS = OsFileSystem()


@pytest.fixture(scope="session")
def _earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("earlier")
    extract(RECORDED, folder)
    return folder


@pytest.fixture
def earlier(_earlier: Path, tmp_path: Path) -> Path:
    """A copy of its own for each test."""
    return Path(shutil.copytree(_earlier, tmp_path / "earlier"))


def tree(folder: Path) -> dict[str, str]:
    """Every file, with a digest of its bytes."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_directory_is_refused_and_not_even_locked(earlier: Path) -> None:
    before = tree(earlier)
    with pytest.raises(IdentityError, match=rf"(?s){earlier}/node has format 1: {EARLIER}.*up --data DIR"):
        open_node_dir(FS, earlier / "node")
    assert tree(earlier) == before


def test_fsck_of_a_directory_says_so(earlier: Path) -> None:
    before = tree(earlier)
    with pytest.raises(IdentityError, match=EARLIER):
        Fsck(earlier / "node").run()
    assert tree(earlier) == before


def slot(path: Path) -> bytes:
    return path.read_bytes()[:64]


FILES: dict[str, Callable[[Path], object]] = {
    "hard_state": lambda at: hard_state.decode_slot(slot(at / "node" / "hard_state"), GROUP),
    "RUN": lambda at: run_file.decode_slot((at / "node" / "RUN").read_bytes()[4096:4608], GROUP),
    "segment": lambda at: segment.decode_header(
        (at / "node" / "log" / f"{0:020d}.seg").read_bytes()[:4096], at / "1.seg", GROUP
    ),
    "CHECKPOINT": lambda at: checkpoint_manifest.decode(
        next((at / "node" / "checkpoints").glob("*/CHECKPOINT")).read_bytes(), GROUP, at
    ),
    "TABLES": lambda at: table_checksums.load(FS, at / "node" / "state", GROUP),
    "VOTE_WITHHELD": lambda at: vote_withheld.decode((at / "small" / "VOTE_WITHHELD").read_bytes(), GROUP),
    "INSTALL": lambda at: install_file.decode((at / "small" / "INSTALL").read_bytes(), GROUP),
    "FIRST": lambda at: log_first.decode((at / "small" / "FIRST").read_bytes(), GROUP),
}


@each_row("name", FILES)
def test_a_file_that_was_put_into_another_directory_is_refused(name: str, earlier: Path) -> None:
    with pytest.raises(CorruptLogError, match=EARLIER):
        FILES[name](earlier)


def test_a_note_of_early_answers_and_a_sync_mark_count_as_none(earlier: Path) -> None:
    assert early_answer_file.decode((earlier / "small" / "EARLY").read_bytes()) is None
    page = (earlier / "node" / "log" / f"{0:020d}.seg").read_bytes()[:4096]
    assert segment.newest_mark(page) is None
    assert segment.decode_mark((earlier / "node" / "log" / "CLEAN").read_bytes()) is None


@pytest.mark.parametrize("path", ["node/GENESIS", "store/*/log/*"])
def test_frames_are_refused(path: str, earlier: Path) -> None:
    for file in earlier.glob(path):
        with pytest.raises(FrameError, match=EARLIER):
            next(decode_entries(file.read_bytes(), GROUP))


def test_a_state_is_refused_by_who_writes_it_and_by_who_reads_it(earlier: Path) -> None:
    kv = RocksKV(str(earlier / "node" / "state"))
    with pytest.raises(KVError, match=EARLIER):
        BrokerState(kv)
    kv.close()
    checkpoint = next((earlier / "node" / "checkpoints").iterdir())
    before = tree(checkpoint)
    with pytest.raises(KVError, match=EARLIER), CheckpointReader(checkpoint):
        pass
    assert tree(checkpoint) == before


@pytest.mark.parametrize(
    "read", [verify, lambda path: restore(path, path.parent / "new", count=3, base_port=21000, now_ms=NOW_MS)]
)
def test_a_backup_is_refused(read: Callable[[Path], object], earlier: Path) -> None:
    before = tree(earlier)
    with pytest.raises(LocalError, match=rf"(?s){earlier}/backup has format 1: {EARLIER}.*no release reads"):
        read(earlier / "backup")
    assert tree(earlier) == before
    assert not (earlier / "new").exists()


async def test_a_backup_in_a_store_is_named_as_unreadable(earlier: Path) -> None:
    store = DirectoryStore(earlier / "store")
    good, bad = await stored(store)
    await store.close()
    assert good == []
    assert EARLIER.replace("\\", "") in str(bad)


@pytest.mark.parametrize("left", ["everything", "no HEAD", "the log alone"])
def test_a_tier_is_refused(left: str, earlier: Path) -> None:
    root = earlier / "store"
    (folder,) = (path for path in root.iterdir() if path.is_dir() and path.name.count("-") == 4)
    if left != "everything":
        shutil.rmtree(folder / "manifest")
    if left == "the log alone":
        shutil.rmtree(folder / "state")
    before = tree(root)
    with pytest.raises(LocalError, match=EARLIER):
        rebuild(TierRestore(root.as_uri(), RestoreTarget(None, None)), earlier / "new", NOW_MS)
    assert tree(root) == before
    assert not (earlier / "new").exists()


async def test_nothing_is_published_over_a_manifest(earlier: Path) -> None:
    root = earlier / "store"
    (folder,) = (path.name for path in root.iterdir() if path.name.count("-") == 4)
    before = tree(root)
    store = DirectoryStore(root)
    with pytest.raises(OtherFormat, match=EARLIER):
        await ManifestPublisher(store, folder, str(UUID(folder))).publish([], 9, 99)
    await store.close()
    assert tree(root) == before


def test_an_index_file_is_refused(earlier: Path) -> None:
    (path,) = earlier.glob("store/*/index/*")
    data = path.read_bytes()
    with pytest.raises(IndexFileError, match=EARLIER):
        drive(open_index(len(data)), lambda at, length: data[at : at + length])


@pytest.mark.parametrize("name", ["hello", "hello-secret", "append", "snapshot"])
def test_frames_of_a_peer_are_refused(name: str, earlier: Path) -> None:
    data = (earlier / "peer" / name).read_bytes()
    with pytest.raises(WireError, match=r"^peer protocol 1, that of a build before RaftMQ 0\.1\.0"):
        wire.unpack(data, 4, len(data))


class Connection(asyncio.Transport):
    """A connection that somebody has opened to this node."""

    aborted = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.7", 10911) if name == "peername" else default

    def abort(self) -> None:
        self.aborted = True


class Owner:
    """The connections of this node. Nothing else of it is asked before a frame can be read."""

    def __init__(self) -> None:
        self.inlets: dict[Inlet, None] = {}

    def on_inlet(self, inlet: Inlet) -> None:
        pass


@pytest.mark.parametrize("name", ["hello", "hello-secret"])
async def test_a_peer_is_refused_by_its_first_frame(name: str, earlier: Path, caplog: pytest.LogCaptureFixture) -> None:
    inlet, connection = Inlet(cast("Any", Owner())), Connection()
    inlet.connection_made(connection)
    inlet.data_received((earlier / "peer" / name).read_bytes())
    assert connection.aborted
    assert (inlet.peer, inlet.introduction) == (None, [])
    assert "192.0.2.7" in caplog.text
    assert "that of a build before RaftMQ 0.1.0" in caplog.text
    inlet.connection_lost(None)


def test_a_cluster_file_and_an_export_are_refused(earlier: Path) -> None:
    before = tree(earlier)
    with pytest.raises(LocalError, match=rf"cluster\.json has format 1: {EARLIER}"):
        read_cluster(earlier / "home")
    with pytest.raises(LocalError, match=rf"metadata\.json has format 1: {EARLIER}"):
        metadata.read((earlier / "metadata.json").read_bytes(), "metadata.json")
    assert tree(earlier) == before

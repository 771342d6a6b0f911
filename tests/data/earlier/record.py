"""Records what a build writes, one of each kind: `python -m tests.data.earlier.record FILE.tar.xz`.

Run with the last build before RaftMQ 0.1.0. No release reads its formats. tests/cluster/backup/test_earlier_builds.py
checks that each of them is refused by name and left as it is. ::

    node/        a stopped node's directory, with log, state, checkpoint, index file and every small file
    backup/      a backup of it
    store/       a tier: objects of the log, an index file, a manifest, a copy of the state; and the backup in a store
    small/       files that a node has only now and then
    home/        cluster.json and raftmq.toml of a local cluster
    peer/        the first bytes of connections between nodes: introductions, entries, the offer of a snapshot
    metadata.json
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from uuid import UUID

import msgpack
import msgspec

from cluster.backup import metadata
from cluster.backup.create import BackupOrder, create
from cluster.config.loading import load
from cluster.config.local_layout import ClusterFile, write_cluster
from cluster.config.node_files import plan_nodes, write_configs
from cluster.peer import handshake, wire
from cluster.replication.acks import early_answer_file
from cluster.runtime.alarms import Alarms
from cluster.runtime.environment import Environment
from cluster.runtime.failpoints.failpoints import FailpointSet
from cluster.runtime.peer_frames import Kind
from cluster.state.node_storage import NodeStorage
from cluster.tier import stored_files
from cluster.tier.published_manifest import ManifestPublisher
from cluster.tier.store.directory_store import DirectoryStore
from raftlog.frame import make_entry
from raftlog.messages import AppendEntries, InstallSnapshot
from raftlog.storage.files import install_file, log_first, vote_withheld
from raftlog.storage.files.install_file import Install
from raftlog.storage.files.vote_withheld import VoteWithheld
from raftlog.types import EMPTY_TAIL, EntryId, EntryType, NodeId
from raftmq.local.init import create_data_dirs
from raftmq_wire.checksums import crc32c
from raftmq_wire.message_format import Message, encode_message
from statemachine import payload
from statemachine.commands import pack
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.consuming.groups import PutGroup
from statemachine.index_file.index_format import IndexMeta
from statemachine.index_file.index_writer import IndexWriter
from statemachine.levels import LEVEL
from statemachine.payload import ITEM, MESSAGES_AT, Run
from statemachine.topics.topics import CreateTopic
from statemachine.trim import Slice, encode
from tests.cluster.backup.lost_cluster import Lost
from tests.data.record_format import SETTINGS, anonymous

NOW_MS = 1_760_000_000_000


def main(target: Path) -> None:
    """Makes everything in a folder of its own and packs it."""
    folder = Path(tempfile.mkdtemp())
    home = folder / "home"
    nodes = plan_nodes(home, 1, 23710)
    write_configs(nodes)
    config_path = nodes[0].config_path
    config_path.write_text(config_path.read_text() + SETTINGS)
    create_data_dirs([config_path])
    config = load(config_path, {})
    data = Path(config.node.data_dir)
    storage = NodeStorage(config, FailpointSet(False), Environment(), Alarms(lambda: NOW_MS))
    fill(storage)
    exported = metadata.export(storage.state, str(storage.directory.identity.cluster_uuid))
    (folder / "metadata.json").write_bytes(msgspec.json.encode(exported))
    group_id, tail = storage.directory.identity.group_id, storage.directory.log.tail
    storage.close(clean=True)
    checkpoint = next(path for path in sorted((data / "checkpoints").iterdir()) if path.is_dir())
    made = create(
        BackupOrder(
            data=str(data),
            checkpoint=str(checkpoint),
            to=str(folder / "backups"),
            made_ms=NOW_MS,
            cluster_name="DefaultCluster",
            broker_name="raftmq",
            copy_all=True,
        )
    )
    shutil.move(made.path, folder / "backup")
    asyncio.run(fill_store(folder, data))
    small = {
        "EARLY": early_answer_file.encode({EntryId(1, 2): 3}, early_answer_file.LostAnswers(0, 0)),
        "VOTE_WITHHELD": vote_withheld.encode(VoteWithheld("why", 1, 1), group_id),
        "INSTALL": install_file.encode(Install(checkpoint.name, 1, 512, EntryId(1, 5), 1024, 7), group_id),
        "FIRST": log_first.encode(tail, group_id),
    }
    (folder / "small").mkdir()
    for name, content in small.items():
        (folder / "small" / name).write_bytes(content)
    fill_peer(folder / "peer", storage)
    write_cluster(home, ClusterFile(nodes))
    shutil.move(data, folder / "node")
    left_out = {"LOG", "LOCK", "OPTIONS-000007", "SECRET"}
    with tarfile.open(target, "w:xz", preset=9) as archive:
        for name in ("node", "backup", "store", "small", "home", "peer", "metadata.json"):
            archive.add(
                folder / name,
                name,
                filter=lambda member: None if Path(member.name).name in left_out else anonymous(member),
            )
    shutil.rmtree(folder)


def fill(storage: NodeStorage) -> None:
    """Entries of several types, applied; the entry of messages has a key."""
    log, state = storage.directory.log, storage.state
    made: list[tuple[EntryType, bytes]] = [
        (EntryType.NOOP, b""),
        (EntryType.COMMAND, msgpack.packb([["raise_level", LEVEL]])),
        (EntryType.COMMAND, pack([CreateTopic({"name": "orders"}, True), PutGroup({"name": "g"}, True)])),
        (EntryType.MESSAGES, b""),
        (EntryType.COMMAND, pack([CommitOffsets([("g", 1, 0, 1)])])),
        (EntryType.TRIM, encode(Slice(1, 10))),
    ]
    for kind, content in made:
        tail = log.tail
        if kind is EntryType.MESSAGES:
            at = tail.end_position + MESSAGES_AT
            stored = encode_message(Message("orders", b"body", b"KEYS\x01k\x02", position=at, store_ms=NOW_MS))
            item = ITEM.pack(at, len(stored), crc32c(stored), 0, NOW_MS)
            key = (7).to_bytes(4) + at.to_bytes(8)[4:]
            content = payload.encode([stored], 1, [Run(1, 0, 0, 1, 0, item)], keys=key)
        entry = make_entry(
            tail,
            term=max(1, tail.term),
            entry_type=kind,
            payload=content,
            timestamp_ms=NOW_MS,
            group_id=log.genesis.group_id,
            segment_size=log.segment_size,
        )
        if tail.term == 0:
            store = storage.directory.hard_state_store
            store.save(store.load()._replace(term=1))
        log.append([entry])
    state.apply(log.read_entries(state.applied.index + 1, log.tail.index + 1, 1 << 30))
    storage.checkpointer.sync()
    storage.checkpointer.checkpoint()


async def fill_store(folder: Path, data: Path) -> None:
    """A tier of two segments, and a backup in a store."""
    copied = Path(shutil.copytree(data, folder / "copied"))
    lost = await asyncio.to_thread(Lost, copied, folder / "store", 4)
    lost.upload()
    await asyncio.to_thread(lost.copy_state, [5], folder / "kv")
    store = DirectoryStore(folder / "store")
    publisher = ManifestPublisher(store, lost.cluster_id, lost.cluster_id)
    await publisher.publish([], 1, 5)
    out = bytearray()
    end = lost.entries[3].end_position
    writer = IndexWriter(out.extend)
    writer.finish(IndexMeta(UUID(lost.cluster_id), 0, end, 0, 3, 1, NOW_MS, NOW_MS, 0, 0, 0, lost.group_id, 0))
    index = folder / "store" / lost.cluster_id / "index" / f"{0:020d}-{end:020d}.{'0' * 16}.idx"
    index.parent.mkdir(exist_ok=True)
    index.write_bytes(out)
    described = folder / "store" / "backups" / "b.json"
    described.parent.mkdir()
    described.write_bytes(stored_files.encode({"backup": "of an earlier build"}))
    await store.close()


def fill_peer(folder: Path, storage: NodeStorage) -> None:
    """HELLO without and with a secret, a heartbeat's neighbour with entries, and the offer of a snapshot."""
    folder.mkdir()
    identity = storage.directory.identity
    hello = [identity.cluster_uuid.bytes, 1, 1, identity.node_uuid.bytes, 2, "control", 3, "127.0.0.1", 1]
    secret = handshake.with_keys(hello, bytes(32), [bytes(8)])
    (folder / "hello").write_bytes(wire.pack(Kind.HELLO, [*handshake.with_keys(hello, b"", []), LEVEL]))
    (folder / "hello-secret").write_bytes(wire.pack(Kind.HELLO, [*secret, LEVEL]))
    one = make_entry(
        EMPTY_TAIL, term=0, entry_type=EntryType.NOOP, payload=b"", timestamp_ms=0, group_id=1, segment_size=4096
    )
    append = AppendEntries(NodeId(1), NodeId(2), 1, EntryId(0, -1), 0, (one,))
    (folder / "append").write_bytes(b"".join(wire.encode_message(append)))
    offer = InstallSnapshot(NodeId(1), NodeId(2), 1, 7, EntryId(1, 6))
    (folder / "snapshot").write_bytes(b"".join(wire.encode_message(offer)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Records a small data directory as the running release writes it: `python tests/data/record_format.py FILE.tar.xz`.

Run once per released format, with that release; the archive then stays here for ever and must open
(tests/cluster/backup/test_recorded_formats.py). It holds two copies of a node's directory and what a reader must find:

    clean/       after an orderly stop
    killed/      the same node later, after kill -9
    expected.json
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from cluster.config.node_files import plan_nodes, write_configs
from cluster.runtime.host.versions import versions
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.node_dir import open_node_dir
from raftmq.client import connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.init import create_data_dirs
from statemachine.broker_state import BrokerState
from statemachine.rows.digest import digest
from statemachine.rows.rocksdb_store import RocksKV

SEGMENT_SIZE = 128 * 1024
SETTINGS = f"""
[log]
segment_size_bytes = {SEGMENT_SIZE}

[limits]
message_bytes_max = 32768
batch_bytes_max = 16384
"""
BASE_PORT = 23710


def main(target: Path) -> None:
    """Makes a cluster of one node in a folder of its own, uses it, and packs what it left."""
    target = target.absolute()
    os.chdir(tempfile.mkdtemp())
    home = Path("recorded")
    nodes = plan_nodes(home.absolute(), 1, BASE_PORT)
    write_configs(nodes)
    config = nodes[0].config_path
    config.write_text(config.read_text() + SETTINGS)
    create_data_dirs([config])
    cluster = LocalCluster(home.absolute())
    cluster.up()
    first = use(cluster.servers, 1)
    cluster.down()
    keep(home, "clean")
    cluster.up()
    second = use(cluster.servers, 2)
    cluster.kill(1)
    keep(home, "killed")
    told: dict[str, Any] = {"versions": versions()}
    told["clean"] = {**describe(Path("clean")), "bodies": first}
    told["killed"] = {**describe(Path("killed")), "bodies": first | second}
    Path("expected.json").write_text(json.dumps(told, indent=2, sort_keys=True) + "\n")
    with tarfile.open(target, "w:xz", preset=9) as archive:
        for name in ("clean", "killed", "expected.json"):
            archive.add(name, filter=anonymous)


def use(servers: str, number: int) -> dict[str, list[str]]:
    """Every kind of entry that a client can cause; returns the bodies by topic/queue."""
    bodies: dict[str, list[str]] = {}
    with connect(servers) as client:
        for topic, dedup in (("orders", "retry"), ("strict", "strict"), ("gone", "off")):
            client.admin.create_topic(f"{topic}{number}", 3, {"dedup": dedup})
            for i in range(250):
                body = f"{topic}{number} {i} " + "x" * (i % 97)
                client.send(f"{topic}{number}", body.encode(), key=f"k{i}", tag=f"t{i % 3}", queue_id=i % 3)
                bodies.setdefault(f"{topic}{number}/{i % 3}", []).append(body)
        client.admin.delete_topic(f"gone{number}")
        for queue in range(3):
            del bodies[f"gone{number}/{queue}"]
        with client.consumer(f"readers{number}", f"orders{number}") as consumer:
            for _ in range(40):
                assert consumer.poll(10) is not None
            consumer.commit()
        client.admin.create_group(f"idle{number}")
        client.admin.commit(f"idle{number}", f"strict{number}", 2, 17)
    return bodies


def keep(home: Path, name: str) -> None:
    """A copy of the node's directory as it lies there, without what RocksDB writes for people."""
    shutil.copytree(home / "n1" / "data", name, ignore=shutil.ignore_patterns("LOG", "LOG.old*", "OPTIONS-*", "LOCK"))


def describe(directory: Path) -> dict[str, Any]:
    """Returns the content of a copy by the release that wrote it: the state is brought up to the end of the log
    first."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(directory, Path(folder) / "copy"))
        opened = open_node_dir(OsFileSystem(), copy)
        kv = RocksKV(str(copy / "state"))
        state, log = BrokerState(kv), opened.log
        state.apply(log.read_entries(state.applied.index + 1, log.tail.index + 1, 1 << 30))
        told = {
            "cluster_uuid": str(opened.identity.cluster_uuid),
            "last_index": log.tail.index,
            "last_term": log.tail.term,
            "last_header_crc": log.tail.header_crc,
            "end_position": log.tail.end_position,
            "digest": digest(kv),
            "topics": sorted(state.topics),
            "groups": {group: state.offsets_of_group(group) for group in sorted(state.groups)},
        }
        kv.close()
        opened.close(clean=False)
    return told


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Nobody's file, of no time."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main(Path(sys.argv[1]))

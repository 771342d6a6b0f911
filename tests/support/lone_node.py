"""The file raftmq.toml of a cluster of one node."""

from __future__ import annotations

from pathlib import Path

from raftmq.local.init import create_data_dirs
from raftmq.local.process import free_base_port
from tests.support.small_segments import LOG


def write_lone_node(folder: Path, sections: str = LOG) -> tuple[Path, int]:
    """Writes raftmq.toml, with these further sections, and makes the data directory beside it. Returns the file and the
    node's lowest port, which is that of peers; clients have the next one, and HTTP the one after it."""
    base, path = free_base_port(3), folder / "raftmq.toml"
    path.write_text(
        f'[node]\nid = 1\ndata_dir = "{folder}/data"\n[[peers]]\nid = 1\nport = {base}\n[peer]\nport = {base}\n'
        f'[[listeners]]\nname = "broker"\nport = {base + 1}\n[admin]\nport = {base + 2}\n{sections}'
    )
    create_data_dirs([path])
    return path, base

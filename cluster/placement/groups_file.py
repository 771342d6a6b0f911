"""Keeps DATA/GROUPS: the map of the other groups, as this node last knew it (docs/disk-format.md).

At the next start, when group 1 may be out of reach, it says which nodes to dial and what to answer clients. The file is
a hint, and nothing is lost without it. So a file that is damaged, of another cluster or of a newer format is ignored
with a warning, and a failed write stops nothing.

    0 magic u32 "RMQG" | 4 crc u32 of bytes 8..end | 8 format u16 | 10 reserved u16 | 12 group_id u32
    16 msgpack map {cluster: text, groups: the payload of a frame GROUPS}
"""

from __future__ import annotations

import logging
from pathlib import Path

from cluster.placement.group_map import GroupRecords, decode, encode
from cluster.runtime.peer_frames import WireError
from raftlog.errors import CorruptLogError
from raftlog.storage.files import layout
from raftlog.storage.files.fs import FileSystem, read_file, write_file
from raftlog.storage.files.sealed_map import seal, unseal

logger = logging.getLogger(__name__)

MAGIC = 0x524D5147
FORMAT = 10


class GroupsFile:
    """The file of one node. Used by one thread at a time."""

    def __init__(self, fs: FileSystem, directory: Path, cluster_uuid: str, group: int) -> None:
        """`group`: the number of the group of the node that owns the directory."""
        self._fs = fs
        self._path = directory / layout.GROUPS
        self._cluster_uuid = cluster_uuid
        self._group = group

    def load(self) -> GroupRecords:
        """Returns the map in the file; {} if there is none that can be used."""
        try:
            if not self._fs.exists(self._path):
                return {}
            return self._read(read_file(self._fs, self._path))
        except (OSError, CorruptLogError, WireError) as error:
            logger.warning("%s is ignored, and the map of the groups begins anew: %s", self._path, error)
            return {}

    def _read(self, data: bytes) -> GroupRecords:
        content = unseal(data, MAGIC, FORMAT, self._group, self._path)
        if content is None:
            raise WireError("it is damaged, or of another group")
        if content.get("cluster") != self._cluster_uuid:
            raise WireError("it is of another cluster")
        payload = content.get("groups")
        if type(payload) is not bytes:
            raise WireError("it has no map")
        return {record.group: record for record in decode(payload) if record.group != self._group}

    def save(self, groups: GroupRecords) -> None:
        """Replaces the file, and returns when it is on disk. Raises OSError; the old file is then unchanged."""
        content = {"cluster": self._cluster_uuid, "groups": encode(groups.values())}
        write_file(self._fs, self._path, seal(MAGIC, FORMAT, self._group, content))

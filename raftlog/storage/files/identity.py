"""The identity of a data directory: its cluster and node. DATA/IDENTITY, big-endian, written last when a directory is
made::

     0 magic u32 "RMQI" | 4 crc u32 of bytes 8..end of file | 8 format u16 | 10 reserved u16 | 12 group_id u32
    16 node_id u64 | 24 created_ms u64 | 32 cluster_uuid 16 | 48 node_uuid 16
    64 ancestor count u32 | 68 reserved u32 | 72 per ancestor: cluster_uuid 16, last_index u64

The voter set stores the node uuid: a node that lost its directory is another node, and must not vote as the old one.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from raftlog.errors import IdentityError
from raftlog.format_versions import is_known, refusal
from raftlog.storage.files import layout
from raftlog.storage.files.fs import FileSystem, read_file, write_file
from raftlog.storage.files.sealed_record import HEAD_SIZE, is_intact, seal
from raftlog.types import NodeId

MAGIC = 0x524D5149
FORMAT = 10
_REST = struct.Struct(">HHIQQ16s16s")
_COUNT = struct.Struct(">II")
_ANCESTOR = struct.Struct(">16sQ")
_SIZE = HEAD_SIZE + _REST.size


class Ancestor(NamedTuple):
    """An earlier cluster that this one continues, with its log up to `last_index`."""

    cluster_uuid: UUID
    last_index: int


class Identity(NamedTuple):
    """The cluster and node to which a data directory belongs. `node_uuid` is made once, with the directory."""

    cluster_uuid: UUID
    group_id: int
    node_id: NodeId
    node_uuid: UUID
    created_ms: int
    origin: tuple[Ancestor, ...] = ()
    """The clusters that this one continues, oldest first: the cluster of GENESIS, then one for each restore or
    unsafe-recover since. Empty for a cluster that began with its own GENESIS."""


class Expected(NamedTuple):
    """The identity that the configuration demands. A field that is None accepts any value."""

    cluster_uuid: UUID | None = None
    group_id: int | None = None
    node_id: NodeId | None = None


def encode(identity: Identity) -> bytes:
    """Returns the bytes of DATA/IDENTITY."""
    rest = _REST.pack(
        FORMAT,
        0,
        identity.group_id,
        identity.node_id,
        identity.created_ms,
        identity.cluster_uuid.bytes,
        identity.node_uuid.bytes,
    )
    rest += _COUNT.pack(len(identity.origin), 0)
    rest += b"".join(_ANCESTOR.pack(each.cluster_uuid.bytes, each.last_index) for each in identity.origin)
    return seal(MAGIC, rest)


def decode(data: bytes, path: Path) -> Identity:
    """Reads the bytes of DATA/IDENTITY. Raises IdentityError if they are damaged or of another format."""
    if len(data) < _SIZE or not is_intact(MAGIC, data):
        raise _damaged(path)
    fmt, _, group_id, node_id, created_ms, cluster_uuid, node_uuid = _REST.unpack_from(data, HEAD_SIZE)
    _check_format(fmt, path.parent)
    origin = _decode_origin(data[_SIZE:], path)
    return Identity(UUID(bytes=cluster_uuid), group_id, NodeId(node_id), UUID(bytes=node_uuid), created_ms, origin)


def _decode_origin(data: bytes, path: Path) -> tuple[Ancestor, ...]:
    count, _ = _COUNT.unpack_from(data) if len(data) >= _COUNT.size else (-1, 0)
    if len(data) != _COUNT.size + count * _ANCESTOR.size:
        raise _damaged(path)
    rows = _ANCESTOR.iter_unpack(data[_COUNT.size :])
    return tuple(Ancestor(UUID(bytes=cluster_uuid), last_index) for cluster_uuid, last_index in rows)


def _damaged(path: Path) -> IdentityError:
    return IdentityError(
        f"{path} is damaged.\n"
        "Without it the owner of these votes and this log is unknown.\n"
        f"Restore the file from a backup, or move {path.parent} away and start the node empty with a new uuid."
    )


def save(fs: FileSystem, directory: Path, identity: Identity) -> None:
    """Writes DATA/IDENTITY durably."""
    write_file(fs, directory / layout.IDENTITY, encode(identity))


def refuse_unknown(fs: FileSystem, directory: Path) -> None:
    """Raises IdentityError if the directory is of a format that this version does not read. Changes nothing."""
    path = directory / layout.IDENTITY
    data = read_file(fs, path) if fs.exists(path) else b""
    if len(data) >= _SIZE and is_intact(MAGIC, data):
        _check_format(int.from_bytes(data[HEAD_SIZE : HEAD_SIZE + 2], "big"), directory)


def _check_format(fmt: int, directory: Path) -> None:
    if not is_known(fmt, FORMAT):
        raise IdentityError(refusal(directory, fmt, FORMAT))


def load(fs: FileSystem, directory: Path) -> Identity:
    """Reads DATA/IDENTITY. Raises IdentityError if the directory is empty or half created, or the file is damaged or of
    another format."""
    path = directory / layout.IDENTITY
    if fs.exists(path):
        fs.fsync_dir(directory)
        return decode(read_file(fs, path), path)
    names = fs.listdir(directory) if fs.exists(directory) else []
    if any(name != layout.LOCK for name in names):
        raise IdentityError(
            f"{directory} has no IDENTITY but is not empty ({', '.join(names[:5])}).\n"
            "Without it the votes of this node are unknown: its files were lost, or its creation was interrupted.\n"
            "Replace the node while the others run (raftmq node replace ID), or put its directory back; "
            f"only if no node of this cluster ever started: mv {directory} {directory}.old, then make it again"
        )
    raise IdentityError(
        f"{directory} holds no node.\n"
        "A node that starts empty under a known id would vote again without remembering its votes.\n"
        "Replace the node while the others run (raftmq node replace ID), put its directory back, "
        "or make a new cluster: raftmq init, or raftmq up on one machine"
    )


def check(identity: Identity, expected: Expected, directory: Path) -> None:
    """Raises IdentityError unless the directory belongs to the cluster, group and node of the configuration."""
    facts = (
        ("cluster", identity.cluster_uuid, expected.cluster_uuid),
        ("group", identity.group_id, expected.group_id),
        ("node", identity.node_id, expected.node_id),
    )
    for what, found, wanted in facts:
        if wanted is not None and found != wanted:
            raise IdentityError(
                f"{directory} belongs to {what} {found}, not to {what} {wanted}.\n"
                f"Its votes and its log would be taken for those of another {what}.\n"
                f"Set node.data_dir to the directory of {what} {wanted}, or correct the configuration to {what} "
                f"{found}."
            )

"""GENESIS: the entry at index 0, written identically by every initial voter, with the constants of the cluster.

Payload: a msgpack map, docs/disk-format.md "GENESIS".
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

import msgpack

from raftlog.errors import FrameError
from raftlog.format_versions import is_known, remark, uuid_in
from raftlog.frame import FRAME_LENGTH_MAX, genesis_entry
from raftlog.types import Entry, EntryType, NodeId, Voter

__all__ = ["FORMAT", "SEGMENT_SIZE_MAX", "SEGMENT_SIZE_MIN", "Genesis", "Voter", "decode", "encode"]

FORMAT = 10
SEGMENT_SIZE_MIN = 4096
SEGMENT_SIZE_MAX = 2 * 1024**3


class Genesis(NamedTuple):
    """The constants of the cluster. `segment_size` is bytes of frames per segment file."""

    cluster_uuid: UUID
    group_id: int
    segment_size: int
    created_ms: int
    voters: tuple[Voter, ...]

    def entry(self) -> Entry:
        """Returns the entry with these constants, the frame at index 0."""
        return genesis_entry(encode(self), timestamp_ms=self.created_ms, group_id=self.group_id)


def encode(genesis: Genesis) -> bytes:
    """Returns the payload of GENESIS. Raises ValueError unless the segment size is in range, there is a voter, and the
    voters' ids are positive and distinct."""
    if not SEGMENT_SIZE_MIN <= genesis.segment_size <= SEGMENT_SIZE_MAX:
        raise ValueError(
            f"segment_size {genesis.segment_size} is not between {SEGMENT_SIZE_MIN} and {SEGMENT_SIZE_MAX} bytes"
        )
    ids = [voter.id for voter in genesis.voters]
    if not ids or min(ids) < 1 or len(set(ids)) != len(ids):
        raise ValueError(f"voter ids must be distinct positive integers, not {ids}")
    # The map is packed in this order of keys, because the bytes must be equal on every voter.
    return msgpack.packb(  # type: ignore[no-any-return]
        {
            "format": FORMAT,
            "cluster_uuid": genesis.cluster_uuid.bytes,
            "group_id": genesis.group_id,
            "segment_size": genesis.segment_size,
            "created_ms": genesis.created_ms,
            "voters": [{"id": int(voter.id), "uuid": voter.uuid.bytes} for voter in genesis.voters],
        }
    )


def decode(entry: Entry) -> Genesis:
    """Reads the constants from the entry at index 0. Raises FrameError if it is not a GENESIS that this version can
    read."""
    if entry.index != 0 or entry.type != EntryType.GENESIS or len(entry.payload) > FRAME_LENGTH_MAX:
        raise FrameError(f"entry {entry.index} of type {entry.type} is not GENESIS")
    try:
        fields = msgpack.unpackb(entry.payload)
        if not is_known(fields["format"], FORMAT):
            raise FrameError(remark("GENESIS", fields["format"], FORMAT))
        return Genesis(
            uuid_in(fields["cluster_uuid"]),
            int(fields["group_id"]),
            int(fields["segment_size"]),
            int(fields["created_ms"]),
            tuple(Voter(NodeId(int(voter["id"])), uuid_in(voter["uuid"])) for voter in fields["voters"]),
        )
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise FrameError(f"GENESIS payload is not readable: {error!r}") from error

"""Encodes and decodes the frames between nodes. A frame is `int32 L | u8 kind | u8 version | u16 header length | header
(msgpack array) | payload`.

Raft messages are arrays of their fields. The entries of an AppendEntries follow as payload, exactly the bytes of the
log, so a follower writes what it received. Decoding checks both CRCs of every frame of the log (docs/wire-protocol.md).
"""

from __future__ import annotations

import struct
from operator import le
from typing import Any

import msgpack

from cluster.runtime.peer_frames import Kind, WireError
from raftlog.core.message_plausibility import TERM_MAX
from raftlog.errors import FrameError
from raftlog.format_versions import BASELINE
from raftlog.frame import decode_entries
from raftlog.messages import (
    AppendEntries,
    AppendEntriesReply,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    RequestVote,
    RequestVoteReply,
    TimeoutNow,
)
from raftlog.types import Entry, EntryId, NodeId

VERSION = 10
FRAME_MAX = 64 << 20
"""The longest acceptable frame of the bulk channel in bytes: a batch of appends, or a forwarded request."""
NODE_ID_MAX = 65535
INDEX_MAX = 1 << 62
_RANGES: dict[str, tuple[Any, int, int]] = {
    "from_id": (int, 1, NODE_ID_MAX),
    "to_id": (int, 1, NODE_ID_MAX),
    "term": (int, 0, TERM_MAX),
    "index": (int, -1, INDEX_MAX),
    "commit_index": (int, -1, INDEX_MAX),
    "match_index": (int, -1, INDEX_MAX),
    "first_index": (int, 0, INDEX_MAX),
    "context": (int, 0, INDEX_MAX),
    "clock_ms": (int, 0, INDEX_MAX),
}
"""Field of a Raft message, or of an EntryId in such a message -> (type, least value, greatest value)."""
_FLAG = (bool, False, True)
CONTROL_FRAME_MAX = 64 << 10
"""The longest frame of the control channel in bytes: votes, heartbeats, acknowledgements."""

_APPEND_ENTRIES = 18
"""The value of Kind.APPEND_ENTRIES as a plain int. Naming a member of an enum costs a look-up, and this one is used for
every message."""
_HEAD = struct.Struct(">iBBH")
_BODY = struct.Struct(">BBH")
_packer = msgpack.Packer(use_bin_type=True)
"""The one packer for all frames: making a packer costs as much as packing a frame. Event loop only, like all functions
of this file."""


def pack(kind: Kind, header: list[Any], payload_size: int = 0) -> bytes:
    """Returns the beginning of a frame: length, kind, version and header. Its payload must follow, with exactly
    `payload_size` bytes."""
    packed: bytes = _packer.pack(header)
    return _HEAD.pack(4 + len(packed) + payload_size, kind, VERSION, len(packed)) + packed


def unpack(buffer: bytes, start: int, stop: int) -> tuple[int, list[Any], bytes]:
    """Returns kind, header and payload of the frame at buffer[start:stop] (without its length prefix). Raises WireError
    if the frame is malformed or of another version."""
    try:
        if stop - start < _BODY.size:
            raise WireError(f"a frame of {stop - start} bytes")
        kind, version, header_len = _BODY.unpack_from(buffer, start)
        if version != VERSION:
            whose = "that of a build before RaftMQ 0.1.0" if version < BASELINE else "that of a newer RaftMQ"
            raise WireError(f"peer protocol {version}, {whose}; this node speaks {VERSION}")
        end = start + _BODY.size + header_len
        if end > stop:
            raise WireError("the header is longer than its frame")
        header = msgpack.unpackb(buffer[start + _BODY.size : end], raw=False)
    except WireError:
        raise
    except (struct.error, ValueError, msgpack.UnpackException) as error:
        raise WireError(f"malformed frame: {error}") from error
    if not isinstance(header, list):
        raise WireError("the header is not an array")
    return kind, header, buffer[end:stop]


def encode_message(message: Message) -> list[bytes]:
    """Returns the frame of a Raft message as byte strings to be written one after another. The bytes of entries are not
    copied."""
    if isinstance(message, AppendEntries):
        parts: list[bytes] = []
        size = 0
        for entry in message.entries:
            parts.append(entry.header)
            parts.append(entry.payload)
            size += 64 + len(entry.payload)
        prev = message.prev
        numbers = [message.from_id, message.to_id, message.term, prev.term, prev.index, message.commit_index]
        return [pack(Kind.APPEND_ENTRIES, numbers, size), *parts]
    kind = _KINDS[type(message)]
    fields: list[Any] = list(message)
    at = _ENTRY_ID_AT.get(kind)
    if at is not None:
        fields[at] = list(fields[at])
    return [pack(kind, fields)]


def decode_message(kind: int, header: list[Any], payload: bytes, group_id: int) -> Message:
    """Returns the message of an unpacked frame. Raises WireError if it is malformed. `group_id`: the group of this
    node."""
    message: Message
    try:
        if kind == _APPEND_ENTRIES:
            _check_numbers(kind, header)
            message = _decode_append(header, payload, group_id)
        else:
            at = _ENTRY_ID_AT.get(kind)
            if at is None:
                _check_numbers(kind, header)
            else:
                entry_id = header.pop(at)
                _check_numbers(kind, header + entry_id)
                header.insert(at, EntryId(*entry_id))
            message = _TYPES[kind](*header)
    except (KeyError, TypeError, ValueError, IndexError, FrameError) as error:
        raise WireError(f"malformed message of kind {kind}: {error}") from error
    return message


def _check_numbers(kind: int, numbers: list[Any]) -> None:
    """Checks the numbers of a message, because the core computes with them and must not see one out of range. Entries
    are checked elsewhere, and a missing or superfluous field is found when the message is built. Raises ValueError."""
    types, lows, highs = _BOUNDS[kind]
    if tuple(map(type, numbers)) == types and all(map(le, lows, numbers)) and all(map(le, numbers, highs)):
        return  # the common case: all numbers are in range
    for value, (name, number_type, low, high) in zip(numbers, _PLANS[kind], strict=False):
        if type(value) is not number_type or not low <= value <= high:
            raise ValueError(f"{name} is {value!r:.60}")


def _decode_append(header: list[Any], payload: bytes, group_id: int) -> AppendEntries:
    from_id, to_id, term, prev_term, prev_index, commit_index = header
    entries: tuple[Entry, ...] = tuple(decode_entries(payload, group_id)) if payload else ()
    return AppendEntries(NodeId(from_id), NodeId(to_id), term, EntryId(prev_term, prev_index), commit_index, entries)


_TYPES: dict[int, Any] = {
    Kind.REQUEST_VOTE: RequestVote,
    Kind.REQUEST_VOTE_REPLY: RequestVoteReply,
    Kind.APPEND_ENTRIES_REPLY: AppendEntriesReply,
    Kind.HEARTBEAT: Heartbeat,
    Kind.HEARTBEAT_REPLY: HeartbeatReply,
    Kind.TIMEOUT_NOW: TimeoutNow,
    Kind.INSTALL_SNAPSHOT: InstallSnapshot,
}
_ENTRY_ID_AT = {int(Kind.REQUEST_VOTE): 3, int(Kind.APPEND_ENTRIES_REPLY): 5, int(Kind.INSTALL_SNAPSHOT): 4}
"""Kind of message -> index of the EntryId in its header."""
_KINDS: dict[type, Kind] = {message_type: Kind(kind) for kind, message_type in _TYPES.items()}


def _plan_of(kind: Kind) -> tuple[tuple[str, Any, int, int], ...]:
    """Returns (field, type, least, greatest) of each number that `_check_numbers` checks, in order. An EntryId's fields
    come last, except in AppendEntries, whose header lists them one by one (`encode_message`)."""
    if kind == Kind.APPEND_ENTRIES:
        names = ["from_id", "to_id", "term", "term", "index", "commit_index"]
    else:
        names = list(_TYPES[kind]._fields)
        if kind in _ENTRY_ID_AT:
            del names[_ENTRY_ID_AT[kind]]
            names += EntryId._fields
    return tuple((name, *_RANGES.get(name, _FLAG)) for name in names)


_PLANS: dict[int, tuple[tuple[str, Any, int, int], ...]] = {
    kind: _plan_of(Kind(kind)) for kind in (Kind.APPEND_ENTRIES, *_TYPES)
}
"""Kind -> the rows of `_plan_of`, computed once, because every message needs them."""
_BOUNDS: dict[int, tuple[tuple[Any, ...], tuple[int, ...], tuple[int, ...]]] = {
    kind: tuple(zip(*[row[1:] for row in plan], strict=True))  # type: ignore[misc]
    for kind, plan in _PLANS.items()
}
"""Kind -> the rows of `_PLANS` as columns: types, least and greatest values."""

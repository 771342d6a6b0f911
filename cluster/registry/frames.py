"""Encodes and decodes the frames between a registry process and its parent, which use the process's standard input and
output.

A frame is its length, u32 big-endian, then msgpack. The parent's first frame has the settings of the process, including
the password, so that the password is neither in its arguments nor in a file. Each later frame of the parent is a
request, which the process answers once::

    [number, "apply", operation, limit in ms]   [number, outcome, error, value]
    [number, "read"]                            ... value: all records
    [number, "status"]                          ... value: msgpack map

`outcome` is ok, fail (no log has the operation) or unknown.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from cluster.registry.records import CLUSTER_BYTES, NODES_MAX
from cluster.runtime.peer_frames import WireError

FRAME_BYTES_MAX = 72 << 20
OK, FAIL, UNKNOWN = "ok", "fail", "unknown"
READY = 0
"""The number of the frame with which a process reports that it listens; the numbers of requests begin with 1."""

_SIZE = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()


class RegistrySettings(msgspec.Struct, frozen=True):
    """The settings of a registry process."""

    directory: str
    cluster: Annotated[bytes, Meta(min_length=CLUSTER_BYTES, max_length=CLUSTER_BYTES)]
    node: Annotated[int, Meta(ge=1, le=NODES_MAX)]
    addresses: Annotated[dict[int, str], Meta(min_length=1, max_length=NODES_MAX)]
    """Number of a process -> the "host:port" at which the other processes reach it."""
    bind: str
    """The "host:port" at which this process listens."""
    password: Annotated[str, Meta(min_length=16)]


class RegistryStatus(msgspec.Struct, frozen=True):
    """The state of a registry process."""

    term: int
    leader: int
    """The number of the last known leader; 0 if there is none."""
    applied: int
    committed: int
    entries: int
    """Entries in the journal."""
    is_full: bool
    """True if the journal has no room for more entries, or a write failed for want of space."""
    syncs: int
    """The number of fdatasyncs of the journal since the start."""


RegistryReply = tuple[int, str, str, bytes]
"""(number of the request, outcome, error, value). If the outcome is ok, `error` is "" and `value` is set; otherwise
`error` is the reason."""

_replies = msgspec.msgpack.Decoder(RegistryReply)
_settings = msgspec.msgpack.Decoder(RegistrySettings)
_status = msgspec.msgpack.Decoder(RegistryStatus)
_requests = msgspec.msgpack.Decoder(list[Any])


def frame(value: object) -> bytes:
    """Returns the frame of a value: its length, then its msgpack."""
    data = _encoder.encode(value)
    return _SIZE.pack(len(data)) + data


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """Returns the content of the next frame; None at the end of the stream, even within a frame. Raises WireError for a
    frame that is too long."""
    try:
        (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
        if size > FRAME_BYTES_MAX:
            raise WireError(f"a frame of {size} bytes")
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        return None


def read_settings(data: bytes) -> RegistrySettings:
    """Returns the settings in the first frame. Raises WireError if they are malformed."""
    try:
        settings = _settings.decode(data)
    except msgspec.MsgspecError as error:
        raise WireError(f"no settings: {error}") from error
    if settings.node not in settings.addresses:
        raise WireError(f"the addresses have no registry node {settings.node}")
    return settings


def read_request(data: bytes) -> list[Any]:
    """Returns the parent's request: [number, verb, *arguments of the verb]. Raises WireError if it is malformed."""
    try:
        request = _requests.decode(data)
    except msgspec.MsgspecError as error:
        raise WireError(f"no request: {error}") from error
    match request:
        case [int(), "read" | "status"] | [int(), "apply", bytes(), int()]:
            return request
    raise WireError("a request of an unknown shape")


def read_reply(data: bytes) -> RegistryReply:
    """Returns an answer of the process. Raises msgspec.MsgspecError for a malformed one, which only a defect can
    cause."""
    reply: RegistryReply = _replies.decode(data)
    return reply


def read_status(data: bytes) -> RegistryStatus:
    """Returns the state of a process, decoded from the value of an answer to "status"."""
    return _status.decode(data)

"""What describes a set of files in an object store: which objects hold which bytes of which file.

A file is cut into parts of PART_BYTES, one object each. A part's name begins with that of the set that wrote it first,
and has its content's hash. A later set may name the part as well; then it is not written again. The description is
written last, so a set without one does not exist.

Invariant: a removed name is never written again. Whoever writes takes parts only from the newest set, under their
names, and writes everything else under a name of its own. So a DELETE that the network delays, for a part that only
older sets name, cannot hit an object that a newer one needs.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from cluster.wire.json_text import MALFORMED
from raftlog.checksums import crc32c

SCHEMA = 1
PART_BYTES = 16 << 20
DESCRIPTION_BYTES_MAX = 64 << 20


class StoredPart(msgspec.Struct, frozen=True):
    """An object. `name` is below the folder of the set's owner."""

    name: str
    size: int
    sha256: str
    crc32c: int


class StoredFile(msgspec.Struct, frozen=True):
    """A file: its parts, one behind the other."""

    path: str
    """Below the set's root, with / between folders."""
    size: int
    parts: list[StoredPart]


class BadDescriptionError(ValueError):
    """The object is no description of a set of files, or one of a newer release."""


class _Schema(msgspec.Struct):
    schema: int


class _Envelope(msgspec.Struct):
    schema: int
    crc32c: int
    """Of the very bytes of `content`."""
    content: msgspec.Raw


Content = TypeVar("Content")


def encode(content: object) -> bytes:
    """The object's bytes."""
    body = msgspec.json.encode(content)
    return msgspec.json.encode(_Envelope(SCHEMA, crc32c(body), msgspec.Raw(body)))


def decode(data: bytes, kind: type[Content]) -> Content:
    """What `encode` was given. Raises BadDescriptionError."""
    try:
        schema = msgspec.json.decode(data, type=_Schema).schema
        if schema > SCHEMA:
            raise BadDescriptionError(
                f"it has schema {schema}, this release reads schemas up to {SCHEMA}: written by a newer RaftMQ"
            )
        envelope = msgspec.json.decode(data, type=_Envelope)
        body = bytes(envelope.content)
        if crc32c(body) != envelope.crc32c:
            raise BadDescriptionError("its checksum does not fit")
        return msgspec.json.decode(body, type=kind)
    except MALFORMED as error:
        raise BadDescriptionError(str(error)) from None

"""JSON documents that name their schema: what they say is read only if this version knows it, and their CRC fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from raftlog.format_versions import is_known
from raftmq_wire.checksums import crc32c


class Schema(msgspec.Struct):
    """The one field of a JSON object that may be read of any schema: its number."""

    schema: int


class BadSealError(msgspec.DecodeError):
    """The body of a document is not the one that its checksum was made of."""


class SealedJson:
    """A kind of document: {"schema": number, "crc32c": checksum, FIELD: body}. The checksum is that of the bytes of the
    body, exactly as they stand in the document."""

    def __init__(self, field: str, schema: int) -> None:
        """`schema`: the one that is written, and the newest that is read."""
        self._field = field
        self._schema = schema
        self._envelope: Any = msgspec.defstruct("Envelope", [("schema", int), ("crc32c", int), (field, msgspec.Raw)])

    def seal(self, body: bytes) -> bytes:
        """Returns the document with this JSON as its body."""
        return msgspec.json.encode(self._envelope(self._schema, crc32c(body), msgspec.Raw(body)))

    def open(self, data: bytes, unknown: Callable[[int], Exception]) -> bytes:
        """Returns the body. Raises what `unknown` returns for a schema that this version does not read,
        BadSealError, and `raftmq_wire.json_text.MALFORMED`."""
        schema = msgspec.json.decode(data, type=Schema).schema
        if not is_known(schema, self._schema):
            raise unknown(schema)
        envelope = msgspec.json.decode(data, type=self._envelope)
        body = bytes(getattr(envelope, self._field))
        if crc32c(body) != envelope.crc32c:
            raise BadSealError("the checksum does not fit")
        return body

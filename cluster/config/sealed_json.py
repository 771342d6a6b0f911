"""Reads and writes JSON documents with a schema number and a checksum. A document's contents are read only if this
version knows the schema and the checksum is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from raftlog.format_versions import is_known
from raftmq_wire.checksums import crc32c


class Schema(msgspec.Struct):
    """The schema number of a JSON object, which may be read whatever the schema is."""

    schema: int


class BadSealError(msgspec.DecodeError):
    """Raised if the body of a document does not have the document's checksum."""


class SealedJson:
    """A kind of document: {"schema": number, "crc32c": checksum, FIELD: body}. The checksum is that of the body's
    bytes, exactly as they are in the document."""

    def __init__(self, field: str, schema: int) -> None:
        """Keeps the arguments. `field` is the name of the body's field. `schema` is the number that is written, and the
        newest one that is read."""
        self._field = field
        self._schema = schema
        self._envelope: Any = msgspec.defstruct("Envelope", [("schema", int), ("crc32c", int), (field, msgspec.Raw)])

    def seal(self, body: bytes) -> bytes:
        """Returns the document with this JSON text as its body."""
        return msgspec.json.encode(self._envelope(self._schema, crc32c(body), msgspec.Raw(body)))

    def open(self, data: bytes, unknown: Callable[[int], Exception]) -> bytes:
        """Returns the JSON text of the body. Raises BadSealError if the checksum is wrong,
        `raftmq_wire.json_text.MALFORMED` if it is no such document, and the exception that `unknown` returns if this
        version does not know its schema."""
        schema = msgspec.json.decode(data, type=Schema).schema
        if not is_known(schema, self._schema):
            raise unknown(schema)
        envelope = msgspec.json.decode(data, type=self._envelope)
        body = bytes(getattr(envelope, self._field))
        if crc32c(body) != envelope.crc32c:
            raise BadSealError("the checksum does not fit")
        return body

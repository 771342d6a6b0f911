"""Encodes and decodes JSON for clients, charged to the meter (`raftlog.work`), because its size depends on clients or
data.

The headers of sends and pulls are not decoded here: their size is bounded, and they are charged when the socket is
read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from raftlog.work import TEXT_KIB_UNITS, charge

T = TypeVar("T")

OBJECTS_MAX: Final = 5_000
"""The most objects in a text of a client: more than a heartbeat or a list of locks may name."""
VALUES_MAX: Final = 100_000
"""The most values in a text of a client. They are counted before the text is parsed, because a decoder cannot be
stopped half way. The count includes commas in strings."""

PARSE_KIB_UNITS: Final = 5
"""Units of work (`raftlog.work`) that are charged for each 1,024 bytes that are parsed. Lists of names cost 2; texts
full of escapes, which take the longest, cost 5."""

_encode = msgspec.json.Encoder().encode


def encode(value: Any) -> bytes:
    """Returns the value as JSON. Charges for it after it is built, because its size is not known before."""
    text = _encode(value)
    charge(1 + (len(text) >> 10) * TEXT_KIB_UNITS // 4)  # building is quicker than parsing
    return text


def decoder(kind: type[T], *, strict: bool = True) -> Callable[[bytes | str], T]:
    """Returns a function that parses JSON as `kind`. It raises one of `raftmq_wire.json_text.MALFORMED` for a malformed
    text, and for one with more than OBJECTS_MAX objects or VALUES_MAX values."""
    decode = msgspec.json.Decoder(kind, strict=strict).decode

    def metered(text: bytes | str) -> T:
        charge(1 + (len(text) >> 10) * PARSE_KIB_UNITS)
        _check_counts(text)
        return decode(text)

    return metered


def _check_counts(text: bytes | str) -> None:
    """Raises ValidationError for a text with too many objects or values. Counting their signs takes a tenth of a
    millisecond for a MiB; parsing it first would take up to 30 ms."""
    braces, commas = ("{", ",") if isinstance(text, str) else (b"{", b",")
    for what, most, sign in (("objects", OBJECTS_MAX, braces), ("values", VALUES_MAX, commas)):
        if (count := text.count(sign)) > most:  # type: ignore[arg-type]
            raise msgspec.ValidationError(f"{count} {what}, {most} are allowed: send it in parts")

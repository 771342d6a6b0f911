"""Encodes and decodes JSON for clients, charged to the meter (`raftlog.work`), because its size depends on clients or
data.

The headers of sends and pulls are not decoded here: their size is bounded, and they are charged when the socket is
read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from raftlog.work import TEXT_KIB_UNITS, charge, charge_text

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


def encode(value: Any) -> bytes:
    """Returns the value as JSON. It is charged when it is built, because its size is not known before."""
    text = _encode(value)
    charge(1 + (len(text) >> 10) * TEXT_KIB_UNITS // 4)  # building is quicker than parsing
    return text


def decoder(kind: type[T], *, strict: bool = True) -> Callable[[bytes | str], T]:
    """Returns a function that parses JSON as `kind`. The call raises what `raftmq_wire.json_text.MALFORMED` lists."""
    decode = msgspec.json.Decoder(kind, strict=strict).decode

    def metered(text: bytes | str) -> T:
        charge_text(len(text))
        return decode(text)

    return metered

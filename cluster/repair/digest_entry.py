"""The payload of a DIGEST entry: the sums of the leader's rows at an earlier marker entry.

msgpack array [version, index, {family: sum}]; the map is empty if the leader does not remember that marker. The entry
itself is the next marker (statemachine/sums.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgpack

from statemachine.sums import VERSION, Sums


class Digest(NamedTuple):
    """Sums at one index."""

    index: int  # type: ignore[assignment]
    sums: Sums


def encode(digest: Digest) -> bytes:
    """The payload."""
    packed: bytes = msgpack.packb([VERSION, digest.index, dict(digest.sums)])
    return packed


def decode(payload: bytes) -> Digest | None:
    """What the payload says; None if it says nothing that this version could compare."""
    if not payload:
        return None
    version, index, sums = msgpack.unpackb(payload)
    return Digest(index, sums) if version == VERSION and sums else None


def differing(mine: Mapping[str, int], theirs: Mapping[str, int]) -> list[str]:
    """The families whose sums differ, by name; a family that one side does not have counts as empty."""
    return sorted(name for name in {*mine, *theirs} if mine.get(name, 0) != theirs.get(name, 0))

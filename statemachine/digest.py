"""One additive sum per family: equal sums at the same applied index mean equal rows.

The sum of a family is the sum of its rows' hashes modulo 2**64, so it can later be kept up to date by adding and
subtracting rows as apply writes them. Where the log was cut (`applied`) is not part of it. Computed here by a scan.
"""

from __future__ import annotations

from hashlib import blake2b

from statemachine import keys
from statemachine.kv import FAMILIES, KV, META

_MASK = 2**64 - 1


def row_hash(family: str, key: bytes, value: bytes) -> int:
    """Hash of one row, 64 bits."""
    hasher = blake2b(digest_size=8, person=family.encode("ascii"))
    hasher.update(len(key).to_bytes(4, "big"))
    hasher.update(key)
    hasher.update(value)
    return int.from_bytes(hasher.digest(), "big")


def digest(kv: KV) -> dict[str, int]:
    """The sum of each family, by name."""
    sums = {}
    for family in FAMILIES:
        total = 0
        for key, value in kv.scan(family, keys.FIRST, keys.LAST):
            if family != META or key != keys.APPLIED_KEY:
                total += row_hash(family, key, value)
        sums[family] = total & _MASK
    return sums

"""The digest of the state: one additive sum per family. Equal sums at the same applied index mean equal rows.

The sum of a family is the sum of its rows' hashes modulo 2**64. Three kinds of rows are not part of it: the position to
which entries are applied (`applied`), the sums themselves (running_digest.py), and the name of the first scheduled row
(timers.py), which can be derived from other rows. This module computes the sums by a scan.
"""

from __future__ import annotations

from hashlib import blake2b

from statemachine.rows import keys, meta_keys
from statemachine.rows.kv import FAMILIES, KV, META

_MASK = 2**64 - 1
LOCAL = frozenset({meta_keys.APPLIED_KEY, meta_keys.SUMS_KEY, meta_keys.TIMER_FRONT_KEY})
"""Keys of the family META that are not part of the digest."""
_HASHERS = {family: blake2b(digest_size=8, person=family.encode("ascii")) for family in FAMILIES}


def row_hash(family: str, key: bytes, value: bytes) -> int:
    """Returns the 64-bit hash of one row."""
    hasher = _HASHERS[family].copy()
    hasher.update(len(key).to_bytes(4, "big") + key + value)
    return int.from_bytes(hasher.digest(), "big")


def counts(family: str, key: bytes) -> bool:
    """Returns True if the row is part of the digest."""
    return family != META or key not in LOCAL


def digest(kv: KV) -> dict[str, int]:
    """Returns the sum of each family, by name."""
    sums = {}
    for family in FAMILIES:
        total = 0
        for key, value in kv.scan(family, keys.FIRST, keys.LAST):
            if counts(family, key):
                total += row_hash(family, key, value)
        sums[family] = total & _MASK
    return sums

"""Checks that this version can read a database's rows."""

from __future__ import annotations

from raftlog.format_versions import BASELINE, refusal, why_above
from statemachine.rows import keys, meta_keys
from statemachine.rows.kv import KV, META, KVError


def check_format(kv: KV) -> None:
    """Raises KVError if the rows were written in another format."""
    row = kv.get(META, meta_keys.FORMAT_KEY)
    found = keys.FORMAT if row is None else keys.U32.unpack(row)[0]
    if found != keys.FORMAT:
        raise KVError(refusal("the state database", found, keys.FORMAT))


def level_in(row: bytes | None) -> int:
    """Returns the level of the cluster from the value of `meta_keys.LEVEL_KEY`; BASELINE if there is no such row."""
    return BASELINE if row is None else int(keys.U32.unpack(row)[0])


def check_level(kv: KV, known: int) -> int:
    """Returns the level of the cluster in the store. Raises KVError if it is above `known`."""
    level = level_in(kv.get(META, meta_keys.LEVEL_KEY))
    if level > known:
        raise KVError("\n".join(why_above("the state database", level, known)))
    return level

"""The check that this version can read a database's rows."""

from __future__ import annotations

from raftlog.baseline import refusal
from statemachine.rows import keys
from statemachine.rows.kv import KV, META, KVError


def check_format(kv: KV) -> None:
    """Raises KVError if the rows were written in another format."""
    row = kv.get(META, keys.FORMAT_KEY)
    found = keys.FORMAT if row is None else keys.U32.unpack(row)[0]
    if found != keys.FORMAT:
        raise KVError(refusal("the state database", found, keys.FORMAT))

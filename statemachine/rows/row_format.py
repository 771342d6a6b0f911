"""The check that this version can read a database's rows."""

from __future__ import annotations

from statemachine.rows import keys
from statemachine.rows.kv import KV, META, KVError


def check_format(kv: KV) -> None:
    """Raises KVError if the rows were written in another format."""
    row = kv.get(META, keys.FORMAT_KEY)
    found = keys.FORMAT if row is None else keys.U32.unpack(row)[0]
    if found != keys.FORMAT:
        raise KVError(
            f"the state database has row format {found}, this version reads {keys.FORMAT}: start the node with the "
            f"version that wrote it"
        )

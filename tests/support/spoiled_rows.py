"""A stopped node's state, made to differ from the others'."""

from __future__ import annotations

from pathlib import Path

from statemachine.rows import meta_keys, running_digest
from statemachine.rows.kv import CQ, META, Batch
from statemachine.rows.rocksdb_store import RocksKV


def spoil_sums(data: Path) -> None:
    """The checksum of the consume queues has another bit, in the data directory of a node that does not run."""
    kv = RocksKV(str(data / "state"))
    row = kv.get(META, meta_keys.APPLIED_KEY)
    assert row is not None
    index = int(meta_keys.APPLIED.unpack(row)[1])
    told = dict(running_digest.load(kv, index) or {})
    batch = Batch()
    batch.put(META, meta_keys.SUMS_KEY, running_digest.pack(index, told | {CQ: told[CQ] ^ 1}))
    kv.write(batch)
    kv.close()

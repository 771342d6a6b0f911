"""A stopped database, read without changing it."""

from __future__ import annotations

from pathlib import Path

from statemachine.broker_state import NOTHING_APPLIED, AppliedMark
from statemachine.checkpoint_reader import CheckpointReader
from statemachine.rows import meta_keys
from statemachine.rows.kv import META, Batch
from statemachine.rows.rocksdb_store import RocksKV


def test_the_last_applied_entry_is_told_if_there_is_one(tmp_path: Path) -> None:
    kv = RocksKV(str(tmp_path / "db"))
    kv.close()
    with CheckpointReader(tmp_path / "db") as reader:
        assert reader.mark == NOTHING_APPLIED
    kv = RocksKV(str(tmp_path / "db"))
    batch = Batch()
    batch.put(META, meta_keys.APPLIED_KEY, meta_keys.APPLIED.pack(3, 12, 4_000, 5, 6))
    kv.write(batch)
    kv.close()
    with CheckpointReader(tmp_path / "db") as reader:
        assert reader.mark == AppliedMark(3, 12, 4_000, 5, 6)

"""Reads a stopped node's state in a copy, so that the node's own files are not changed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from raftlog.storage.files import layout
from statemachine.broker_state import NOTHING_APPLIED, AppliedMark
from statemachine.rows import meta_keys
from statemachine.rows.digest import digest
from statemachine.rows.kv import META, TABLE_SUFFIX
from statemachine.rows.rocksdb_store import RocksKV


class Digest(NamedTuple):
    """The digests of a state's rows, one per family."""

    applied: int
    """Index of the last applied entry; that of NOTHING_APPLIED if there is none."""
    sums: dict[str, int]

    @property
    def text(self) -> str:
        """The digests as text: equal texts mean equal rows."""
        return " ".join(f"{family}:{total:016x}" for family, total in sorted(self.sums.items()))


@contextmanager
def opened_copy(data: Path) -> Iterator[RocksKV]:
    """Opens the state below `data` for reading. Tables are linked (they never change), everything else is copied.

    Raises KVError if it does not open.
    """
    with tempfile.TemporaryDirectory(prefix="state-copy-", dir=data.parent) as scratch:
        copy = Path(scratch) / "state"
        shutil.copytree(data / layout.STATE, copy, copy_function=_copy)
        kv = RocksKV(str(copy))
        try:
            yield kv
        finally:
            kv.close()


def read_digest(data: Path) -> Digest:
    """Returns the digests of every row in a stopped node's state. Raises KVError."""
    with opened_copy(data) as kv:
        row = kv.get(META, meta_keys.APPLIED_KEY)
        mark = NOTHING_APPLIED if row is None else AppliedMark(*meta_keys.APPLIED.unpack(row))
        return Digest(mark.index, digest(kv))


def _copy(source: str, target: str) -> None:
    if source.endswith(TABLE_SUFFIX):
        os.link(source, target)
    else:
        shutil.copyfile(source, target)

"""The disk and the database of a simulated machine: they fail on demand, lose unsynced data in a crash, and the
database keeps a running digest of its rows."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from jepsen_like.fakes.memory_fs import SECTOR, MemoryFileSystem, PowerCut, _UnsyncedWrite
from jepsen_like.fakes.memory_kv import MemoryKV
from jepsen_like.sim.machines.lane_steps import may_stop
from raftlog.work import METER
from statemachine.rows.digest import counts, digest, row_hash
from statemachine.rows.kv import Batch, KVCorruptError, ignore_corruption

_MASK = 2**64 - 1


DiskLeftover = Literal["nothing", "everything", "heads"]


class PowerLoss(NamedTuple):
    """Data that a power failure loses, prescribed exactly instead of drawn at random."""

    left: DiskLeftover
    """Part of the disk's unsynced data that survives: nothing, everything, or "heads": the first sector of each write
    and no file names."""
    batches_lost: int
    """Number of the database's last unsynced batches that are lost; a number larger than their count loses all."""


def loss_of(left: str, rows: str) -> PowerLoss:
    """Parses a power loss as scripts write it. `left` names the part of the disk's unsynced data that survives, and
    `rows` is the number of lost batches. Raises ValueError.
    """
    if left not in ("nothing", "everything", "heads"):
        raise ValueError(left)
    return PowerLoss(left, int(rows))  # type: ignore[arg-type]


class FaultyFileSystem(MemoryFileSystem):
    """A MemoryFileSystem whose next call of a kind can be made to fail, or to lose power."""

    def __init__(self) -> None:
        super().__init__()
        self.fail_next: dict[str, int] = {}
        """Call name ("fdatasync", "pwritev") -> errno with which the next such call fails. The row is removed when that
        call fails."""
        self.failed: list[str] = []
        """Calls that failed on demand since the last start, each as "call:ERRNO"."""
        self.cut_power_in = ""
        """Name of the call during which the power fails; "" if none."""

    def step(self, call: str, path: Path, half: object = None) -> OSError | None:
        """Counts a call and returns the error with which it must fail, None if it succeeds. Raises PowerCut in the call
        that was chosen for a power failure.
        """
        if call == self.cut_power_in:
            self.off = True
            self.cut_power_in = ""
            raise PowerCut(f"{call} {path}")
        may_stop()
        error = super().step(call, path, half)
        if error is None and self.fail_next and call in self.fail_next:
            code = self.fail_next.pop(call)
            self.failed.append(f"{call}:{errno.errorcode[code]}")
            return OSError(code, os.strerror(code), str(path))
        return error

    def fill(self, bytes_left: int) -> None:
        """Makes the disk full after `bytes_left` more bytes."""
        self.space_left = bytes_left

    def crash_leaving(self, left: DiskLeftover) -> None:
        """Crashes the disk as `crash` does, but keeps the given part of the unsynced data instead of a random one."""
        if left == "everything":
            self._durable_names = self._names.copy()
        self._pending_names.clear()
        for inode in self._inodes():
            if left == "nothing":
                inode.pending.clear()
            elif left == "heads":
                inode.pending = [
                    c._replace(data=c.data[:SECTOR]) for c in inode.pending if isinstance(c, _UnsyncedWrite)
                ]
            inode.sync()
        self.crash(0)  # no unsynced data remains, so this call loses nothing at random

    def restart(self) -> None:
        """Restarts the disk: no call fails on demand any more, and a full disk has space again."""
        super().restart()
        self.cut_power_in = ""
        self.fail_next.clear()
        self.failed.clear()
        self.space_left = 1 << 40


class DigestKV:
    """A MemoryKV that can crash and always knows the digest of its rows (see `statemachine.rows.digest`)."""

    def __init__(self, store: MemoryKV | None = None) -> None:
        self.on_corruption: Callable[[KVCorruptError], None] = ignore_corruption
        self.wrote: Callable[[Batch], None] = lambda batch: None
        """Function that is called with every batch before it is written."""
        self._store = store or MemoryKV(model_crash=True)
        self._sums = digest(self._store)

    @property
    def sums(self) -> dict[str, int]:
        """Returns family -> digest sum of its rows, as updated by every write."""
        return dict(self._sums)

    def recount(self) -> dict[str, int]:
        """Returns family -> digest sum of its rows, computed by a scan. It equals `sums` unless the store lost or
        invented rows."""
        return digest(self._store)

    @property
    def unsynced(self) -> int:
        """The number of batches that a crash now could lose."""
        return self._store.unsynced

    @property
    def closed(self) -> bool:
        """True if the store can no longer be used."""
        return self._store.closed

    def crash(self, kept: int) -> DigestKV:
        """Returns the store as a crash leaves it if only the first `kept` unsynced batches survive."""
        return DigestKV(self._store.crash(kept))

    # --- KV ----------------------------------------------------------------------------------------------------------

    def watch_corruption(self, told: Callable[[KVCorruptError], None]) -> None:
        """Sets the function that is called with a corruption error before the error is raised."""
        self.on_corruption = told

    def get(self, family: str, key: bytes) -> bytes | None:
        """Returns the row's value, None if there is no such row."""
        return self._store.get(family, key)

    def write(self, batch: Batch) -> None:
        """Applies the batch atomically and updates the digest."""
        may_stop()
        began = METER.units  # reading for the digest is the simulator's own work
        self.wrote(batch)
        rows: dict[tuple[str, bytes], tuple[bytes | None, bytes | None]] = {}
        for family, key, value, end in batch.ops:
            if end is None:
                self._change(rows, family, key, value)
                continue
            doomed = {row for row, _ in self._store.scan(family, key, end)}
            doomed.update(row for fam, row in rows if fam == family and key <= row < end)
            for row in sorted(doomed):
                self._change(rows, family, row, None)
        METER.units = began
        self._store.write(batch)
        for (family, key), (before, after) in rows.items():
            if before == after or not counts(family, key):
                continue
            change = (row_hash(family, key, after) if after is not None else 0) - (
                row_hash(family, key, before) if before is not None else 0
            )
            self._sums[family] = (self._sums[family] + change) & _MASK
        may_stop()

    def _change(
        self,
        rows: dict[tuple[str, bytes], tuple[bytes | None, bytes | None]],
        family: str,
        key: bytes,
        value: bytes | None,
    ) -> None:
        known = rows.get((family, key))
        rows[family, key] = (self._store.peek(family, key) if known is None else known[0], value)

    def scan(self, family: str, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Returns the rows with start <= key < end, ascending."""
        return self._store.scan(family, start, end)

    def first(self, family: str, start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """Returns the first row with start <= key < end, None if there is none."""
        return self._store.first(family, start, end)

    def seek_last(self, family: str, low: bytes, high: bytes) -> tuple[bytes, bytes] | None:
        """Returns the last row with low <= key < high, None if there is none."""
        return self._store.seek_last(family, low, high)

    def flush_wal(self) -> None:
        """Makes everything written so far survive a power loss."""
        may_stop()
        self._store.flush_wal()
        may_stop()

    def flush_tables(self) -> None:
        """Does nothing: the rows are in memory."""

    def checkpoint(self, path: str) -> None:
        """Makes a copy of the store at `path`."""
        self._store.checkpoint(path)

    def sequence(self) -> int:
        """Returns the sequence of the inner store: -1, because this store has no files that could be copied while it is
        written."""
        return self._store.sequence()

    def tables(self) -> list[str]:
        """Returns the table files of the inner store."""
        return self._store.tables()

    def close(self) -> None:
        """Closes the store."""
        self._store.close()


def lost_rows(kv: DigestKV, rng: random.Random, loss: PowerLoss | None = None) -> tuple[DigestKV, int]:
    """Returns the database after a power failure, and the number of its unsynced batches that survived. Without `loss`
    the number is random."""
    kept = rng.randint(0, kv.unsynced) if loss is None else max(0, kv.unsynced - loss.batches_lost)
    return kv.crash(kept), kept

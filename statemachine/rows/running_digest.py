"""The digest of the state, kept up to date: one sum per family as of the last applied entry, and as of the last few
marker entries.

Equal sums at one index mean equal rows there, so replicas can check that they applied the same entries. The sums are
like those of digest.py, but with a cheaper hash per row: a product of two numbers made from the CRC of the key and the
CRC of key and value, so that swapping the values of two rows changes the sum. (A blake2b hash of a long chunk would
cost as much as writing the chunk.) The sums are written in the same batch as the rows that they count, in meta under
"sums", with their index. If they are missing, or have another index because a version without them has written since,
the rows are counted once when the state is opened.

Markers are entries at which every replica remembers its sums: NOOP (the first entry of each leader) and DIGEST.
Replicas can be compared only there, because each applies at its own pace. The remembered sums are a function of the
log.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import partial

from raftlog.types import EntryType
from raftmq_wire.checksums import crc32c
from raftmq_wire.kernel import twin
from statemachine.rows import keys, meta_keys
from statemachine.rows.digest import LOCAL, counts
from statemachine.rows.kv import FAMILIES, KV, META
from statemachine.rows.write_batch import Stage

VERSION = 10
"""The version of the sums. It is raised when equal rows get other sums: by another `row_sum`, or because other rows
count (`digest.counts`). Sums of another version are not compared, and a state with such sums is counted again.

Rows that are new do not raise it, because all nodes write them from one level of the cluster on. Nor does a new column:
it changes the size of the row "sums", so the state is counted again, and a node that lacks the column is compared as if
the column were empty there."""
MARKERS = (EntryType.NOOP, EntryType.DIGEST)
REMEMBERED = 64
_MASK = 2**64 - 1
_SEEDS = {family: crc32c(family.encode()) for family in FAMILIES}
_ROW = struct.Struct(f">BQ{len(FAMILIES)}Q")

Sums = Mapping[str, int]
"""The sums of a state: family -> 64-bit number."""
Count = Callable[[KV], Sums]
"""A function that computes the sums of a store by reading all rows."""
Progress = Callable[[str, int], object]
"""A function that is called with the family being counted, and the number of rows counted so far."""
PROGRESS_ROWS = 1 << 16
"""The number of rows between two calls of a Progress."""


class RunningSums:
    """The sums of the state, updated with each batch. The apply thread changes them; any thread may use `totals`,
    `newest` and `at`."""

    def __init__(self, kv: KV, applied_index: int, count: Count) -> None:
        """`count` is called if the store has no sums as of `applied_index`."""
        self._kv = kv
        known = load(kv, applied_index) if applied_index >= 0 else dict.fromkeys(FAMILIES, 0)
        self.totals: Sums = count(kv) if known is None else known
        """The sums as of the last applied entry."""
        self._staged: Sums = self.totals
        self._marked: dict[int, Sums] = {}
        self._history: Mapping[int, Sums] = {}
        """The sums as of the last markers, by entry index. Replaced as a whole."""

    def at(self, index: int) -> Sums | None:
        """Returns the sums as of the marker entry `index`. Returns None if this process has not applied the entry, it
        is not a marker, or REMEMBERED later markers were applied since."""
        return self._history.get(index)

    @property
    def newest(self) -> int:
        """Index of the newest marker whose sums are known; -1 if there is none."""
        return max(self._history, default=-1)

    def mark(self, stage: Stage, index: int) -> None:
        """Remembers the sums as of the marker entry `index`, whose rows were just staged."""
        self._marked[index] = self._after(stage)

    def stage(self, stage: Stage, index: int) -> None:
        """Adds the new sums to the batch, after the rows of all its entries up to `index`."""
        self._staged = self._after(stage)
        stage.put(META, meta_keys.SUMS_KEY, pack(index, self._staged))

    def publish(self) -> None:
        """Shows the new sums to readers; called after the batch is written."""
        self.totals = self._staged
        if self._marked:
            history = {**self._history, **self._marked}
            self._history = {index: history[index] for index in sorted(history)[-REMEMBERED:]}
            self._marked = {}

    def _after(self, stage: Stage) -> Sums:
        totals = dict(self.totals)
        for family, change in changes(self._kv, stage):
            totals[family] = (totals.get(family, 0) + change) & _MASK
        return totals


def row_sum(family: str, key: bytes, value: bytes) -> int:
    """Returns the 64-bit number that one row adds to its family's sum."""
    of_key: int = crc32c(key, _SEEDS[family])
    of_row: int = crc32c(value, of_key)
    return (of_row + 1) * ((of_row ^ of_key) + 1)


def _silent(family: str, rows: int) -> None:
    """Does nothing; the default `Progress`, for callers that need none."""


def count(kv: KV, progress: Progress = _silent, progress_rows: int = PROGRESS_ROWS) -> dict[str, int]:
    """Computes the sums by a scan, which takes some 2 us per row. The running sums must be equal to them. Calls
    `progress` after each `progress_rows` rows."""
    found, rows = {}, 0
    for family in FAMILIES:
        total = 0
        for key, value in kv.scan(family, keys.FIRST, keys.LAST):
            if counts(family, key):
                total += row_sum(family, key, value)
            rows += 1
            if not rows % progress_rows:
                progress(family, rows)
        found[family] = total & _MASK
    return found


def changes(kv: KV, stage: Stage) -> list[tuple[str, int]]:
    """Returns (family, change) pairs: the changes of the families' sums that writing `stage` over `kv` makes. A family
    may occur several times."""
    found = []
    for family, rows in stage.rows.items():
        if not rows:
            continue
        counted = rows if family != META else {key: value for key, value in rows.items() if key not in LOCAL}
        found.append((family, sum_of_changes(counted, stage.before[family], partial(kv.get, family), _SEEDS[family])))
    found += [(family, -row_sum(family, key, value)) for family, key, value in stage.removed(kv)]
    return found


@twin
def sum_of_changes(
    rows: dict[bytes, bytes | None],
    known: dict[bytes, bytes | None],
    read: Callable[[bytes], bytes | None],
    seed: int,
) -> int:
    """Returns the change in a family's sum that writing `rows` makes, modulo 2**64. `known`: the values that rows had
    before. For any other key `read` returns the value before, which is added to `known`, because a run with several
    markers needs it again. `seed`: the family's seed of the CRCs."""
    change = 0
    for key, value in rows.items():
        if key not in known:
            known[key] = read(key)
        before = known[key]
        # `row_sum` of both values, written out here because every entry changes a dozen rows
        of_key: int = crc32c(key, seed)
        if before is not None:
            of_row: int = crc32c(before, of_key)
            change -= (of_row + 1) * ((of_row ^ of_key) + 1)
        if value is not None:
            of_row = crc32c(value, of_key)
            change += (of_row + 1) * ((of_row ^ of_key) + 1)
    return change & _MASK


def pack(index: int, sums: Sums) -> bytes:
    """Packs the "sums" row: version u8 | index u64 | a sum u64 for each of FAMILIES, in that order."""
    return _ROW.pack(VERSION, index, *[sums[family] for family in FAMILIES])


def load(kv: KV, applied_index: int) -> Sums | None:
    """Returns the sums of the "sums" row if they are as of `applied_index`, else None."""
    row = kv.get(META, meta_keys.SUMS_KEY)
    if row is None or len(row) != _ROW.size:
        return None
    version, index, *sums = _ROW.unpack(row)
    return dict(zip(FAMILIES, sums, strict=True)) if (version, index) == (VERSION, applied_index) else None

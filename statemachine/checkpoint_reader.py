"""Reads the rows of a RocksDB checkpoint without changing a byte of it: for backups, also on read-only media.

RocksDB and its Python binding write a log and a settings file next to the database that they open. The reader therefore
opens a folder of symbolic links to the checkpoint's files.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import cast

from rocksdict import AccessType, DBRecoveryMode, Options, Rdict, RdictIter

from raftlog.format_versions import refusal, why_above
from raftlog.membership import Membership
from statemachine.broker_state import NOTHING_APPLIED, AppliedMark
from statemachine.cluster_wide.members import unpack_row
from statemachine.levels import LEVEL
from statemachine.rows import keys, meta_keys
from statemachine.rows.digest import digest
from statemachine.rows.kv import FAMILIES, KV, META, KVCorruptError, KVError
from statemachine.rows.rocksdb_log_reader import check_manifest
from statemachine.rows.rocksdb_store import is_damage
from statemachine.rows.row_format import level_in

_SETTINGS = "rocksdict-config.json"


class CheckpointReader:
    """An open checkpoint or stopped database, for use in a `with` statement.

    `strict`: a WAL that ends in the middle of a record counts as damage too, because a flipped bit may be the cause.
    Raises KVCorruptError if the database is damaged, KVError if it cannot be opened, or has a format or a level that
    this version does not know.
    """

    def __init__(self, path: Path, *, strict: bool = False) -> None:
        self._path = path
        self._strict = strict
        self._links = Path(tempfile.mkdtemp(prefix="raftmq-read-"))
        try:
            for file in path.iterdir():
                if file.name != _SETTINGS:  # RocksDB writes this file at every opening, and would write through a link
                    (self._links / file.name).symlink_to(file.absolute())
            self._open()
        except KVError:
            shutil.rmtree(self._links, ignore_errors=True)
            raise
        except Exception as error:
            shutil.rmtree(self._links, ignore_errors=True)
            kind = KVCorruptError if is_damage(error) else KVError
            raise kind(f"the state database at {path} cannot be opened: {error}") from error

    def _open(self) -> None:
        check_manifest(self._path)
        names = set(Rdict.list_cf(str(self._links), Options(raw_mode=True))) - {"default"}
        if unknown := sorted(names - set(FAMILIES)):
            raise KVError(
                f"the state database at {self._path} has column families this version does not know "
                f"({', '.join(unknown)}): a newer RaftMQ wrote it; use that version"
            )
        families = {name: Options(raw_mode=True) for name in names}
        options = Options(raw_mode=True)
        options.create_if_missing(False)
        if self._strict:
            options.set_wal_recovery_mode(DBRecoveryMode.absolute_consistency())
        access = AccessType.read_only(error_if_log_file_exist=False)
        self._db = Rdict(str(self._links), options, column_families=families, access_type=access)
        self._views: dict[str, Rdict] = {name: self._db.get_column_family(name) for name in names}
        row = self._views[META].get(meta_keys.FORMAT_KEY) if META in names else None
        found = keys.FORMAT if row is None else keys.U32.unpack(row)[0]
        if found != keys.FORMAT:
            self.close()
            raise KVError(refusal(f"the state database at {self._path}", found, keys.FORMAT))
        level = self.level
        if level > LEVEL:
            self.close()
            raise KVError("\n".join(why_above(f"the state database at {self._path}", level, LEVEL)))

    def get(self, family: str, key: bytes) -> bytes | None:
        """Returns the value of the row; None if the checkpoint has no such row or no such family."""
        value: bytes | None = self._views[family].get(key) if family in self._views else None
        return value

    @property
    def level(self) -> int:
        """The level of the cluster as of the checkpoint."""
        return level_in(self._views[META].get(meta_keys.LEVEL_KEY) if META in self._views else None)

    @property
    def mark(self) -> AppliedMark:
        """The last entry that was applied before the checkpoint."""
        row = self._views[META].get(meta_keys.APPLIED_KEY) if META in self._views else None
        return NOTHING_APPLIED if row is None else AppliedMark(*meta_keys.APPLIED.unpack(row))

    @property
    def membership(self) -> Membership | None:
        """The newest MEMBERSHIP entry that was applied before the checkpoint; None if there is none."""
        row = self._views[META].get(meta_keys.MEMBERSHIP_KEY) if META in self._views else None
        return None if row is None else unpack_row(row)

    def rows(self, family: str) -> Iterator[tuple[bytes, bytes]]:
        """Yields every row of the family, ascending; none if the checkpoint is older than the family."""
        if family not in self._views:
            return
        cursor = self._views[family].iter()
        cursor.seek_to_first()
        yield from self._from_here(family, cursor, None)

    def _from_here(self, family: str, cursor: RdictIter, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yields the family's rows from the cursor up to the key `end`, exclusive; all if `end` is None."""
        while cursor.valid():
            key: bytes = cursor.key()
            if end is not None and key >= end:
                return
            yield key, cursor.value()
            cursor.next()
        self._check(family, cursor)

    def _check(self, family: str, cursor: RdictIter) -> None:
        """Raises KVCorruptError if the cursor stopped because of a damaged block; a cursor stops there just as at the
        last row."""
        try:
            cursor.status()
        except Exception as error:
            raise KVCorruptError(f"family {family} of the database at {self._path} is damaged: {error}") from error

    def tables(self) -> list[str]:
        """Returns the file names of the tables (SST files) that are in use."""
        return [file["name"].rpartition("/")[2] for file in self._db.live_files()]

    def digest(self) -> dict[str, int]:
        """Returns the sum of each family, as `statemachine.rows.digest.digest` computes it."""
        return digest(cast("KV", self))  # `digest` calls only `scan` of this object

    def scan(self, family: str, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields rows with start <= key < end, ascending; none of a family that the checkpoint does not have."""
        if family not in self._views:
            return
        cursor = self._views[family].iter()
        cursor.seek(start)
        yield from self._from_here(family, cursor, end)

    def seek_last(self, family: str, low: bytes, high: bytes) -> tuple[bytes, bytes] | None:
        """Returns the last row with low <= key < high; None if there is none, or no such family."""
        if family not in self._views:
            return None
        cursor = self._views[family].iter()
        cursor.seek_for_prev(high)
        if cursor.valid() and cursor.key() == high:
            cursor.prev()
        if not cursor.valid():
            self._check(family, cursor)
            return None
        key: bytes = cursor.key()
        return None if key < low else (key, cursor.value())

    def close(self) -> None:
        """Closes the database and removes the links; idempotent."""
        for view in self._views.values():
            view.close()
        self._views = {}
        self._db.close()
        shutil.rmtree(self._links, ignore_errors=True)

    def __enter__(self) -> CheckpointReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""RocksKV's own part: opening, refusing to open, checkpoints, letting go of its lock."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options, Rdict

from statemachine.rows.kv import CQ, FAMILIES, META, Batch, KVCorruptError, KVError
from statemachine.rows.rocksdb_store import STALLS_MAX, TABLE_FORMAT, RocksKV


def written(path: Path, count: int = 3) -> RocksKV:
    kv = RocksKV(str(path))
    batch = Batch()
    for n in range(count):
        batch.put(CQ, n.to_bytes(4, "big"), b"v" * 32)
    kv.write(batch)
    return kv


def test_rows_are_there_after_reopening(tmp_path: Path) -> None:
    written(tmp_path / "deep" / "db").close()
    kv = RocksKV(str(tmp_path / "deep" / "db"))
    assert kv.get(CQ, b"\0\0\0\2") == b"v" * 32
    kv.close()


def test_closing_frees_the_lock_although_scans_are_open(tmp_path: Path) -> None:
    kv = written(tmp_path / "db")
    scan = kv.scan(CQ, b"", b"\xff")
    next(scan)
    kv.close()
    assert list(scan) == []
    RocksKV(str(tmp_path / "db")).close()


def test_a_database_in_use_is_refused(tmp_path: Path) -> None:
    kv = written(tmp_path / "db")
    with pytest.raises(KVError, match=r"(?s)db\n.*stop that one, or use another directory"):
        RocksKV(str(tmp_path / "db"))
    assert kv.get(CQ, b"\0\0\0\0") is not None
    kv.close()


def test_a_database_of_a_newer_version_is_refused_untouched(tmp_path: Path) -> None:
    written(tmp_path / "db").close()
    options = Options(raw_mode=True)
    families = {name: Options(raw_mode=True) for name in Rdict.list_cf(str(tmp_path / "db"), options)}
    newer = Rdict(str(tmp_path / "db"), options, column_families=families)
    newer.create_column_family("later", Options(raw_mode=True))
    newer.close()
    del newer
    before = sorted(path.name for path in (tmp_path / "db").iterdir())
    with pytest.raises(KVError, match=r"does not know \(later\).*newer RaftMQ"):
        RocksKV(str(tmp_path / "db"))
    assert sorted(path.name for path in (tmp_path / "db").iterdir()) == before


def test_a_path_that_cannot_be_a_database_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(KVError, match="writable"):
        RocksKV(str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "not a folder"


def test_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "db").close()
    (tmp_path / "db" / "CURRENT").write_text("MANIFEST-999999\n")
    with pytest.raises(KVCorruptError, match=r"raftmq fsck .*"):
        RocksKV(str(tmp_path / "db"))


def test_a_checkpoint_opens_as_the_store_of_that_moment(tmp_path: Path) -> None:
    kv = written(tmp_path / "db")
    kv.checkpoint(str(tmp_path / "copy"))
    batch = Batch()
    batch.put(META, b"later", b"1")
    kv.write(batch)
    copy = RocksKV(str(tmp_path / "copy"))
    assert copy.get(CQ, b"\0\0\0\2") == b"v" * 32
    assert copy.get(META, b"later") is None
    at = f"making a checkpoint at {tmp_path / 'copy'} of the state database at {tmp_path / 'db'} failed: "
    with pytest.raises(KVError, match=re.escape(at)):
        kv.checkpoint(str(tmp_path / "copy"))
    copy.close()
    kv.close()


def test_what_was_flushed_survives_losing_the_rest(tmp_path: Path, copy_of: object) -> None:
    kv = written(tmp_path / "db")
    kv.flush_wal()
    copy_of(tmp_path / "db", tmp_path / "copy")  # type: ignore[operator]
    kv.close()
    copy = RocksKV(str(tmp_path / "copy"))
    assert len(list(copy.scan(CQ, b"", b"\xff"))) == 3
    copy.close()


def damaged_table(path: Path) -> RocksKV:
    """A database with 400 rows in one table, of which the middle is rotten."""
    kv = written(path, 400)
    kv.checkpoint(str(path.with_name("flushes")))
    kv.close()
    (table,) = [file for file in path.iterdir() if file.suffix == ".sst" and file.stat().st_size > 8192]
    data = bytearray(table.read_bytes())
    data[6000] ^= 4
    table.write_bytes(data)
    return RocksKV(str(path))


def test_a_scan_that_meets_damage_raises_instead_of_ending(tmp_path: Path) -> None:
    kv = damaged_table(tmp_path / "db")
    told: list[KVCorruptError] = []
    kv.watch_corruption(told.append)
    seen: list[tuple[bytes, bytes]] = []
    with pytest.raises(KVCorruptError, match="checksum"):
        seen.extend(kv.scan(CQ, b"", b"\xff" * 8))
    with pytest.raises(KVCorruptError, match="checksum"):
        seen.extend(kv.scan(CQ, (150).to_bytes(4, "big"), b"\xff" * 8))
    assert len(told) == 2
    assert len(list(kv.scan(CQ, b"", (10).to_bytes(4, "big")))) == 10, "sound blocks are still read"
    assert len(told) == 2
    kv.close()


def test_every_read_that_meets_damage_raises_and_tells(tmp_path: Path) -> None:
    kv = damaged_table(tmp_path / "db")
    told: list[KVCorruptError] = []
    kv.watch_corruption(told.append)
    raised = 0
    for n in range(400):
        key = n.to_bytes(4, "big")
        for read in (
            lambda: kv.get(CQ, key),  # noqa: B023 - called here
            lambda: kv.seek_last(CQ, key, key + b"\0"),  # noqa: B023
            lambda: kv.first(CQ, key, key + b"\0"),  # noqa: B023
        ):
            try:
                assert read() is not None, "a row is never left out in silence"
            except KVCorruptError:
                raised += 1
    assert raised >= 2
    assert len(told) == raised
    kv.close()


def test_tables_are_the_complete_ones(tmp_path: Path) -> None:
    kv = written(tmp_path / "db")
    assert kv.tables() == []
    kv.checkpoint(str(tmp_path / "copy"))
    assert kv.tables() == sorted(file.name for file in (tmp_path / "db").glob("*.sst"))
    kv.close()


class Stalling:
    """A database that refuses writes for a while, as RocksDB does while its tables are flushed."""

    def __init__(self, database: Any, refusals: int) -> None:
        self._database = database
        self.refusals = refusals
        self.waited = 0
        """Writes that RocksDB was told to hold back as long as it has to."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def write(self, batch: Any, options: Any = None) -> None:
        if options is not None:
            self.waited += 1
            self._database.write(batch, options)
        elif self.refusals:
            self.refusals -= 1
            raise Exception("Result incomplete: Write stall")
        else:
            self._database.write(batch)


@pytest.mark.parametrize(("refusals", "waited"), [(0, 0), (3, 0), (STALLS_MAX, 1)])
def test_a_write_that_would_hold_the_interpreter_waits_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusals: int, waited: int
) -> None:
    kv = written(tmp_path)
    database = Stalling(kv._db, refusals)
    monkeypatch.setattr(kv, "_db", database)
    flushed: list[int] = []
    monkeypatch.setattr(kv, "flush_tables", lambda: flushed.append(database.refusals))
    batch = Batch()
    batch.put(CQ, b"stalled", b"v")
    kv.write(batch)
    assert (kv.get(CQ, b"stalled"), len(flushed), database.waited) == (b"v", refusals, waited)
    monkeypatch.undo()
    kv.close()


def test_the_manifest_begins_anew_before_it_is_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statemachine.rows.rocksdb_store.MANIFEST_BYTES_MAX", 4096)
    kv = written(tmp_path)
    for number in range(100):
        batch = Batch()
        batch.put(CQ, b"%d" % number, bytes(100))
        kv.write(batch)
        kv.flush_tables()
    manifests = [path.stat().st_size for path in tmp_path.glob("MANIFEST-*")]
    assert sum(manifests) < 2 * 4096, manifests
    kv.close()


def test_the_format_of_table_files_is_pinned_for_every_family(tmp_path: Path) -> None:
    written(tmp_path / "db").close()
    said = {options_line(path, "format_version") for path in (tmp_path / "db").glob("OPTIONS-*")}
    assert said == {(str(TABLE_FORMAT),) * (len(FAMILIES) + 1)}


def options_line(path: Path, key: str) -> tuple[str, ...]:
    """Every value of that key in one of RocksDB's option files."""
    return tuple(re.findall(rf"^\s*{key}=(\S+)$", path.read_text(), re.MULTILINE))


OLDER_ROCKSDICT = "0.3.24"
"""The newest rocksdict with an older RocksDB (9.7.3) than the one that requirements/base.lock pins."""
REOPEN = """
import sys
from rocksdict import Options, Rdict
path, options = sys.argv[1], Options(raw_mode=True)
families = {name: Options(raw_mode=True) for name in Rdict.list_cf(path, options)}
db = Rdict(path, options, column_families=families)
rows = db.get_column_family("cq")
print(len(list(rows.keys())))
rows[b"older"] = b"its row"
rows.flush()
db.close()
"""


@pytest.mark.slow
def test_an_older_rocksdict_reads_the_directory_and_this_one_reads_what_it_wrote(tmp_path: Path) -> None:
    """Needs a package index."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--target", str(tmp_path / "older"), f"rocksdict=={OLDER_ROCKSDICT}"], check=True)
    path = tmp_path / "db"
    kv = written(path, 500)
    kv.flush_tables()
    kv.close()
    older = os.environ | {"PYTHONPATH": str(tmp_path / "older")}
    done = subprocess.run([sys.executable, "-c", REOPEN, str(path)], env=older, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("500\n", 0), done.stderr
    said = {options_line(each, "rocksdb_version") for each in path.glob("OPTIONS-*")}
    assert len(said) == 2, "it is of another RocksDB"
    kv = RocksKV(str(path))
    assert kv.get(CQ, b"older") == b"its row"
    kv.close()

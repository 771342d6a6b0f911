"""RocksDB's log files, built by hand as its format says, and one that RocksDB wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from google_crc32c import value as crc32c

from statemachine.checkpoint_reader import CheckpointReader
from statemachine.rows.kv import CQ, Batch, KVCorruptError
from statemachine.rows.rocksdb_log_reader import BLOCK_SIZE, bad_records, records
from statemachine.rows.rocksdb_store import RocksKV
from tests.support.rows import each_row

FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
RECYCLED = 4
"""Added to those: the header also holds the number of the log, so that what a former one left is told apart."""
LOG_NUMBER = (77).to_bytes(4, "little")
OF_THE_FILE = {9: False, 10: False, 11: True, 130: False, 131: True}
"""Types of records that describe the file -> whether they hold the number of the log."""


def record(kind: int, data: bytes, *, numbered: bool | None = None) -> bytes:
    covered = bytes([kind]) + (LOG_NUMBER if numbered or (numbered is None and 5 <= kind <= 8) else b"") + data
    crc = crc32c(covered)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return masked.to_bytes(4, "little") + len(data).to_bytes(2, "little") + covered


@pytest.mark.parametrize("recycled", [0, RECYCLED])
def test_records_are_put_together_from_their_pieces(recycled: int) -> None:
    whole = record(FULL + recycled, b"one")
    pieces = [record(kind + recycled, data) for kind, data in ((FIRST, b"t"), (MIDDLE, b"w"), (LAST, b"o"))]
    data = whole + b"".join(pieces)
    assert bad_records(data) == []
    assert list(records(data)) == [(len(whole), b"one"), (len(data), b"two")]


@each_row(("kind", "numbered"), OF_THE_FILE.items())
def test_what_describes_the_file_is_known_and_holds_no_data_of_a_user(kind: int, numbered: bool) -> None:
    about = record(kind, b"lz4", numbered=numbered)
    data = about + record(FULL, b"one")
    assert bad_records(data) == []
    assert list(records(data)) == [(len(about), b""), (len(data), b"one")]


def test_a_block_ends_in_zeroes_where_no_header_fits() -> None:
    first = record(FULL, b"x" * (BLOCK_SIZE - 7 - 6))
    data = first + bytes(6) + record(FULL, b"next")
    assert bad_records(data) == []
    assert [found.data[-4:] for found in records(data)] == [b"xxxx", b"next"]
    (bad,) = bad_records(first + b"\0\0\1\0\0\0" + record(FULL, b"next"))
    assert (bad.offset, bad.size, bad.why) == (len(first), 6, "bytes that should be zero are not")
    assert not bad.last, "what follows is sound"


@each_row("kind", range(1, 9))
def test_any_flipped_byte_is_found_in_its_record(kind: int) -> None:
    before, wrong = record(FULL, b"before"), record(kind, b"wrong")
    for at in range(len(wrong)):
        data = bytearray(before + wrong)
        data[len(before) + at] ^= 0x55
        assert [(bad.offset, bad.last) for bad in bad_records(bytes(data))] == [(len(before), True)], at


def test_types_that_do_not_exist_are_said_to() -> None:
    (bad,) = bad_records(record(12, b"x"))
    assert bad.why == "a record of type 12, which does not exist"


def test_what_was_never_written_is_not_wrong() -> None:
    data = record(FULL, b"one") + bytes(100)
    assert bad_records(data) == []
    assert [found.data for found in records(data)] == [b"one"]


def test_the_log_that_rocksdb_wrote_is_sound_and_holds_the_rows(tmp_path: Path) -> None:
    kv = RocksKV(str(tmp_path / "db"))
    for number in range(50):
        batch = Batch()
        batch.put(CQ, b"key%d" % number, b"value%d" % number * 300)
        kv.write(batch)
    kv.flush_wal()
    logs = [path.read_bytes() for path in sorted((tmp_path / "db").glob("*.log"))]
    kv.close()
    assert [bad_records(data) for data in logs] == [[] for _ in logs]
    rows = [found.data for data in logs for found in records(data) if b"key" in found.data]
    assert len(rows) == 50
    assert all(b"key%d" % number in row and b"value%d" % number * 300 in row for number, row in enumerate(rows))


@each_row("kind", [2, 5, 6, 7, 8, 11, 255])
def test_a_manifest_that_rocksdb_would_read_for_ever_is_refused(tmp_path: Path, kind: int) -> None:
    """Types 5 to 8 and 11 are those of a recycled log: RocksDB 10 reads such a record of a MANIFEST again and again."""
    path = tmp_path / "db"
    RocksKV(str(path)).close()
    (manifest,) = path.glob("MANIFEST-*")
    sound = manifest.read_bytes()
    starts = [0, *(found.end for found in records(sound))][:-1]
    for at in (starts[len(starts) // 2], starts[-1]):
        manifest.write_bytes(sound[: at + 6] + bytes([kind]) + sound[at + 7 :])
        with pytest.raises(KVCorruptError, match=r"MANIFEST|Corruption"):
            RocksKV(str(path))
        with pytest.raises(KVCorruptError, match=r"MANIFEST|Corruption"):
            CheckpointReader(path)
    manifest.write_bytes(sound)
    RocksKV(str(path)).close()

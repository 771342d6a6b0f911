"""The contract of both stores: the same operations give the same rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.work import METER, ROW_UNITS, SEEK_UNITS
from statemachine.rows.kv import CQ, FAMILIES, KV, META, Batch, KVError
from statemachine.rows.rocksdb_store import SKIPPED_MAX, SKIPPED_UNITS, RocksKV
from tests.support.rows import each_row


def put(kv: KV, family: str, *rows: tuple[bytes, bytes]) -> None:
    batch = Batch()
    for key, value in rows:
        batch.put(family, key, value)
    kv.write(batch)


def test_get_finds_only_its_family(kv: KV) -> None:
    put(kv, CQ, (b"k", b"v"))
    assert kv.get(CQ, b"k") == b"v"
    assert kv.get(META, b"k") is None
    assert kv.get(CQ, b"j") is None


def test_empty_values_and_any_bytes_are_rows(kv: KV) -> None:
    put(kv, CQ, (b"\x00", b""), (b"\xff" * 20, bytes(range(256))))
    assert list(kv.scan(CQ, b"", b"\xff" * 64)) == [(b"\x00", b""), (b"\xff" * 20, bytes(range(256)))]


def test_later_steps_of_a_batch_win(kv: KV) -> None:
    put(kv, CQ, (b"a", b"old"), (b"b", b"old"))
    batch = Batch()
    batch.put(CQ, b"c", b"1")
    batch.delete_range(CQ, b"a", b"d")
    batch.put(CQ, b"b", b"2")
    batch.put(CQ, b"e", b"3")
    batch.delete(CQ, b"e")
    kv.write(batch)
    assert list(kv.scan(CQ, b"", b"z")) == [(b"b", b"2")]


def test_scan_is_half_open_and_ascending(kv: KV) -> None:
    put(kv, CQ, *((bytes([n]), b"") for n in (5, 1, 3, 2)))
    assert [key for key, _ in kv.scan(CQ, b"\x01", b"\x05")] == [b"\x01", b"\x02", b"\x03"]
    assert list(kv.scan(CQ, b"\x06", b"\x07")) == []
    assert list(kv.scan(CQ, b"\x05", b"\x01")) == []


@pytest.mark.parametrize("count", [4, 200])
def test_scan_shows_the_moment_it_was_called(kv: KV, count: int) -> None:
    put(kv, CQ, *((bytes([n]), b"old") for n in range(count)))
    rows = kv.scan(CQ, b"", b"\xff")
    first = next(rows)
    batch = Batch()
    batch.delete_range(CQ, b"", b"\xff")
    batch.put(CQ, b"\x02\x01", b"new")
    kv.write(batch)
    assert [first, *rows] == [(bytes([n]), b"old") for n in range(count)]


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [
        (b"a", b"z", b"f"),
        (b"a", b"f", b"d"),
        (b"a", b"e", b"d"),
        (b"d", b"e", b"d"),
        (b"e", b"f", None),
        (b"a", b"b", None),
        (b"g", b"z", None),
        (b"d", b"d", None),
    ],
)
def test_seek_last(kv: KV, low: bytes, high: bytes, found: bytes | None) -> None:
    put(kv, CQ, (b"b", b"1"), (b"d", b"2"), (b"f", b"3"))
    row = kv.seek_last(CQ, low, high)
    assert (row and row[0]) == found


@each_row(
    ("low", "high", "found", "skips"),
    [
        (b"\x05", b"\x06", None, True),
        (b"\x02", b"\x06", b"\x02live", True),
        (b"\x04", b"\x05", None, True),
        (b"\x05", b"\x07live", None, True),
        (b"\x05", b"\x08", b"\x07live", False),
    ],
    ids=["removed rows below", "among them", "nothing but them", "the upper end has a row", "a row before them"],
)
def test_seek_last_passes_few_removed_rows_at_once(
    tmp_path: Path, low: bytes, high: bytes, found: bytes | None, skips: bool
) -> None:
    """A queue without rows may lie behind a topic whose million rows were deleted."""
    kv = RocksKV(str(tmp_path / "kv"))
    removed = [b"\x04%06d" % n for n in range(4 * SKIPPED_MAX)]
    put(kv, CQ, *((key, b"") for key in (b"\x02live", *removed, b"\x07live")))
    batch = Batch()
    for key in removed:
        batch.delete(CQ, key)
    kv.write(batch)
    before = METER.units
    row = kv.seek_last(CQ, low, high)
    assert (row and row[0]) == found
    assert (METER.units - before >= SKIPPED_UNITS) == skips
    kv.close()


def test_seek_last_in_an_empty_family(kv: KV) -> None:
    assert kv.seek_last(CQ, b"", b"\xff") is None


def test_unknown_families_are_refused_and_change_nothing(kv: KV) -> None:
    batch = Batch()
    batch.put(CQ, b"k", b"v")
    batch.put("nope", b"k", b"v")
    with pytest.raises(KVError, match="nope"):
        kv.write(batch)
    with pytest.raises(KVError, match="nope"):
        kv.get("nope", b"k")
    assert kv.get(CQ, b"k") is None


def test_a_closed_store_says_so(kv: KV) -> None:
    kv.close()
    kv.close()
    batch = Batch()
    batch.put(CQ, b"k", b"v")
    for use in (lambda: kv.get(CQ, b""), lambda: kv.write(batch), kv.flush_wal, lambda: kv.scan(CQ, b"", b"z")):
        with pytest.raises(KVError, match="closed"):
            use()


keys = st.binary(max_size=3)
steps = st.one_of(
    st.tuples(st.just("put"), keys, st.binary(max_size=4)),
    st.tuples(st.just("delete"), keys),
    st.tuples(st.just("delete_range"), keys, keys),
)
batches = st.lists(st.tuples(st.sampled_from(FAMILIES[:2]), steps), max_size=8)


@pytest.fixture(scope="module", params=["memory", "rocks"])
def shared(request: pytest.FixtureRequest) -> Iterator[KV]:
    """One store for all examples (opening RocksDB for each would take the whole budget)."""
    with tempfile.TemporaryDirectory() as folder:
        store: KV = MemoryKV() if request.param == "memory" else RocksKV(str(Path(folder) / "db"))
        yield store
        store.close()


@settings(max_examples=120, deadline=None)
@given(log=st.lists(batches, max_size=6), ranges=st.lists(st.tuples(keys, keys), max_size=5))
def test_any_batches_match_a_dict(
    shared: KV, log: list[list[tuple[str, tuple[Any, ...]]]], ranges: list[tuple[bytes, bytes]]
) -> None:
    empty(shared)
    model: dict[str, dict[bytes, bytes]] = {name: {} for name in FAMILIES}
    for steps_of_batch in log:
        batch = Batch()
        for family, (name, *arguments) in steps_of_batch:
            getattr(batch, name)(family, *arguments)
            apply_to_model(model[family], name, arguments)
        shared.write(batch)
    for family in FAMILIES[:2]:
        rows = sorted(model[family].items())
        assert list(shared.scan(family, b"", b"\xff" * 9)) == rows
        for low, high in ranges:
            within = [row for row in rows if low <= row[0] < high]
            assert list(shared.scan(family, low, high)) == within
            assert shared.seek_last(family, low, high) == (within[-1] if within else None)
            assert shared.first(family, low, high) == (within[0] if within else None)
            assert shared.get(family, low) == model[family].get(low)


def apply_to_model(rows: dict[bytes, bytes], name: str, arguments: list[bytes]) -> None:
    if name == "put":
        rows[arguments[0]] = arguments[1]
    elif name == "delete":
        rows.pop(arguments[0], None)
    else:
        for key in [key for key in rows if arguments[0] <= key < arguments[1]]:
            del rows[key]


def empty(kv: KV) -> None:
    batch = Batch()
    for family in FAMILIES:
        batch.delete_range(family, b"", b"\xff" * 9)
    kv.write(batch)


def test_every_call_charges_the_meter_before_its_rows_are_used(kv: KV) -> None:
    def units(work: Callable[[], object]) -> int:
        before = METER.units
        work()
        return METER.units - before

    assert units(lambda: put(kv, CQ, *((bytes([n]), b"v") for n in range(100)))) == SEEK_UNITS + 100 * ROW_UNITS
    assert units(lambda: put(kv, META, (b"large", bytes(8192)))) == SEEK_UNITS + ROW_UNITS + 8
    assert units(lambda: kv.get(CQ, b"\x05")) == units(lambda: kv.get(CQ, b"none")) == ROW_UNITS
    assert units(lambda: kv.get(META, b"large")) == ROW_UNITS + 8
    assert units(lambda: kv.first(CQ, b"", b"z")) == units(lambda: kv.seek_last(CQ, b"", b"z")) == SEEK_UNITS
    for end in (b"\x10", b"\xff"):  # few rows, and more than are read at once
        rows = iter(kv.scan(CQ, b"", end))
        assert units(lambda rows=rows: [next(rows) for _ in range(3)]) == 3 * ROW_UNITS  # type: ignore[misc]


def test_a_removed_range_is_charged_as_one_row(kv: KV) -> None:
    """A scan that reads the rows in it, for the sums, charges them."""
    batch = Batch()
    batch.delete_range(CQ, b"a", b"z")
    before = METER.units
    kv.write(batch)
    assert METER.units - before == SEEK_UNITS + ROW_UNITS

"""The format of index files: what was written is read, by ranges; no changed or missing byte goes unnoticed."""

from __future__ import annotations

from bisect import bisect_left
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statemachine.index_file.index_check import check_index
from statemachine.index_file.index_format import (
    BLOCK_SIZE,
    ITEMS,
    IndexFileError,
    IndexMeta,
    QueueRun,
    file_name,
    key_row,
    pack_keys,
    parse_file_name,
)
from statemachine.index_file.index_reader import IndexFile, drive, open_index
from statemachine.index_file.index_writer import IndexWriter
from statemachine.message_index import key_hash
from statemachine.payload import ITEM

CLUSTER = UUID(int=7)
SIZE = 100
"""Bytes of a stored message."""


class Wanted(NamedTuple):
    """The wanted content of a file, kept in dicts."""

    meta: IndexMeta
    queues: dict[tuple[int, int], tuple[int, bytes]]
    """(first offset, items)."""
    keys: dict[tuple[int, bytes], list[int]]
    """(topic, key) -> positions, ascending."""


def drawn(seed: int, messages: int, queues: int) -> Wanted:
    """Messages back to back from position 1000 on, each in some queue, most of them with a key."""
    rng = Random(seed)
    names = sorted({(rng.randrange(1, 5), rng.randrange(2**20)) for _ in range(queues)})
    firsts = {name: rng.randrange(2**40) for name in names}
    items: dict[tuple[int, int], list[bytes]] = {}
    keys: dict[tuple[int, bytes], list[int]] = {}
    position = 1000
    for number in range(messages):
        name = rng.choice(names)
        items.setdefault(name, []).append(ITEM.pack(position, SIZE, number, -number, 5000 + number))
        if rng.random() < 0.8:
            keys.setdefault((name[0], b"k%d" % rng.randrange(max(1, messages // 2))), []).append(position)
        position += SIZE
    meta = IndexMeta(
        CLUSTER, 1000, max(position, 1001), 10, 10 + messages, 3, 5000, 5000 + messages, 0, 0, 0, 1, 0xABCD
    )
    return Wanted(meta, {name: (firsts[name], b"".join(rows)) for name, rows in items.items()}, keys)


def written(wanted: Wanted, piece: int = 7) -> bytes:
    """The file, its items given in pieces of some length."""
    out = BytesIO()
    writer = IndexWriter(out.write)
    step = piece * ITEM.size
    for (topic_id, queue_id), (first, items) in sorted(wanted.queues.items()):
        pieces = [items[at : at + step] for at in range(0, len(items), step)]
        assert writer.add_queue(topic_id, queue_id, first, pieces) == len(items) // ITEM.size
    rows = sorted(
        key_row(key_hash(*name), at - wanted.meta.base) for name, found in wanted.keys.items() for at in found
    )
    for at in range(0, len(rows), 1000):
        writer.add_keys(pack_keys(rows[at : at + 1000]))
    meta = writer.finish(wanted.meta)
    assert (meta.queues, meta.keys) == (len(wanted.queues), len(rows))
    return out.getvalue()


class Counting:
    """A file that counts its reads."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads: list[int] = []

    def read(self, at: int, length: int) -> bytes:
        assert at >= 0
        assert at + length <= len(self.data)
        self.reads.append(length)
        return self.data[at : at + length]

    def open(self) -> IndexFile:
        return drive(open_index(len(self.data)), self.read)

    def check(self) -> IndexFile:
        return drive(check_index(len(self.data)), self.read)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), messages=st.sampled_from([0, 1, 5, 300, 2500]), queues=st.sampled_from([1, 3, 40]))
def test_what_was_written_is_read(seed: int, messages: int, queues: int) -> None:
    wanted = drawn(seed, messages, queues)
    file = Counting(written(wanted))
    index = file.check()
    assert index.meta == wanted.meta._replace(
        messages=messages, queues=len(wanted.queues), keys=sum(map(len, wanted.keys.values()))
    )
    rng = Random(seed)
    for (topic_id, queue_id), (first, items) in wanted.queues.items():
        run = drive(index.queue(topic_id, queue_id), file.read)
        assert run is not None
        assert run[:3] == (topic_id, queue_id, first)
        assert drive(index.items(run, first, run.count), file.read) == items
        start, count = rng.randrange(run.count + 1), rng.randrange(run.count + 2)
        part = drive(index.items(run, first + start, count), file.read)
        assert part == items[start * ITEM.size : (start + count) * ITEM.size]
        times = [item[4] for item in ITEM.iter_unpack(items)]
        moment = rng.randrange(4990, 5010 + messages)
        assert drive(index.offset_by_time(run, moment), file.read) == first + bisect_left(times, moment)
        assert (
            drive(index.queue(topic_id, queue_id + 1), file.read) is None or (topic_id, queue_id + 1) in wanted.queues
        )
    for (topic_id, key), positions in list(wanted.keys.items())[:200]:
        assert set(positions) <= set(drive(index.positions(topic_id, key), file.read))
    assert drive(index.queue(0, 0), file.read) is None
    assert drive(index.queue(99, 0), file.read) is None


def test_a_file_is_the_same_however_its_rows_were_given() -> None:
    wanted = drawn(3, 5000, 9)
    assert written(wanted, 1) == written(wanted, 256) == written(wanted, 10**6)


def test_d3_a_lookup_reads_the_end_and_a_block() -> None:
    wanted = drawn(1, 30_000, 20)
    file = Counting(written(wanted))
    assert len(file.data) > 10 * BLOCK_SIZE
    index = file.open()
    (topic_id, key), positions = next(iter(wanted.keys.items()))
    assert set(positions) <= set(drive(index.positions(topic_id, key), file.read))
    assert len(file.reads) <= 3  # the end, and the hash's block or the two that share it
    assert sum(file.reads) <= 3 * BLOCK_SIZE


def test_equal_hashes_that_fill_blocks_are_all_found() -> None:
    count = 3 * BLOCK_SIZE // 8
    out = BytesIO()
    writer = IndexWriter(out.write)
    hashed = key_hash(1, b"k")
    rows = [key_row(hashed - 1, 5), *(key_row(hashed, at) for at in range(count)), key_row(hashed + 1, 6)]
    writer.add_keys(pack_keys(rows))
    meta = drawn(0, 1, 1).meta._replace(base=50, end=50 + count)
    writer.finish(meta)
    file = Counting(out.getvalue())
    assert drive(file.check().positions(1, b"k"), file.read) == list(range(50, 50 + count))


def test_a_queue_that_fills_many_blocks_is_read_in_bounded_parts() -> None:
    rows = b"".join(ITEM.pack(1000 + at, 1, 0, 0, at) for at in range(50_000))
    out = BytesIO()
    writer = IndexWriter(out.write)
    writer.add_queue(1, 0, 70, [rows])
    writer.finish(drawn(0, 1, 1).meta._replace(end=1000 + 50_000))
    file = Counting(out.getvalue())
    index = file.check()
    run = QueueRun(1, 0, 70, 0, 50_000)
    assert drive(index.queue(1, 0), file.read) == run
    file.reads.clear()
    assert drive(index.items(run, 70, 50_000), file.read) == rows
    assert max(file.reads) <= 16 * BLOCK_SIZE
    assert len(index.sections[ITEMS].blocks) == -(-len(rows) // BLOCK_SIZE)


def test_h6_every_flipped_byte_is_found() -> None:
    data = written(drawn(5, 40, 3))
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 + at % 255
        with pytest.raises(IndexFileError):
            Counting(bytes(changed)).check()


def test_h6_every_truncation_is_found() -> None:
    data = written(drawn(6, 20, 3))
    for size in range(len(data)):
        with pytest.raises(IndexFileError):
            Counting(data[:size]).check()


@pytest.mark.parametrize("seed", range(4))
def test_h6_damage_in_a_long_file_is_found(seed: int) -> None:
    rng = Random(seed)
    data = written(drawn(seed, 20_000, 60))
    for _ in range(12):
        changed = bytearray(data)
        at, length = rng.randrange(len(data)), rng.choice([1, 8, 512, 4096])
        changed[at : at + length] = rng.randbytes(len(changed[at : at + length]))
        if changed != data:
            with pytest.raises(IndexFileError):
                Counting(bytes(changed)).check()


def test_a_damaged_block_is_never_served() -> None:
    wanted = drawn(2, 9000, 2)
    data = bytearray(written(wanted))
    data[16 + BLOCK_SIZE + 40] ^= 4  # in the second block of the items
    file = Counting(bytes(data))
    index = file.open()
    (topic_id, queue_id), (first, items) = min(wanted.queues.items())
    run = drive(index.queue(topic_id, queue_id), file.read)
    assert run is not None
    with pytest.raises(IndexFileError, match="block 1 of the section items"):
        drive(index.items(run, first, run.count), file.read)
    last = drive(index.items(run, first + run.count - 1, 1), file.read)
    assert last == items[-ITEM.size :]


@pytest.mark.parametrize("short", [1, 8])
def test_a_read_that_comes_back_short_is_an_error(short: int) -> None:
    data = written(drawn(2, 9, 2))
    with pytest.raises(IndexFileError, match="cut"):
        drive(open_index(len(data)), lambda at, length: data[at : at + length - short])


def test_the_writer_refuses_rows_out_of_order() -> None:
    writer = IndexWriter(BytesIO().write)
    item = ITEM.pack(0, 1, 0, 0, 0)
    writer.add_queue(2, 1, 0, [item])
    for queue in ((2, 1), (2, 0), (1, 9)):
        with pytest.raises(ValueError, match="not the next"):
            writer.add_queue(*queue, 0, [item])
    writer.add_keys(b"")
    writer.add_keys(pack_keys([key_row(5, 1), key_row(5, 1)]))
    for rows in ([key_row(4, 9)], [key_row(5, 0), key_row(7, 0)]):
        with pytest.raises(ValueError, match="are not the next"):
            writer.add_keys(pack_keys(rows))
    with pytest.raises(ValueError, match="not the next"):
        writer.add_queue(9, 9, 0, [item])


def test_the_check_finds_what_a_wrong_writer_wrote() -> None:
    """CRCs fit, and the rows do not: positions outside the segment, and in descending order."""
    for rows in ([(999, 1)], [(1000, 101)], [(1050, 10), (1040, 10)], [(1050, 10), (1055, 10)]):
        out = BytesIO()
        writer = IndexWriter(out.write)
        writer.add_queue(1, 0, 0, [ITEM.pack(*row, 0, 0, 0) for row in rows])
        writer.finish(drawn(0, 1, 1).meta._replace(end=1100))
        with pytest.raises(IndexFileError, match="does not fit its queue"):
            Counting(out.getvalue()).check()


def test_the_check_finds_a_wrong_item_in_any_place_of_any_block() -> None:
    """Two queues, the second from the middle of a block on: its first item may lie below the last of the first."""
    per_block, block_of = BLOCK_SIZE // ITEM.size, range(1000, 1000 + 3 * BLOCK_SIZE)
    first, second = per_block + 100, per_block
    queues = {0: [block_of[10 * n] for n in range(first)], 1: [block_of[10 * n] for n in range(second)]}
    meta = drawn(0, 1, 1).meta._replace(end=block_of.stop)

    def check(places: dict[int, list[int]]) -> None:
        out = BytesIO()
        writer = IndexWriter(out.write)
        for queue, at in places.items():
            writer.add_queue(1, queue, 0, [ITEM.pack(each, 10, 0, 0, 0) for each in at])
        writer.finish(meta)
        Counting(out.getvalue()).check()

    check(queues)
    for queue, number in ((0, 1), (0, per_block - 1), (0, per_block), (0, first - 1), (1, 1), (1, second - 1)):
        wrong = {name: list(at) for name, at in queues.items()}
        wrong[queue][number] -= 1
        item = number + queue * first
        with pytest.raises(IndexFileError, match=f"item {item} is at {wrong[queue][number]} with 10 bytes"):
            check(wrong)


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ([key_row(5, 1), key_row(4, 2)], "out of order"),
        ([key_row(5, 2), key_row(5, 1)], "out of order"),
        ([key_row(5, 99), key_row(6, 100)], "outside the segment of 100 bytes"),
        ([*[key_row(5, 1)] * (BLOCK_SIZE // 8), key_row(5, 0)], "keys of block 1 are out of order"),
    ],
)
def test_the_check_finds_wrong_keys(rows: list[int], wrong: str) -> None:
    out = BytesIO()
    writer = IndexWriter(out.write)
    writer.add_keys(pack_keys(rows))
    writer.finish(drawn(0, 1, 1).meta._replace(base=1000, end=1100))
    with pytest.raises(IndexFileError, match=wrong):
        Counting(out.getvalue()).check()


def test_names() -> None:
    name = file_name(5, 2**40)
    assert parse_file_name(name) == (5, 2**40)
    for other in (name + "x", "x" + name, name.replace("-", "_"), f"{5:020d}.idx", f"{5:019d}-{7:020d}.idx", ".tmp"):
        assert parse_file_name(other) is None


def test_the_reader_on_the_page_reads_what_was_written() -> None:
    page = (Path(__file__).parents[2] / "docs" / "index-file.md").read_text()
    reader: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], reader)
    wanted = drawn(11, 6000, 5)
    data = written(wanted)
    for (topic_id, queue_id), (first, items) in wanted.queues.items():
        rows = [(first + number, *item) for number, item in enumerate(ITEM.iter_unpack(items))]
        assert reader["queue_of"](data, google_crc32c.value, topic_id, queue_id) == rows
    (topic_id, key), positions = next(iter(wanted.keys.items()))
    assert set(positions) <= set(reader["positions_of"](data, google_crc32c.value, topic_id, key))
    with pytest.raises(ValueError, match="damaged"):
        reader["sections"](data[:20] + b"x" + data[21:], google_crc32c.value)

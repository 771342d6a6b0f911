"""Reads an index file by ranges, without any I/O: a step yields the range that it needs next and is sent the bytes.

    index = drive(open_index(size), read)          # read(at, length) -> bytes: pread, or a GET with a range
    positions = drive(index.positions(topic_id, key), read)

A caller that reads from an object store on an event loop drives the same generators with `await`. Every byte is checked
against its CRC-32C before it is used; bytes that do not match raise IndexFileError. Memory: the footer, and the blocks
of one answer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator
from itertools import pairwise
from typing import NamedTuple, TypeVar

from raftlog.format_versions import remark
from raftmq_wire.checksums import crc32c
from statemachine.index_file.index_format import (
    BLOCK_FORM,
    BLOCK_SIZE,
    FOOTER_SIZE_MAX,
    HEAD,
    ITEMS,
    KEY_FORM,
    KEYS,
    MAGIC,
    META_FORM,
    QUEUE_FORM,
    QUEUES,
    ROW_SIZES,
    SECTION_FORM,
    SEGMENT_BYTES_MAX,
    TRAILER_FORM,
    TRAILER_SIZE,
    VERSION,
    Block,
    IndexFileError,
    IndexMeta,
    QueueRun,
    Section,
    unpack_meta,
)
from statemachine.message_index import key_hash
from statemachine.payload import ITEM
from statemachine.rows.keys import U32, U64

TAIL_SIZE = 64 * 1024
"""The bytes of the first read, at the end of the file. The footer of a segment of 64 MiB fits. Only `check_index` reads
the head of the file."""
BATCH_BLOCKS = 16
"""The most blocks that are read at once: 1 MiB."""


class Range(NamedTuple):
    """A range of bytes of the file that a step needs."""

    at: int
    length: int


T = TypeVar("T")
Steps = Generator[Range, bytes, T]
"""A generator that yields each range to be read, is sent the bytes of the range, and returns a T."""


def drive(steps: Steps[T], read: Callable[[int, int], bytes]) -> T:
    """Runs the steps to their end with a blocking `read(at, length)` and returns their result. Raises IndexFileError,
    and what `read` raises."""
    try:
        wanted = next(steps)
        while True:
            wanted = steps.send(read(*wanted))
    except StopIteration as end:
        found: T = end.value
        return found


def open_index(size: int) -> Steps[IndexFile]:
    """Opens an index file of `size` bytes by reading its end. Raises IndexFileError if the file is cut or damaged, or
    has a version that this code does not read."""
    if size < len(HEAD) + META_FORM.size + TRAILER_SIZE:
        raise IndexFileError(f"an index file has more than {size} bytes: it is cut")
    tail = yield from _read(max(0, size - TAIL_SIZE), min(size, TAIL_SIZE))
    footer_length, footer_crc = _trailer(tail[-TRAILER_SIZE:], size)
    if footer_length + TRAILER_SIZE > len(tail):
        tail = yield from _read(size - TRAILER_SIZE - footer_length, footer_length + TRAILER_SIZE)
    footer = tail[-TRAILER_SIZE - footer_length : -TRAILER_SIZE]
    if crc32c(footer) != footer_crc:
        raise IndexFileError("the footer does not match its CRC")
    meta, sections = _footer(footer, size - TRAILER_SIZE - footer_length)
    return IndexFile(meta, sections)


class IndexFile:
    """An opened index file. The methods that return Steps read its blocks."""

    def __init__(self, meta: IndexMeta, sections: dict[bytes, Section]) -> None:
        self.meta = meta
        self.sections = sections

    def queue(self, topic_id: int, queue_id: int) -> Steps[QueueRun | None]:
        """Returns the run of the queue's messages in the segment; None if there are none."""
        wanted = topic_id << 32 | queue_id
        blocks = self.sections[QUEUES].blocks
        number = bisect_right(blocks, wanted, key=_lowest) - 1
        if number < 0:
            return None
        data = yield from self._block(QUEUES, number)
        rows = range(len(data) // QUEUE_FORM.size)
        row = bisect_left(rows, wanted, key=lambda row: _u64_at(data, row * QUEUE_FORM.size))
        if row == len(rows) or _u64_at(data, row * QUEUE_FORM.size) != wanted:
            return None
        return QueueRun(*QUEUE_FORM.unpack_from(data, row * QUEUE_FORM.size))

    def items(self, run: QueueRun, first: int, count: int) -> Steps[bytes]:
        """Returns up to `count` packed items of the queue from the queue offset `first` on, as far as the file has
        them. Raises ValueError if `first` is below the run's first offset."""
        skipped = first - run.first_offset
        if skipped < 0:
            raise ValueError(f"queue {run.queue_id} begins with offset {run.first_offset} in this file, not {first}")
        start = run.first_item + min(skipped, run.count)
        return (yield from self._rows(ITEMS, start, min(start + count, run.first_item + run.count)))

    def positions(self, topic_id: int, key: bytes) -> Steps[list[int]]:
        """Returns positions of the messages that may have the key, ascending. Other keys may have the same hash."""
        hashed = key_hash(topic_id, key)
        blocks = self.sections[KEYS].blocks
        number = max(0, bisect_left(blocks, hashed, key=_lowest) - 1)
        found: list[int] = []
        while number < len(blocks) and blocks[number].lowest <= hashed:
            data = yield from self._block(KEYS, number)
            rows = range(len(data) // KEY_FORM.size)
            row = bisect_left(rows, hashed, key=lambda row, data=data: _u32_at(data, row * KEY_FORM.size))  # type: ignore[misc]
            while row < len(rows):
                row_hash, offset = KEY_FORM.unpack_from(data, row * KEY_FORM.size)
                if row_hash != hashed:
                    return found
                found.append(self.meta.base + offset)
                row += 1
            number += 1
        return found

    def offset_by_time(self, run: QueueRun, timestamp_ms: int) -> Steps[int]:
        """Returns the first offset of the queue in this file that was stored at or after the time; the offset after its
        last if there is none."""
        low, high = 0, run.count
        while low < high:
            middle = (low + high) // 2
            item = yield from self._rows(ITEMS, run.first_item + middle, run.first_item + middle + 1)
            if ITEM.unpack(item)[4] < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return run.first_offset + low

    def blocks(self, name: bytes) -> Iterator[Steps[bytes]]:
        """Yields, for each block of a section in order, the steps that read the block. A caller can thus read a section
        with the memory of one block."""
        return (self._block(name, number) for number in range(len(self.sections[name].blocks)))

    def _rows(self, name: bytes, start: int, end: int) -> Steps[bytes]:
        """Returns the rows [start, end) of a section."""
        if start >= end:
            return b""
        size = ROW_SIZES[name]
        first, last = start * size // BLOCK_SIZE, (end * size - 1) // BLOCK_SIZE
        pieces: list[bytes] = []
        for number in range(first, last + 1, BATCH_BLOCKS):
            run = yield from self._run(name, number, min(last + 1, number + BATCH_BLOCKS))
            pieces.append(run)
        skipped = start * size - first * BLOCK_SIZE
        return b"".join(pieces)[skipped : skipped + (end - start) * size]

    def _block(self, name: bytes, number: int) -> Steps[bytes]:
        return (yield from self._run(name, number, number + 1))

    def _run(self, name: bytes, first: int, end: int) -> Steps[bytes]:
        """Returns the bytes of the neighbouring blocks [first, end) of a section. Raises IndexFileError if a block does
        not match its CRC."""
        blocks = self.sections[name].blocks[first:end]
        data = yield from _read(blocks[0].at, sum(block.length for block in blocks))
        at = 0
        for number, block in enumerate(blocks, first):
            if crc32c(data[at : at + block.length]) != block.crc32c:
                where = f"{block.length} bytes at {block.at}"
                raise IndexFileError(f"block {number} of the section {name.decode()}, {where}, does not match its CRC")
            at += block.length
        return data


def _read(at: int, length: int) -> Steps[bytes]:
    data = yield Range(at, length)
    if len(data) != length:
        raise IndexFileError(f"{len(data)} bytes at {at}, not {length}: it is cut")
    return data


def _trailer(trailer: bytes, size: int) -> tuple[int, int]:
    """Returns the footer's length and CRC from the trailer. Raises IndexFileError if the trailer is damaged, does not
    fit a file of `size` bytes, or has another version."""
    covered = trailer[: TRAILER_FORM.size]
    if trailer[-len(MAGIC) :] != MAGIC or U32.unpack_from(trailer, TRAILER_FORM.size)[0] != crc32c(covered):
        raise IndexFileError("the end is not that of an index file: it is cut or damaged")
    footer_length, footer_crc, file_length, version = TRAILER_FORM.unpack(covered)
    if version != VERSION:
        raise IndexFileError(remark("the index file", version, VERSION))
    if file_length != size:
        raise IndexFileError(f"the file has {size} bytes, by its trailer {file_length}")
    if not META_FORM.size <= footer_length <= min(FOOTER_SIZE_MAX, size - len(HEAD) - TRAILER_SIZE):
        raise IndexFileError(f"a footer of {footer_length} bytes does not fit a file of {size}")
    return footer_length, footer_crc


def _footer(footer: bytes, footer_at: int) -> tuple[IndexMeta, dict[bytes, Section]]:
    """Returns the content of a footer whose CRC is right. Raises IndexFileError if its fields contradict each other;
    such a file was already written wrong."""
    meta = unpack_meta(footer)
    at, file_at = META_FORM.size, len(HEAD)
    block_at = at + SECTION_FORM.size * len(ROW_SIZES)
    sections: dict[bytes, Section] = {}
    rows = {ITEMS: meta.messages, QUEUES: meta.queues, KEYS: meta.keys}
    for name, row_size in ROW_SIZES.items():
        told = _section_entry(footer, at)
        blocks: list[Block] = []
        for number in range(told.blocks):
            lowest, length, crc = _block_entry(footer, block_at + number * BLOCK_FORM.size)
            if length != (BLOCK_SIZE if number < told.blocks - 1 else told.length - number * BLOCK_SIZE):
                raise IndexFileError(f"block {number} of the section {name.decode()} has {length} bytes")
            blocks.append(Block(file_at + number * BLOCK_SIZE, length, crc, lowest))
        if (told.name, told.row_size, told.at, told.length) != (name, row_size, file_at, rows[name] * row_size) or any(
            before.lowest > after.lowest for before, after in pairwise(blocks)
        ):
            raise IndexFileError(f"the section {name.decode()} does not fit the file")
        sections[name] = Section(name, file_at, told.length, tuple(blocks))
        at += SECTION_FORM.size
        block_at += told.blocks * BLOCK_FORM.size
        file_at += told.length
    if block_at != len(footer) or file_at != footer_at or not 0 <= meta.end - meta.base <= SEGMENT_BYTES_MAX:
        raise IndexFileError("the sections do not add up to the file")
    return meta, sections


class _SectionEntry(NamedTuple):
    name: bytes
    row_size: int
    blocks: int
    at: int
    length: int


def _section_entry(footer: bytes, at: int) -> _SectionEntry:
    if at + SECTION_FORM.size > len(footer):
        raise IndexFileError("the footer ends within its sections")
    name, *numbers = SECTION_FORM.unpack_from(footer, at)
    entry = _SectionEntry(name.rstrip(b"\0"), *numbers)
    if entry.blocks != -(-entry.length // BLOCK_SIZE):
        raise IndexFileError(f"{entry.blocks} blocks are not those of a section of {entry.length} bytes")
    return entry


def _block_entry(footer: bytes, at: int) -> tuple[int, int, int]:
    if at + BLOCK_FORM.size > len(footer):
        raise IndexFileError("the footer ends within its blocks")
    lowest, length, crc = BLOCK_FORM.unpack_from(footer, at)
    return lowest, length, crc


def _lowest(block: Block) -> int:
    return block.lowest


def _u64_at(data: bytes, at: int) -> int:
    number: int = U64.unpack_from(data, at)[0]
    return number


def _u32_at(data: bytes, at: int) -> int:
    number: int = U32.unpack_from(data, at)[0]
    return number

"""Compares rows derived from the log with those of a checkpoint, and reports each difference by queue, offset and
position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from raftmq.copies.derived_rows import BLOCK, Derived, Piece, QueueNumbers, Row, block_rows, blocks_of
from statemachine.message_index import BUCKET_SPAN, RECORD
from statemachine.payload import ITEM
from statemachine.rows import keys
from statemachine.rows.kv import CQ, INDEX

UNKNOWN = -1


class Difference(NamedTuple):
    """A row that differs from what the log says. `family` is "cq" or "index"; a number that does not apply is
    UNKNOWN."""

    family: str
    topic_id: int
    queue_id: int
    offset: int
    position: int
    what: str


class StoredRows(Protocol):
    """The rows of a checkpoint, as far as a comparison reads them."""

    def get(self, family: str, key: bytes) -> bytes | None:
        """Returns the row's value, as `KV.get` does."""

    def scan(self, family: str, start: bytes, end: bytes) -> Iterator[Row]:
        """Yields rows, as `KV.scan` does."""


class Underived(NamedTuple):
    """Offsets [start, end) of a queue whose rows are in the checkpoint, but whose messages are not in the log any more.
    Such rows cannot be checked, and are accepted."""

    topic_id: int
    queue_id: int
    start: int
    end: int


class Checked(NamedTuple):
    """The result of checking one segment. `edges`: pieces of blocks that other segments may share; `spans`: the offsets
    [start, end) of each queue."""

    differences: list[Difference]
    edges: dict[tuple[QueueNumbers, int], list[Piece]]
    spans: dict[QueueNumbers, tuple[int, int]]
    items: int
    records: int


def check_segment(derived: Derived, stored: StoredRows, topic_ids: frozenset[int], base: int, end: int) -> Checked:
    """Checks the rows of one segment, which covers the positions [base, end). `topic_ids` are those of existing topics;
    the checkpoint has no rows of other topics."""
    found = check_keys(derived, stored, base, end)
    edges: dict[tuple[QueueNumbers, int], list[Piece]] = {}
    spans: dict[QueueNumbers, tuple[int, int]] = {}
    for block in blocks_of(derived, topic_ids):
        start, _ = spans.get(block.queue, (block.pieces[0].base, 0))
        spans[block.queue] = start, block.pieces[-1].end
        if block.is_full:
            found += check_block(block.queue, block.first, block.pieces, stored)
        else:
            edges[block.queue, block.first] = block.pieces
    records = sum(len(value) for key, value in derived.keys if len(key) != keys.INDEX_BUCKET_KEY_SIZE)
    return Checked(found, edges, spans, sum(after - first for first, after in spans.values()), records // RECORD.size)


def kept_rows(queue: QueueNumbers, pieces: Iterable[Piece], stored: StoredRows) -> list[Row]:
    """Returns the rows of one block, made from all its pieces, without the offsets that a TRIM has removed according to
    the checkpoint."""
    return list(block_rows(queue, _kept(queue, pieces, stored)))


def check_block(
    queue: QueueNumbers, block: int, pieces: Iterable[Piece], stored: StoredRows, *, whole: bool = True
) -> list[Difference]:
    """Checks the rows of one block of a queue. `whole`: `pieces` are all pieces of the block; otherwise the checkpoint
    may have rows of further pieces. Returns the differences."""
    wanted = _kept(queue, pieces, stored)
    rows = list(stored.scan(CQ, keys.cq_key(*queue, block), keys.cq_key(*queue, block + BLOCK)))
    if whole and rows == list(block_rows(queue, wanted)):
        return []
    expected, actual = _by_offset(wanted), _by_offset(Piece(keys.cq_base(key), value) for key, value in rows)
    if not whole:
        actual = {offset: item for offset, item in actual.items() if offset in expected}
    found = [
        _item_difference(queue, offset, expected.get(offset), actual.get(offset))
        for offset in sorted(expected.keys() | actual.keys())
        if expected.get(offset) != actual.get(offset)
    ]
    if whole and not found:
        found.append(Difference(CQ, *queue, block, UNKNOWN, "the rows are cut at other offsets"))
    return found


def _kept(queue: QueueNumbers, pieces: Iterable[Piece], stored: StoredRows) -> list[Piece]:
    first = chunk_of_first(queue, stored)
    return [piece for piece in (_from(each, first) for each in sorted(pieces)) if piece.items]


def chunk_of_first(queue: QueueNumbers, stored: StoredRows) -> int:
    """Returns the offset at which the rows of a queue begin, which is 0 unless it was trimmed."""
    bounds = stored.get(CQ, keys.cq_bounds_key(*queue))
    return 0 if bounds is None else keys.unpack_bounds(bounds)[1]


def _from(piece: Piece, offset: int) -> Piece:
    """Returns the part of the piece that is at or above the offset."""
    if piece.base >= offset:
        return piece
    return Piece(offset, piece.items[(offset - piece.base) * ITEM.size :])


def _by_offset(pieces: Iterable[Piece]) -> dict[int, bytes]:
    return {
        piece.base + number: piece.items[number * ITEM.size : (number + 1) * ITEM.size]
        for piece in pieces
        for number in range(len(piece.items) // ITEM.size)
    }


def check_ends(
    spans: Mapping[QueueNumbers, tuple[int, int]],
    stored: StoredRows,
    queues: Iterable[QueueNumbers],
    *,
    from_start: bool,
    to_end: bool,
) -> tuple[list[Difference], list[Underived]]:
    """Checks the checkpoint's rows of each queue below and above the derived ones. `from_start` and `to_end` say that
    the log was complete from position 0 on, and up to the checkpoint's last entry."""
    found: list[Difference] = []
    underived: list[Underived] = []
    for queue in queues:
        kept_from = chunk_of_first(queue, stored)
        start, end = spans.get(queue, (None, kept_from))
        after = -(-end // BLOCK) * BLOCK if start is not None else end
        rows = [Piece(keys.cq_base(key), value) for key, value in stored.scan(CQ, *_from_key(queue, after))]
        if start is None and rows and not from_start:
            underived.append(Underived(*queue, rows[0].base, rows[-1].end))
        elif to_end:
            found += [_item_difference(queue, offset, None, item) for offset, item in _by_offset(rows).items()]
        if start is not None and start > kept_from and not from_start:
            underived.append(Underived(*queue, kept_from, start))
    return found, underived


def _from_key(queue: QueueNumbers, offset: int) -> tuple[bytes, bytes]:
    return keys.cq_key(*queue, offset), keys.cq_key(*queue, keys.U64_MAX)


_FIELDS = ("position", "size", "crc32c", "tag hash", "store time")


def _item_difference(queue: QueueNumbers, offset: int, expected: bytes | None, actual: bytes | None) -> Difference:
    if expected is None or actual is None:
        item = ITEM.unpack(expected or actual or bytes(ITEM.size))
        what = "the log has no such message" if expected is None else "the row is missing"
        return Difference(CQ, *queue, offset, item[0], what)
    told = zip(_FIELDS, ITEM.unpack(expected), ITEM.unpack(actual), strict=True)
    wrong = ", ".join(f"{name} {is_}, not {should}" for name, should, is_ in told if should != is_)
    return Difference(CQ, *queue, offset, ITEM.unpack(expected)[0], wrong)


def check_keys(derived: Derived, stored: StoredRows, base: int, end: int) -> list[Difference]:
    """Checks the rows of the message index of one segment."""
    expected = dict(derived.keys)
    actual = dict(stored.scan(INDEX, keys.U64.pack(base), keys.U64.pack(end)))
    if expected == actual:
        return []
    places = {
        ITEM.unpack_from(items, at)[0]: (*queue, first + at // ITEM.size)
        for queue, pieces in derived.pieces.items()
        for first, items in pieces
        for at in range(0, len(items), ITEM.size)
    }
    found: list[Difference] = []
    for key in sorted(expected.keys() | actual.keys()):
        want, have = expected.get(key, b""), actual.get(key, b"")
        if want == have:
            continue
        if len(key) == keys.INDEX_BUCKET_KEY_SIZE:
            what = f"the bucket's times are {have.hex() or 'missing'}, not {want.hex() or 'any'}"
            found.append(Difference(INDEX, UNKNOWN, UNKNOWN, UNKNOWN, keys.index_base(key), what))
            continue
        for record, what in _record_differences(want, have, base):
            position = base + (record[1] - base) % BUCKET_SPAN
            found.append(Difference(INDEX, *places.get(position, (UNKNOWN,) * 3), position, what))
    return found


def _record_differences(want: bytes, have: bytes, base: int) -> Iterator[tuple[tuple[int, int], str]]:
    expected, actual = set(RECORD.iter_unpack(want)), set(RECORD.iter_unpack(have))
    for record in sorted(expected - actual):
        yield record, f"the key with the hash {record[0]:08x} is missing"
    for record in sorted(actual - expected):
        yield record, f"the log has no key with the hash {record[0]:08x} there"
    if expected == actual:
        yield (0, base), "the row has its records in another order"

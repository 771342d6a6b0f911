"""The payloads of TRIM entries, and the state that they change.

A TRIM moves the beginning of the log, for every replica at the same entry: messages below `position` are no longer part
of the state, whether or not a replica still has the file. The leader decides on a TRIM from its applied state, and
apply never rejects it. A position or an offset below the current one changes nothing. An offset beyond the end of a
queue means the end; a leader names no such offset.

A TRIM has one of five formats, each a msgpack map with its keys in this order:

    10 {"format", "position": u64, "first_index": u64, "reason": str, "queues": [[topic_id, queue_id, min_offset], ...]}
       Does everything in one entry, and is written while no node runs. `queues` lists queues that are trimmed further
       than `position` requires.
    11 the same keys. Only names the cut: a *sweep* begins (docs/adr/0057).
    12 {"format", "cut": u64, "rows": u32}. A slice of the sweep that the entry with the index `cut` began: walks over
       at most `rows` rows, or a few more, and removes what lies below the cut.
    13 the keys of 11, `queues` is empty. An EVICT: a cut whose rows are removed here and whose messages stay in the
       tier (docs/adr/0062). An EVICT above what the tier holds VERIFIED changes nothing.
    14 {"format", "rows": u32}. A slice of what is to be removed for another reason (removals.py).

A sweep goes through the consume queues in the order of their keys, then through the message index. The first offset of
a queue moves in the slice that removes the queue's rows. The log begins at the cut only after the last slice, because
rows that were not swept yet refer to the log below the cut. A sweep skips the queues of topics that are being removed:
nobody reads their rows.

After an EVICT the log has two beginnings. The *mark* is where its rows and files begin. Below it, *kept* is where the
log begins that this node or the tier still has. A TRIM to a position between the two moves only *kept*; a TRIM to the
mark or above moves both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgpack

from raftlog.format_versions import remark
from raftlog.types import Entry, EntryType
from statemachine.family import Family, Reads, family_of
from statemachine.rows import keys, meta_keys
from statemachine.rows.kv import CQ, KV, META
from statemachine.rows.write_batch import Stage

WHOLE, CUT, SLICE, EVICT, REMOVE = 10, 11, 12, 13, 14
FORMAT = REMOVE
"""The newest format of a TRIM entry that this version knows."""
_EVICTS = b"\x01"
SLICE_ROWS_MIN = 4
"""The least number of rows that a slice walks over, so that every slice makes progress."""

QueueMin = tuple[int, int, int]
"""The offset at which a queue is to begin: (topic_id, queue_id, min_offset)."""


class TrimError(ValueError):
    """The bytes are not a valid payload of a TRIM entry. The frame's CRC was good, so this is a bug or a newer
    format."""


class Trim(NamedTuple):
    """The content of a TRIM entry that names a cut. `position` is the beginning of a segment, `first_index` its first
    entry."""

    position: int
    first_index: int
    reason: str
    """The leader's reason for trimming, for people."""
    queues: tuple[QueueMin, ...] = ()
    sliced: bool = False
    """True if slices that follow remove the rows; False if this entry does."""
    evicts: bool = False
    """True if the messages stay in the tier (an EVICT). `sliced` is then True too."""


class Slice(NamedTuple):
    """The content of a TRIM entry that carries out the next slice of the sweep begun by the TRIM at index `cut`."""

    cut: int
    rows: int


class RemoveRows(NamedTuple):
    """The content of a TRIM entry that carries out the next slice of the pending removals (removals.py). The beginning
    of the log does not move."""

    rows: int


class Sweep(NamedTuple):
    """A sweep: a move of the log's beginning to a position (the cut) that is carried out slice by slice."""

    position: int
    first_index: int
    index: int  # type: ignore[assignment]
    """The index of the TRIM entry that began the sweep."""
    family: str
    """The family of rows through which the sweep goes now."""
    at: bytes
    """The key that the sweep has reached: the family's rows below it are done."""
    queues: Mapping[tuple[int, int], int]
    """Queues that are trimmed further than the cut requires: (topic_id, queue_id) -> the lowest offset at which the
    queue may begin."""
    evicts: bool
    """True if the removed messages stay in the tier."""


class TrimMark(NamedTuple):
    """The beginning of the log (position and first index), set by the last TRIM that moved it: one that did everything
    in one entry, or the last slice of a sweep."""

    position: int
    first_index: int
    index: int  # type: ignore[assignment]
    """The index of the TRIM entry that set the mark; -1 if there was none."""
    timestamp_ms: int
    """The log time of that TRIM entry."""


NOT_TRIMMED = TrimMark(0, 0, -1, 0)


class Kept(NamedTuple):
    """The beginning of the log that is kept anywhere: on this node, or below that in the tier."""

    position: int
    first_index: int


def encode(trim: Trim | Slice | RemoveRows) -> bytes:
    """Returns the payload of a TRIM entry."""
    packed: bytes
    if isinstance(trim, RemoveRows):
        packed = msgpack.packb({"format": REMOVE, "rows": trim.rows})
        return packed
    if isinstance(trim, Slice):
        packed = msgpack.packb({"format": SLICE, "cut": trim.cut, "rows": trim.rows})
        return packed
    packed = msgpack.packb(
        {
            "format": EVICT if trim.evicts else CUT if trim.sliced else WHOLE,
            "position": trim.position,
            "first_index": trim.first_index,
            "reason": trim.reason,
            "queues": [list(queue) for queue in trim.queues],
        }
    )
    return packed


def decode(payload: bytes) -> Trim | Slice | RemoveRows:
    """Decodes the payload of a TRIM entry. Raises TrimError if it is malformed, or of a format that this version does
    not read."""
    try:
        fields = msgpack.unpackb(payload)
        kind = fields.get("format") if type(fields) is dict else None
        if kind == SLICE:
            return Slice(_number(fields["cut"]), max(SLICE_ROWS_MIN, _number(fields["rows"])))
        if kind == REMOVE:
            return RemoveRows(max(SLICE_ROWS_MIN, _number(fields["rows"])))
        if kind not in (WHOLE, CUT, EVICT):
            raise TrimError(remark("TRIM", kind, FORMAT))
        queues = tuple((_number(t), _number(q), _number(offset)) for t, q, offset in fields["queues"])
        position, first_index = _number(fields["position"]), _number(fields["first_index"])
        if kind == EVICT and queues:
            raise TrimError("an EVICT names queues")
        return Trim(position, first_index, str(fields["reason"]), queues, kind != WHOLE, kind == EVICT)
    except (KeyError, TypeError, ValueError) as error:
        raise TrimError(f"not the payload of a TRIM: {error}") from error


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= keys.U64_MAX:
        raise TrimError(f"{value!r} is no position, index or offset")
    return value


class TrimState(Family):
    """The beginning of the log and the sweep in progress, with their rows. `mark`, `kept` and `sweep` are replaced,
    never changed, so any thread may read them."""

    ROWS = ((META, meta_keys.TRIM_KEY), (META, meta_keys.KEPT_KEY), (META, meta_keys.SWEEP_KEY))

    def __init__(self, kv: KV) -> None:
        self.mark = self._staged = load_mark(kv)
        row = kv.get(META, meta_keys.KEPT_KEY)
        self._staged_kept = None if row is None else Kept(*meta_keys.KEPT.unpack(row))
        self.kept = self._kept()
        self.sweep = self._staged_sweep = _load_sweep(kv)
        self.changed: bool = False
        """True if the batch being applied has changed the beginning of the log or the sweep."""

    def _kept(self) -> Kept:
        return self._staged_kept or Kept(self._staged.position, self._staged.first_index)

    def leaves_tier(self, position: int) -> bool:
        """Returns True if a TRIM to `position` removes no evicted segment, or only the first ones."""
        kept = self._kept()
        return position <= kept.position or position < self._staged.position

    def set(self, stage: Stage, position: int, first_index: int, entry: Entry) -> None:
        """Moves the beginning of the log to `position`, by the TRIM entry `entry`, unless the log begins above that
        already. The beginning of what is kept moves with it."""
        kept, mark = self._staged_kept, self._staged
        if kept is not None and position > kept.position:
            self._keep(stage, Kept(position, first_index) if position < mark.position else None)
        self._move(stage, position, first_index, entry)

    def _move(self, stage: Stage, position: int, first_index: int, entry: Entry) -> None:
        if position > self._staged.position:
            self._staged, self.changed = TrimMark(position, first_index, entry.index, entry.timestamp_ms), True
            stage.put(META, meta_keys.TRIM_KEY, meta_keys.TRIM.pack(*self._staged))

    def _keep(self, stage: Stage, kept: Kept | None) -> None:
        self._staged_kept, self.changed = kept, True
        if kept is None:
            stage.delete(META, meta_keys.KEPT_KEY)
        else:
            stage.put(META, meta_keys.KEPT_KEY, meta_keys.KEPT.pack(*kept))

    def begin(self, stage: Stage, trim: Trim, entry: Entry) -> None:
        """Begins the sweep of a TRIM entry. Does nothing while another sweep is in progress: the leader did not know of
        that sweep, and will decide again."""
        if self._staged_sweep is not None:
            return
        sweep = Sweep(trim.position, trim.first_index, entry.index, CQ, keys.FIRST, highest(trim.queues), trim.evicts)
        rest = b"".join([meta_keys.SWEEP_QUEUE.pack(*queue, offset) for queue, offset in sweep.queues.items()])
        stage.put(META, meta_keys.SWEEP_KEY, meta_keys.SWEEP.pack(*sweep[:3]) + (_EVICTS if trim.evicts else rest))
        self._go_on(stage, sweep)

    def go_on(self, stage: Stage, family: str, at: bytes) -> None:
        """Records the progress of the sweep: the family and the key that it has reached."""
        assert self._staged_sweep is not None
        self._go_on(stage, self._staged_sweep._replace(family=family, at=at))

    def _go_on(self, stage: Stage, sweep: Sweep) -> None:
        self._staged_sweep, self.changed = sweep, True
        stage.put(META, meta_keys.SWEEP_AT_KEY, sweep.family.encode() + b"\0" + sweep.at)

    def end(self, stage: Stage, entry: Entry) -> None:
        """Ends the sweep: no row refers to the log below the cut any more."""
        sweep = self._staged_sweep
        assert sweep is not None
        if sweep.evicts:
            if sweep.position > self._staged.position:
                self._keep(stage, self._kept())
            self._move(stage, sweep.position, sweep.first_index, entry)
        else:
            self.set(stage, sweep.position, sweep.first_index, entry)
        self._staged_sweep, self.changed = None, True
        stage.delete(META, meta_keys.SWEEP_KEY)
        stage.delete(META, meta_keys.SWEEP_AT_KEY)

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written. The sweep is set last:
        a reader that sees its end also sees the mark that it has moved."""
        self.changed = False
        self.mark, self.kept, self.sweep = self._staged, self._kept(), self._staged_sweep


class TrimReads(Reads):
    """Read access to what a state holds about the beginning of the log."""

    _trim = family_of(TrimState)

    @property
    def trim_mark(self) -> TrimMark:
        """The beginning of the log, and the TRIM that set it."""
        return self._trim.mark

    @property
    def sweep(self) -> Sweep | None:
        """The sweep that is in progress; None if there is none."""
        return self._trim.sweep

    @property
    def trim_position(self) -> int:
        """The position in the log below which the state refers to nothing; 0 if the log was never trimmed."""
        return self._trim.mark.position

    @property
    def kept(self) -> Kept:
        """The beginning of the log that is still kept, on this node or in the tier. It is below `trim_position` if
        segments were evicted, and so are only in the tier."""
        return self._trim.kept


def _load_sweep(kv: KV) -> Sweep | None:
    """Reads the sweep under way from the store; returns None if there is none."""
    row = kv.get(META, meta_keys.SWEEP_KEY)
    if row is None:
        return None
    family, _, at = (kv.get(META, meta_keys.SWEEP_AT_KEY) or b"").partition(b"\0")
    position, first_index, index = meta_keys.SWEEP.unpack_from(row)
    rest = row[meta_keys.SWEEP.size :]
    queues = {} if rest == _EVICTS else highest(list(meta_keys.SWEEP_QUEUE.iter_unpack(rest)))
    return Sweep(position, first_index, index, family.decode(), at, queues, rest == _EVICTS)


def load_mark(kv: KV) -> TrimMark:
    """Reads the beginning of the log, as of the last TRIM that moved it, from the store."""
    row = kv.get(META, meta_keys.TRIM_KEY)
    return NOT_TRIMMED if row is None else TrimMark(*meta_keys.TRIM.unpack(row))


def rows_begin(kv: KV) -> int:
    """Returns, from the store, the position of the log below which rows were removed, or may be being removed by a
    sweep."""
    row = kv.get(META, meta_keys.SWEEP_KEY)
    swept: int = 0 if row is None else meta_keys.SWEEP.unpack_from(row)[0]
    return max(load_mark(kv).position, swept)


def highest(queues: Sequence[QueueMin]) -> dict[tuple[int, int], int]:
    """Returns (topic_id, queue_id) -> the highest offset named for the queue."""
    found: dict[tuple[int, int], int] = {}
    for topic_id, queue_id, offset in queues:
        found[topic_id, queue_id] = max(offset, found.get((topic_id, queue_id), 0))
    return found


def runs_of(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """Splits the entries into runs that can be applied as one batch each. A TRIM is alone in its run, because it reads
    rows as they are in the store."""
    start = 0
    for at, entry in enumerate(entries):
        if entry.type == EntryType.TRIM:
            if at > start:
                yield entries[start:at]
            yield entries[at : at + 1]
            start = at + 1
    if start == 0:
        yield entries
    elif start < len(entries):
        yield entries[start:]

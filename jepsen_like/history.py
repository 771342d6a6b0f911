"""Histories: the requests of clients, their answers, and the times, one step of an operation per line.

A history is JSON lines. The first line names the format, every other line is one step, the last one counts them:

    {"format":"raftmq-history","version":1,"meta":{"seed":7},"crc":"…"}
    {"index":0,"process":3,"type":"invoke","f":"send","value":{…},"time_ns":12,"crc":"…"}
    {"index":1,"process":3,"type":"ok","f":"send","value":{…},"time_ns":31,"crc":"…"}
    {"end":2,"crc":"…"}

`crc` is the CRC-32 of the line without it, chained over all lines before. A line that was edited, removed, repeated or
moved is therefore found and named, because a verdict about a falsified history is worth nothing.

The terms are Jepsen's. A *process* is a single-threaded client: it invokes an operation, completes it, and then may
invoke the next one. It completes with `ok` (it happened), `fail` (it is proved not to have happened and never will) or
`info` (the outcome is unknown; it may still happen later). After an `info` the process is retired, because its
operation may still be in flight.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, NamedTuple, overload

import msgspec

FORMAT = "raftmq-history"
VERSION = 1
READERS_FROM = 1_000_000
"""The reader of a replica has the process number READERS_FROM plus the number of its node."""

NODES_PER_GROUP = 1000
"""Factor of the group in the number of a node (see `node_number`). It is larger than any node id of a run."""

OpType = Literal["invoke", "ok", "fail", "info"]

_CRC_TAIL = len(b',"crc":"00000000"}\n')
_TAIL_FORMAT = b',"crc":"%08x"}\n'
_BATCH_BYTES = 1 << 16
"""Number of bytes of lines that are read, checked and decoded together, so that the loops run in C and the bytes stay
in the processor's cache.
"""


def node_number(node_id: int, group: int) -> int:
    """Returns the number by which a history names a node: its id in group 1, `group * NODES_PER_GROUP + node_id` in any
    further group of brokers.
    """
    return node_id if group == 1 else group * NODES_PER_GROUP + node_id


def group_of_node(number: int) -> int:
    """Returns the number of the group of brokers, from 1, to which the node with this number belongs (see
    `node_number`).
    """
    return number // NODES_PER_GROUP or 1


class HistoryError(Exception):
    """The file is not a complete, unedited history. `line` is the line that shows it (from 1)."""

    def __init__(self, path: str, line: int, why: str) -> None:
        super().__init__(f"{path}: line {line}: {why}")
        self.path = path
        self.line = line
        self.why = why


class Op(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One step of one operation. `value` is plain JSON; its shape depends on `f` (see `checkers.history_steps`)."""

    index: int
    """The position in the history, from 0, without gaps."""
    process: int
    type: OpType
    f: str
    """The kind of operation: `send`, `read`, …"""
    value: Any
    time_ns: int
    """Nanoseconds on the recorder's single clock; never decreases along the history."""


class _OpLine(Op, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    crc: str


class _HeadLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    version: int
    meta: dict[str, Any]
    crc: str


class _EndLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    end: int
    crc: str


class History(NamedTuple):
    """A history in memory. `complete` is False if the recorder died before it wrote the last line."""

    meta: dict[str, Any]
    ops: list[Op]
    complete: bool


class HistoryWriter:
    """Records steps as they happen; safe to call from several threads.

    Invariant: the order of `index`, of `time_ns` and of the lines is one and the same.
    """

    def __init__(
        self, path: Path, meta: dict[str, Any] | None = None, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.ops: list[Op] = []
        self._clock = clock
        self._crc = 0
        self._lock = threading.Lock()
        self._file: IO[bytes] = path.open("xb")
        self._write(msgspec.json.encode({"format": FORMAT, "version": VERSION, "meta": meta or {}}))

    def invoke(self, process: int, f: str, value: Any) -> Op:
        """Records that `process` invokes the operation `f` now."""
        return self._append(process, "invoke", f, value)

    def ok(self, invoked: Op, value: Any) -> Op:
        """Records that the operation happened; `value` is the answer."""
        return self._append(invoked.process, "ok", invoked.f, value)

    def fail(self, invoked: Op, value: Any) -> Op:
        """Records that the operation is proved not to have happened and never will."""
        return self._append(invoked.process, "fail", invoked.f, value)

    def info(self, invoked: Op, value: Any) -> Op:
        """Records that the outcome is unknown; the process must not invoke again."""
        return self._append(invoked.process, "info", invoked.f, value)

    def close(self) -> None:
        """Writes the last line, without which the history counts as cut off. Closing twice is harmless."""
        with self._lock:
            if self._file.closed:
                return
            self._write(msgspec.json.encode({"end": len(self.ops)}))
            self._file.close()

    def __enter__(self) -> HistoryWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()

    def _append(self, process: int, kind: OpType, f: str, value: Any) -> Op:
        with self._lock:
            op = Op(len(self.ops), process, kind, f, value, self._clock())
            self._write(msgspec.json.encode(op))
            self.ops.append(op)
        return op

    def _write(self, body: bytes) -> None:
        self._crc = zlib.crc32(body, self._crc)
        self._file.write(body[:-1] + _TAIL_FORMAT % self._crc)


def read_history(path: Path, *, allow_cut: bool = False) -> History:
    """Reads a complete history. `allow_cut` also accepts one whose recorder died, and returns its complete lines.

    Raises HistoryError with the line for a foreign, newer, cut off or edited file and for impossible steps: a
    completion without an invocation, a process that invokes twice, a clock that runs backwards.
    """
    file = HistoryFile(path, allow_cut=allow_cut)
    pairing = Pairing(file.error_at)
    ops: list[Op] = []
    for batch in file.batches():
        pairing.feed(batch)
        ops += batch
    return History(file.meta, ops, file.complete)


class StepsOnDisk(Sequence[Op]):
    """The steps of a complete history on disk, read when a step is first accessed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _ops(self) -> list[Op]:
        return read_history(self._path).ops

    def __len__(self) -> int:
        return len(self._ops)

    @overload
    def __getitem__(self, index: int) -> Op: ...

    @overload
    def __getitem__(self, index: slice) -> list[Op]: ...

    def __getitem__(self, index: int | slice) -> Op | list[Op]:
        return self._ops[index]

    def __iter__(self) -> Iterator[Op]:
        return iter(self._ops)


class HistoryFile:
    """A history on disk, read once from beginning to end; after that `meta` and `complete` are known."""

    def __init__(self, path: Path, *, allow_cut: bool = False) -> None:
        self.path = str(path)
        self.meta: dict[str, Any] = {}
        self.complete = False
        """True if the file ends with the closing line."""
        self._allow_cut = allow_cut
        self._crc = 0

    def batches(self) -> Iterator[list[Op]]:
        """Yields all steps, some hundred at a time. Raises HistoryError; OSError if the file cannot be read."""
        with Path(self.path).open("rb") as lines:
            first = next(lines, b"")
            if not first.endswith(b"\n"):
                raise self._error(1, "not a history: no first line" if first else "the file is empty")
            self.meta = self._head(first[:-1])
            yield from self._batches(lines)

    def error_at(self, op: Op, why: str) -> HistoryError:
        """Returns a HistoryError that names the line of the step `op` and the reason `why` the step is impossible."""
        return self._error(op.index + 2, why)

    def _head(self, line: bytes) -> dict[str, Any]:
        try:
            head = msgspec.json.decode(line, type=_HeadLine)
        except msgspec.MsgspecError as error:
            raise self._error(1, f"not a history: {error}") from None
        if head.format != FORMAT:
            raise self._error(1, f"the format is {head.format!r}, not {FORMAT!r}")
        if head.version != VERSION:
            raise self._error(1, f"history version {head.version}; this release reads version {VERSION}")
        self._check(1, line, head.crc)
        return head.meta

    def _batches(self, lines: IO[bytes]) -> Iterator[list[Op]]:
        decode = msgspec.json.Decoder(Op).decode_lines
        count = 0
        while batch := lines.readlines(_BATCH_BYTES):
            bodies = [line[:-_CRC_TAIL] + b"}" for line in batch]
            crc = self._crc
            chain = [crc := zlib.crc32(body, crc) for body in bodies]
            try:
                is_whole = _TAIL_FORMAT * len(batch) % tuple(chain) == b"".join([line[-_CRC_TAIL:] for line in batch])
                ops = decode(b"\n".join(bodies)) if is_whole else []
            except msgspec.MsgspecError:
                ops = []
            if len(ops) != len(batch) or [op.index for op in ops] != list(range(count, count + len(ops))):
                yield from self._one_by_one(itertools.chain(batch, lines), count)
                return
            yield ops
            count += len(ops)
            self._crc = crc
        self._ends_without_end(count)

    def _one_by_one(self, lines: Iterator[bytes], count: int) -> Iterator[list[Op]]:
        """Yields the steps of `lines`, checked line by line; `count` steps came before them. It reads the last lines of
        every file, and finds the first wrong line of a batch.
        """
        decode = msgspec.json.Decoder(Op).decode
        for line in lines:
            body = line[:-_CRC_TAIL] + b"}"
            chained = zlib.crc32(body, self._crc)
            try:
                op = decode(body) if line[-_CRC_TAIL:] == _TAIL_FORMAT % chained else None
            except msgspec.MsgspecError:
                op = None
            if op is None:
                self.complete = self._last(count + 2, line, lines, count)
                return
            if op.index != count:
                raise self._error(count + 2, f"index {op.index} where {count} belongs")
            yield [op]
            count += 1
            self._crc = chained
        self._ends_without_end(count)

    def _ends_without_end(self, count: int) -> None:
        if not self._allow_cut:
            raise self._error(count + 1, "the file is cut after this line: the closing line is missing")

    def _last(self, number: int, line: bytes, lines: Iterator[bytes], count: int) -> bool:
        """Handles the last line: returns True for the closing line, False for a torn one; raises HistoryError for any
        other."""
        if not line.endswith(b"\n"):
            if self._allow_cut:
                return False
            raise self._error(number, "the file is cut in the middle of this line")
        if not line.startswith(b'{"end":'):
            try:
                step = msgspec.json.decode(line, type=_OpLine)
            except msgspec.MsgspecError as error:
                raise self._error(number, f"not a step of a history: {error}") from None
            self._check(number, line[:-1], step.crc)
        self._end(number, line[:-1], count)
        if next(lines, b""):
            raise self._error(number + 1, "something follows the closing line")
        return True

    def _end(self, number: int, line: bytes, count: int) -> None:
        try:
            end = msgspec.json.decode(line, type=_EndLine)
        except msgspec.MsgspecError as error:
            raise self._error(number, f"not a closing line: {error}") from None
        self._check(number, line, end.crc)
        if end.end != count:
            raise self._error(number, f"the closing line counts {end.end} steps, the file holds {count}")

    def _check(self, number: int, line: bytes, crc: str) -> None:
        self._crc = zlib.crc32(line[: 1 - _CRC_TAIL] + b"}", self._crc)
        if crc != f"{self._crc:08x}":
            raise self._error(number, "the checksum does not fit: a line was changed, removed or moved here")

    def _error(self, line: int, why: str) -> HistoryError:
        return HistoryError(self.path, line, why)


class Operation(NamedTuple):
    """One operation: its invocation and, unless it was still open at the end, its completion."""

    invoked: Op
    completed: Op | None

    @property
    def outcome(self) -> OpType:
        """The outcome: "ok", "fail" or "info"; an operation that never completed is "info"."""
        return self.completed.type if self.completed else "info"


_operation: Callable[[tuple[Op, Op]], Operation] = partial(tuple.__new__, Operation)
"""Makes an Operation from (invocation, completion) in the fastest way."""


class Pairing:
    """Pairs completions with invocations, in the order of the history, some steps at a time."""

    def __init__(self, error: Callable[[Op, str], Exception]) -> None:
        self._error = error
        self._pending: dict[int, Op] = {}
        self._retired: set[int] = set()
        self._last_ns: float = -math.inf

    def feed(self, ops: Iterable[Op]) -> list[Operation]:
        """Returns the operations that complete in these steps, in the order of their completions.

        Raises `error(op, why)` for steps that a single-threaded process cannot take.
        """
        pending, retired = self._pending, self._retired
        last_ns = self._last_ns
        begun: list[Op] = []
        ended: list[Op] = []
        for op in ops:
            process, kind, time_ns = op.process, op.type, op.time_ns
            if time_ns < last_ns:
                raise self._error(op, f"time runs backwards, from {last_ns} to {time_ns} ns")
            last_ns = time_ns
            if kind == "invoke":
                if process in pending or process in retired:
                    raise self._error(
                        op, f"process {process} invokes while its operation before may still be under way"
                    )
                pending[process] = op
                continue
            invoked = pending.pop(process, None)
            if invoked is None or invoked.f != op.f:
                raise self._error(op, f"process {process} completes {op.f!r}, which it did not invoke")
            begun.append(invoked)
            ended.append(op)
            if kind == "info":
                retired.add(process)
        self._last_ns = last_ns
        return list(map(_operation, zip(begun, ended, strict=True)))

    def still_open(self) -> list[Operation]:
        """Returns the operations that have not completed, in order of invocation."""
        return [Operation(op, None) for op in self._pending.values()]


def by_invocation(operation: Operation) -> int:
    """Returns the key that sorts operations in order of invocation."""
    return operation[0].index


def pair_up(
    ops: Iterable[Op], error: Callable[[Op, str], Exception] = lambda op, why: ValueError(f"op {op.index}: {why}")
) -> list[Operation]:
    """Returns the operations in order of invocation. Raises `error(op, why)` for steps that a single-threaded process
    cannot take."""
    pairing = Pairing(error)
    return sorted([*pairing.feed(ops), *pairing.still_open()], key=by_invocation)

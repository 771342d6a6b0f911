"""The state machine: applies runs of committed entries and answers reads.

A *run* is a sequence of committed entries that are applied together. Their rows and the new applied index are written
in one batch. A *row* is one key with its value in the store.

Threads: `apply` runs on one thread; every other public member may be used on any thread at the same time. The views in
memory are replaced only after the batch is written, and `applied` last. A reader that sees an applied index, a topic,
an end of a queue or a session can therefore read its rows.

The state machine uses no clock and no randomness: rows and results are a function of the log, on every replica, however
its entries were grouped into runs. A TRIM makes a batch of its own, because it reads rows as they lie in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from raftlog.errors import InvariantViolationError
from raftlog.types import FIRST_GROUP, FLAG_ROLL, Entry, EntryId, EntryType
from statemachine import payload
from statemachine.command_table import unpack, unpack_change
from statemachine.commands import Command, CommandResult, Found, Invalid, InvalidCommandError, invalid, name_of
from statemachine.families import FAMILIES, StateReads
from statemachine.family import EntryHandler, Families, Family, Handler, overridden
from statemachine.levels import LEVEL
from statemachine.message_rows import MessageRows
from statemachine.rows import keys, meta_keys
from statemachine.rows.kv import KV, META
from statemachine.rows.row_format import check_format
from statemachine.rows.running_digest import MARKERS, Count, RunningSums
from statemachine.rows.running_digest import count as count_rows
from statemachine.rows.write_batch import Stage, Stamp
from statemachine.trim import runs_of

_INDEX_ONLY = (EntryType.GENESIS, EntryType.NOOP, EntryType.DIGEST)


class AppliedMark(NamedTuple):
    """The last applied entry: its term, index and end in the log. Recovery compares it with the log."""

    term: int
    index: int  # type: ignore[assignment]
    end_position: int
    """Position in the log at which the next frame begins."""
    timestamp_ms: int
    header_crc: int


NOTHING_APPLIED = AppliedMark(0, -1, 0, 0, 0)


class ApplyRun(NamedTuple):
    """The outcome of applying a run: for each entry the results of its commands (or effects), and the queues that
    grew."""

    results: list[list[CommandResult]]
    grown: set[tuple[int, int]]
    """(topic_id, queue_id) of each queue that got messages or was reset. Consumers that wait for messages of such a
    queue are woken."""


class BrokerState(StateReads):
    """The state of one Raft group, stored in a KV that nobody else writes. Raises KVError if its rows have a format or
    a level that this version does not know."""

    ROWS = ((META, meta_keys.APPLIED_KEY), (META, meta_keys.FORMAT_KEY), (META, meta_keys.SUMS_KEY))
    """The rows that belong to no family: (column, prefix of keys), as in `Family.ROWS`."""

    def __init__(self, kv: KV, count: Count = count_rows, known_level: int = LEVEL, group: int = FIRST_GROUP) -> None:
        """`count` counts all rows if the stored state does not have its sums (`RunningSums`). `known_level`: the
        highest level of a cluster that this version knows; a state of a higher level is refused. `group`: the number of
        the group of brokers whose log is applied."""
        check_format(kv)
        super().__init__(Families(kv, known_level, group))
        self._order = order = tuple(self[kind] for kind in FAMILIES)
        self._handlers: dict[type[Command], Handler] = {}
        self._entry_handlers: dict[int, EntryHandler] = {}
        for family in order:
            self._handlers |= family.handlers()
            self._entry_handlers |= family.entry_handlers()
        if group != FIRST_GROUP:
            self._handlers |= {kind: _refused for kind in self._handlers if kind.OF_TRUTH}
        self._add_messages = self[MessageRows].add
        self._end_run: list[Callable[[Stage], None]] = overridden(order, Family.end_run)
        for family in order:
            family.joined(order)
        self._growing = [family for family in order if family.grown is not Family.grown]
        self._mark = _load_mark(kv)
        self.sums = RunningSums(kv, self._mark.index, count)
        """The digest of all rows as of the last applied entry, and as of the last few marker entries."""
        self._failure: str | None = None

    # -- reads, any thread

    @property
    def applied(self) -> EntryId:
        """(term, index) of the last applied entry; (0, -1) if there is none."""
        return EntryId(self._mark.term, self._mark.index)

    @property
    def applied_mark(self) -> AppliedMark:
        """The last applied entry with its end in the log."""
        return self._mark

    def lowest_pinned_position(self) -> int | None:
        """Returns the lowest position in the log to which a row of a waiting message refers; None if no message waits.
        The value may be lower than any row's position (`Family.pinned_position`)."""
        begin, end = self.trim_position, self._mark.end_position
        pins: list[Callable[[int, int], int | None]] = overridden(self._order, Family.pinned_position)
        pinned = [pin(begin, end) for pin in pins]
        return min([position for position in pinned if position is not None], default=None)

    # -- apply, one lane

    def apply(self, entries: Sequence[Entry]) -> ApplyRun:
        """Applies the entries that follow `applied` in one batch, or in more if one of them is a TRIM. Raises
        InvariantViolationError or KVError: then no part of the failed batch is visible, the node must stop, and every
        later call is refused."""
        if self._failure is not None:
            raise InvariantViolationError(f"apply has failed before and the state is frozen: {self._failure}")
        if not entries:
            return ApplyRun([], set())
        try:
            if len(entries) == 1:
                return self._apply_run(entries)
            done = [self._apply_run(part) for part in runs_of(entries)]
        except BaseException as error:
            self._failure = str(error) or repr(error)
            raise
        if len(done) == 1:
            return done[0]
        return ApplyRun([result for run in done for result in run.results], set().union(*(run.grown for run in done)))

    def _apply_run(self, entries: Sequence[Entry]) -> ApplyRun:
        stage = Stage(self._kv)
        if self._mark is NOTHING_APPLIED:  # put before the other rows, so that a marker in this run counts the row
            stage.put(META, meta_keys.FORMAT_KEY, keys.U32.pack(keys.FORMAT))
        term, index = self._mark.term, self._mark.index
        results: list[list[CommandResult]] = []
        for entry in entries:
            if entry.index != index + 1 or entry.term < term:
                raise InvariantViolationError(
                    f"entry (term {entry.term}, index {entry.index}) does not follow (term {term}, index {index})"
                )
            term, index = entry.term, entry.index
            if entry.flags & FLAG_ROLL:
                for family in self._order:
                    family.begin_segment(stage, entry.timestamp_ms)
            results.append(self._apply_entry(stage, entry))
            if entry.type in MARKERS:
                self.sums.mark(stage, index)
        for end_run in self._end_run:
            end_run(stage)
        mark = AppliedMark(term, index, entry.end_position, entry.timestamp_ms, entry.header_crc)
        stage.put(META, meta_keys.APPLIED_KEY, meta_keys.APPLIED.pack(*mark))
        self.sums.stage(stage, index)
        self._kv.write(stage.batch())
        return ApplyRun(results, self._publish(mark))

    def _publish(self, mark: AppliedMark) -> set[tuple[int, int]]:
        for family in self._order:
            if family.changed:
                family.publish()
        self.sums.publish()
        self._mark = mark
        grown: set[tuple[int, int]] = set()
        for family in self._growing:
            grown |= family.grown
        return grown

    def _apply_entry(self, stage: Stage, entry: Entry) -> list[CommandResult]:
        kind = entry.type
        try:
            if kind == EntryType.MESSAGES:
                return self._apply_messages(stage, entry)
            if kind == EntryType.COMMAND:
                return self._apply_commands(stage, Stamp(entry.timestamp_ms, ""), unpack(entry.payload))
            if kind == EntryType.CHANGE:
                author, run = unpack_change(entry.payload)
                return self._apply_commands(stage, Stamp(entry.timestamp_ms, author), run)
            if (handler := self._entry_handlers.get(kind)) is not None:
                handler(stage, entry)
                return []
        except (InvariantViolationError, ValueError) as error:
            raise InvariantViolationError(f"entry (term {entry.term}, index {entry.index}): {error}") from error
        if kind not in _INDEX_ONLY:
            raise InvariantViolationError(
                f"entry (term {entry.term}, index {entry.index}) is of type {kind}, which this version cannot apply: "
                f"was it written by a newer RaftMQ?"
            )
        return []

    def _apply_messages(self, stage: Stage, entry: Entry) -> list[CommandResult]:
        """Applies a MESSAGES entry: first its effects (commands), then its rows."""
        decoded = payload.decode(entry.payload)
        results: list[CommandResult] = []
        if decoded.effects:
            results = self._apply_commands(stage, Stamp(entry.timestamp_ms, ""), unpack(decoded.effects))
        self._add_messages(stage, entry, decoded)
        return results

    def _apply_commands(self, stage: Stage, stamp: Stamp, run: Sequence[Found]) -> list[CommandResult]:
        stage.begin(stamp)
        return [self._apply_command(stage, command) for command in run]

    def _apply_command(self, stage: Stage, command: Found) -> CommandResult:
        if isinstance(command, Command):
            try:
                return self._handlers[type(command)](stage, command)
            except InvalidCommandError as error:
                return invalid(str(error))
        if isinstance(command, Invalid):
            return invalid(command.why)
        raise InvariantViolationError(f"unknown command {command.name!r}: was it written by a newer RaftMQ?")


def _refused(stage: Stage, command: Command) -> CommandResult:
    return CommandResult(False, "refused", f"only the log of group {FIRST_GROUP} takes {name_of(type(command))}")


def _load_mark(kv: KV) -> AppliedMark:
    row = kv.get(META, meta_keys.APPLIED_KEY)
    return NOTHING_APPLIED if row is None else AppliedMark(*meta_keys.APPLIED.unpack(row))

"""Checks, from the entries of the log, that messages which wait (scheduled, half or staged) hold back the trimming of
the log until they are stored again at a later position (docs/adr/0054).

- A TRIM never removes a message that still waits. Before it, the message was delivered, dropped or ended, or stored
  again at a later position.
- The scheduled messages of one row are delivered once, at or after their due time. The entry that delivers them
  contains a copy of each.
- Each node's counter of waiting messages has the value that follows from the log.
- Staged messages are copied to their queues if their attempt was committed, and dropped if it was not (docs/adr/0068).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.checks.staged_write_check import COMMITTED, DISCARDED, STAGED_DUE, WriteCheck
from raftlog.types import Entry, EntryType
from statemachine import payload
from statemachine.broker_state import BrokerState
from statemachine.command_table import in_entry, unpack
from statemachine.commands import Found
from statemachine.delivery.half_messages import EndHalves
from statemachine.delivery.timers import DeliverTimers, DropStaged, DropTimers, RecallTimer
from statemachine.payload import ITEM, RowKind, Run
from statemachine.trim import RemoveRows, Slice, decode

CHECKER = "pins"


class _Row(NamedTuple):
    """Scheduled messages that one row lists: their due time and their places in the log."""

    due_ms: int
    """Log time at which the messages are due. For staged messages it is STAGED_DUE plus the number of their attempt."""
    firsts: tuple[int, ...]
    """Byte position at which each message was first stored."""
    places: tuple[int, ...]
    """Byte position at which each message is now."""

    @property
    def count(self) -> int:  # type: ignore[override]
        """The number of messages."""
        return len(self.firsts)


class PinCheck:
    """Keeps its own model of the messages that wait, from each entry of the log once, and checks entries and nodes
    against it. `report` takes the checker's name and what is wrong."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._timers: dict[int, _Row] = {}
        """Byte position at which a row's first message was first stored -> the row."""
        self._halves: dict[int, int] = {}
        """Byte position at which a half message was first stored -> byte position at which it is now."""
        self._pending = 0
        """Number of scheduled messages that wait, staged ones included."""
        self._writes = WriteCheck()
        self.carried = 0
        """Number of rows that were stored again."""

    def learn(self, entry: Entry) -> None:
        """Checks the next entry and adds it to the model."""
        if entry.type == EntryType.MESSAGES:
            decoded = payload.decode(entry.payload)
            due = sum([self._command(entry, command) for command in unpack(decoded.effects)])
            queued = sum([self._run(run) for run in decoded.decoded_runs()])
            if queued < due:
                self._report(CHECKER, f"entry {entry.index} ends rows of {due} messages and has {queued} for queues")
        elif entry.type in (EntryType.COMMAND, EntryType.CHANGE):
            for command in in_entry(entry.type, entry.payload):
                if self._command(entry, command):
                    self._report(CHECKER, f"entry {entry.index} delivers scheduled messages and has no copies")
        elif entry.type == EntryType.TRIM:
            self._trim(entry)

    def compare(self, node: int, state: BrokerState) -> None:
        """Compares a node's counters of waiting messages with the check's own. The node must have applied exactly the
        entries that the check has learned."""
        found = state.timers.counts.pending + state.writes.left, state.halves.pending.count
        if found != (self._pending, len(self._halves)):
            waiting = f"{self._pending} scheduled or staged and {len(self._halves)} half messages wait"
            self._report(CHECKER, f"node {node} counts {found[0]} and {found[1]}; as the log has it, {waiting}")

    def _command(self, entry: Entry, command: Found) -> int:
        """Carries the command out on the check's own model; returns the number of message copies that the command asks
        for."""
        self._writes.learn(command)
        if isinstance(command, DeliverTimers):
            return sum([self._deliver(entry, due_ms, at) for due_ms, at in command.names])
        if isinstance(command, DropTimers):
            for due_ms, at in command.names:
                row = self._remove(at)
                if row is not None and due_ms >= STAGED_DUE:
                    self._writes.ends(due_ms - STAGED_DUE, row.count)
        elif isinstance(command, RecallTimer):
            self._recall(command.due_ms, command.position, command.message_position)
        elif isinstance(command, DropStaged):
            self._drop_staged(command.attempt, command.rows_max)
        elif isinstance(command, EndHalves):
            for at in command.positions:
                self._halves.pop(at, None)
        return 0

    def _deliver(self, entry: Entry, due_ms: int, at: int) -> int:
        row = self._remove(at)
        what = f"entry {entry.index} delivers the scheduled messages first stored at {at}"
        if row is None or row.due_ms != due_ms:
            self._report(CHECKER, f"{what}, due at {due_ms}: they do not wait (any more)")
            return 0
        if due_ms >= STAGED_DUE:
            state = self._writes.ends(due_ms - STAGED_DUE, row.count)
            if state != COMMITTED:
                self._report(CHECKER, f"{what}, of attempt {due_ms - STAGED_DUE}, which is {state}")
        elif due_ms > entry.timestamp_ms:
            self._report(CHECKER, f"{what} {due_ms - entry.timestamp_ms} ms before they are due")
        return row.count

    def _recall(self, due_ms: int, at: int, message: int) -> None:
        row = self._timers.get(at)
        if row is None or row.due_ms != due_ms or message not in row.firsts:
            return  # the message no longer waits
        left = [pair for pair in zip(row.firsts, row.places, strict=True) if pair[0] != message]
        self._pending -= 1
        if left:
            firsts, places = zip(*left, strict=True)
            self._timers[at] = _Row(due_ms, firsts, places)
        else:
            del self._timers[at]

    def _drop_staged(self, number: int, rows_max: int) -> None:
        if self._writes.state_of(number) == DISCARDED:
            due_ms = STAGED_DUE + number
            for at in sorted([at for at, row in self._timers.items() if row.due_ms == due_ms])[:rows_max]:
                row = self._remove(at)
                assert row is not None
                self._writes.ends(number, row.count)

    def _remove(self, at: int) -> _Row | None:
        row = self._timers.pop(at, None)
        self._pending -= 0 if row is None else row.count
        return row

    def _run(self, run: Run) -> int:
        """Adds a run of messages to the model; returns the number of them that come into a queue. Copies share runs
        with messages that clients send."""
        positions: list[Any] = [item[0] for item in ITEM.iter_unpack(run.items)]
        if run.kind < RowKind.SCHEDULED:
            return run.count
        if run.kind == RowKind.SCHEDULED:
            due_ms = run.base_offset
            if due_ms >= STAGED_DUE and not self._writes.stages(due_ms - STAGED_DUE, run.count):
                return 0
            self._timers[positions[0]] = _Row(run.base_offset, tuple(positions), tuple(positions))
            self._pending += run.count
        elif run.kind == RowKind.HALF:
            self._halves.update(zip(positions, positions, strict=True))
        elif run.kind == RowKind.CARRIED_TIMERS:
            row = self._timers.get(run.base_offset)
            if row is not None and row.count == run.count:
                self._timers[run.base_offset] = row._replace(places=tuple(positions))
                self.carried += 1
        elif run.kind == RowKind.CARRIED_HALF and run.base_offset in self._halves:
            self._halves[run.base_offset] = positions[0]
            self.carried += 1
        return 0

    def _trim(self, entry: Entry) -> None:
        trim = decode(entry.payload)
        if isinstance(trim, Slice | RemoveRows):
            return
        position = trim.position
        places = [(min(row.places), at) for at, row in self._timers.items()]
        places += [(place, at) for at, place in self._halves.items()]
        place, at = min(places, default=(position, 0))
        if place < position:
            what = f"the TRIM at index {entry.index} to position {position}"
            self._report(CHECKER, f"{what} passes a message that waits at {place} (first stored at {at})")

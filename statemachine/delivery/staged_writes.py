"""Staged writes: messages that enter their queues only if a commit names their attempt (docs/adr/0068).

A *write* has a name and a number: for a streaming query in Spark, its id and the batch id. An *attempt* is one try of
one task at a write. The messages of an attempt are rows of the family `timer` that never become due: their due time is
STAGED_DUE + the number of the attempt. The commit names the winning attempts and the number of messages in each. The
commit takes effect if all of these messages are stored. It discards all other attempts at this write, and at earlier
writes of the name. Many such attempts are discarded in slices (removals.py), but readers see them as discarded at once.

Invariants: a message of an attempt comes into a queue only after a commit named the attempt, and only once; for each
name, the committed numbers rise. A commit or an attempt that is repeated therefore changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import islice
from typing import Annotated, NamedTuple, Self

from msgspec import Meta

from raftlog.errors import InvariantViolationError
from statemachine.commands import U63, Command, CommandResult, InvalidCommandError, done, not_found
from statemachine.family import Families, Family, LaterRows, Reads, applies, family_of
from statemachine.levels import GROUPS_LEVEL
from statemachine.removals import Done, Losers, Removals
from statemachine.rows import keys
from statemachine.rows.kv import KV, TRANS
from statemachine.rows.sorted_map import SortedMap
from statemachine.rows.write_batch import Stage

STAGED_DUE = 1 << 63
"""Due times from here on are not times: such a due time is STAGED_DUE + the number of an attempt."""
NAME_MAX = 255
"""The most characters of a write's name."""
ATTEMPTS_MAX = 65_536
"""The most attempts in the state at once, whatever their state. At this number `open_attempt` is refused."""
WINNERS_MAX = 4_096
"""The most attempts that a commit may name. The commit changes a row for each."""
LOSERS_AT_ONCE = 16
"""The most attempts of the same name that are left open when a commit itself discards the losers among them. If there
are more, slices discard the losers (removals.py)."""
COMMITTED, INCOMPLETE, FULL, PREPARED = "committed", "incomplete", "full", "prepared"
"""Codes of command results. COMMITTED: the write, or a later one of the name, was committed before. INCOMPLETE: an
attempt is missing or incomplete. FULL: there are too many attempts. PREPARED: a write of the name is prepared and waits
for its decision (prepared_writes.py)."""

WriteName = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
"""The name of a write."""


class OpenAttempt(Command, tag="open_attempt", frozen=True):
    """Opens an attempt at a write."""

    name: WriteName
    write: U63
    now_ms: U63
    """Log time of the proposal."""


class CommitWrite(Command, tag="commit_write", frozen=True):
    """Commits a write with the winning attempts: [(attempt, number of its messages), ...]. The other attempts at the
    write, and at earlier ones of the name, are discarded."""

    name: WriteName
    write: U63
    now_ms: U63
    """Log time of the proposal."""
    winners: Sequence[tuple[U63, U63]]


class DiscardAttempts(Command, tag="discard_attempts", frozen=True):
    """Discards those of these attempts that are open."""

    attempts: Sequence[U63]


class ForgetWrite(Command, tag="forget_write", frozen=True):
    """Forgets that a write of the name was committed."""

    name: WriteName


class AttemptState(IntEnum):
    """The state of an attempt, which tells what happens to its messages."""

    OPEN = 0
    COMMITTED = 1
    """A commit named the attempt. Its messages are being copied into their queues."""
    DISCARDED = 2
    """The attempt lost. Its messages are being removed."""
    PREPARED = 3
    """The attempt waits for the decision of the first group of brokers. Only that decision ends it."""


_DRAINING = (AttemptState.COMMITTED, AttemptState.DISCARDED)
_KEPT = (AttemptState.OPEN, AttemptState.PREPARED)


class Attempt(NamedTuple):
    """One try of one task at a staged write."""

    number: int
    state: AttemptState
    write: int
    """The number of the write."""
    count: int  # type: ignore[assignment]
    """The number of messages that were staged for the attempt."""
    left: int
    """The number of the attempt's messages that are neither copied nor removed yet."""
    left_bytes: int
    """The bytes of the attempt's messages that are neither copied nor removed yet."""
    opened_ms: int
    staged_ms: int
    """Log time at which a message was last staged for the attempt."""
    name: str
    """The name of the write."""

    @property
    def due_ms(self) -> int:
        """The due time of the attempt's rows, which is no time but contains the attempt's number."""
        return STAGED_DUE + self.number


class CommittedWrite(NamedTuple):
    """The newest committed write of a name."""

    name: str
    write: int
    count: int  # type: ignore[assignment]
    """The number of messages that the write brought into queues."""
    committed_ms: int
    """Log time of the commit."""


class StagedWrites(Family):
    """All attempts and committed writes, as rows "a", "w" and "b" of the family `trans`. Any thread may read
    `draining`, `left` and `left_bytes`, and call `get`, `attempts`, `open_of`, `committed` and `committed_writes`."""

    ROWS = ((TRANS, b"a"), (TRANS, b"b"), (TRANS, b"w"))
    LATER_ROWS = (LaterRows(GROUPS_LEVEL, TRANS, b"a", lambda row: row[0] == AttemptState.PREPARED),)

    def __init__(self, kv: KV, removals: Removals) -> None:
        """`removals`: the pending removals, which tell the attempts that slices are still going to discard."""
        self._kv = kv
        self._removals = removals
        stored = [_attempt(key, row) for key, row in kv.scan(TRANS, *keys.ATTEMPTS)]
        self._attempts = SortedMap((attempt.number, attempt) for attempt in stored)
        """The attempts by number, exactly as in their rows."""
        self._live = len(stored)
        """The number of attempts in the state, with the changes of the batch being applied."""
        self._open: dict[str, SortedMap[int, int]] = {}
        """Name of writes -> (number of each attempt whose row is open -> its write), with the changes of the batch
        being applied."""
        self._prepared: dict[str, SortedMap[int, int]] = {}
        """Name of writes -> (number of each attempt whose row is prepared -> its write), with the changes of the batch
        being applied. All prepared attempts of a name belong to one write."""
        for attempt in stored:
            if attempt.state in _KEPT:
                self._list_of(attempt.state).setdefault(attempt.name, SortedMap()).put(attempt.number, attempt.write)
        self.draining = SortedMap((attempt.number, attempt.state) for attempt in stored if attempt.state in _DRAINING)
        """Number of each attempt whose messages are being copied or removed -> its state."""
        self.left = self._staged_left = sum([attempt.left for attempt in self._attempts.values()])
        """The number of staged messages of all attempts that are neither copied nor removed yet."""
        self.left_bytes = self._staged_bytes = sum([attempt.left_bytes for attempt in self._attempts.values()])
        """The bytes in the log of the messages that `left` counts."""
        self.changed: dict[int, Attempt | None] = {}
        """Attempts that the batch being applied has changed; None for one that is finished and removed."""

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes this family of rows for one state. `families` has the families on which it depends."""
        return cls(families.kv, families[Removals])

    def get(self, number: int) -> Attempt | None:
        """Returns the attempt; None if it was never opened, or is finished and removed."""
        attempt = self._attempts.get(number)
        return attempt and self._seen(attempt)

    def attempts(self) -> Iterator[Attempt]:
        """Yields all attempts, up to ATTEMPTS_MAX, in the order of their numbers."""
        return (self._seen(attempt) for attempt in self._attempts.values())

    def open_of(self, name: str, write: int, after: int, count_max: int) -> tuple[list[Attempt], int | None]:
        """Returns open attempts at the write, found among the next `count_max` open attempts of its name with numbers
        above `after`; and the number after which to continue, None if there are no more."""
        numbers = self._open.get(name, _NONE).keys_from(after, count_max)
        there = [attempt for attempt in map(self.get, numbers) if attempt is not None]
        found = [attempt for attempt in there if (attempt.write, attempt.state) == (write, AttemptState.OPEN)]
        return found, numbers[-1] if len(numbers) == count_max else None

    def committed(self, name: str) -> CommittedWrite | None:
        """Returns the newest committed write of the name; None if there is none, or it was forgotten."""
        row = self._kv.get(TRANS, keys.write_key(name))
        return None if row is None else CommittedWrite(name, *keys.WRITE.unpack(row))

    def committed_writes(self, count_max: int) -> list[CommittedWrite]:
        """Returns the newest committed write of each name, in the order of the names, for at most `count_max` names."""
        rows = islice(self._kv.scan(TRANS, *keys.WRITES), count_max)
        return [CommittedWrite(key[1:].decode(), *keys.WRITE.unpack(row)) for key, row in rows]

    # -- apply

    @applies(OpenAttempt)
    def open(self, stage: Stage, command: OpenAttempt) -> CommandResult:
        """Opens a new attempt at the write. The result's value is the attempt's number. The result is COMMITTED if the
        write is not newer than the last committed one of its name, FULL if there are ATTEMPTS_MAX attempts."""
        name, write, now_ms = command.name, command.write, command.now_ms
        before = self._committed(stage, name)
        if before is not None and write <= before.write:
            return CommandResult(False, COMMITTED, before.write)
        if self._live >= ATTEMPTS_MAX:
            return CommandResult(False, FULL, ATTEMPTS_MAX)
        number = self._next_number(stage)
        self._live += 1
        stage.put(TRANS, keys.NEXT_ATTEMPT_KEY, keys.U64.pack(number + 1))
        self._put(stage, Attempt(number, AttemptState.OPEN, write, 0, 0, 0, now_ms, now_ms, name))
        return done(number)

    def current(self, number: int) -> Attempt | None:
        """Returns the attempt, with the changes of the batch being applied; None if there is none."""
        attempt = self.changed[number] if number in self.changed else self._attempts.get(number)
        return attempt and self._seen(attempt)

    def stage(self, stage: Stage, number: int, count: int, size: int, now_ms: int) -> bool:
        """Adds newly staged messages to the attempt's counters. Returns False if the attempt is not open: the caller
        then stores no row for them."""
        attempt = self.current(number)
        if attempt is None or attempt.state is not AttemptState.OPEN:
            return False
        left, left_bytes = attempt.left + count, attempt.left_bytes + size
        self._put(
            stage, attempt._replace(count=attempt.count + count, left=left, left_bytes=left_bytes, staged_ms=now_ms)
        )
        self._staged_left += count
        self._staged_bytes += size
        return True

    def remove(self, stage: Stage, number: int, count: int, size: int) -> None:
        """Subtracts messages from the attempt's counters, because they were copied or removed. Called once for each
        removed row."""
        self._staged_left -= count
        self._staged_bytes -= size
        attempt = self.current(number)
        if attempt is not None:
            left = attempt._replace(left=attempt.left - count, left_bytes=attempt.left_bytes - size)
            if left.left or left.state in _KEPT:
                self._put(stage, left)
            else:
                self._drop(stage, left)

    @applies(CommitWrite)
    def commit(self, stage: Stage, command: CommitWrite) -> CommandResult:
        """Commits the write with its winning attempts. A write that is not newer than the last committed one of its
        name is refused with the code COMMITTED and the number of that last write. The result is INCOMPLETE, with the
        reason, if an attempt is not open at this write or has another number of messages. The result is PREPARED, with
        the write's number, if a write of the name waits for its decision. Otherwise its value is the number of messages
        that the write brings. Slices discard the other attempts if there are many.

        Raises InvalidCommandError if an attempt is named twice.
        """
        return self.commit_with(stage, command.name, command.write, command.now_ms, command.winners)

    def commit_with(
        self, stage: Stage, name: str, write: int, now_ms: int, winners: Sequence[tuple[int, int]]
    ) -> CommandResult:
        """Commits a write as `commit` says. Raises InvalidCommandError if an attempt is named twice."""
        counts = dict(winners)
        if len(counts) < len(winners):
            raise InvalidCommandError("an attempt is named twice")
        refused = self.refusal(stage, name, write, counts)
        if refused is not None:
            return refused
        if name in self._prepared:
            return CommandResult(False, PREPARED, min(self._prepared[name].values()))
        total = sum(counts.values())
        self._decide(stage, name, write, counts)
        stage.put(TRANS, keys.write_key(name), keys.WRITE.pack(write, total, now_ms))
        return done(total)

    @applies(DiscardAttempts)
    def discard(self, stage: Stage, command: DiscardAttempts) -> CommandResult:
        """Discards those of these attempts that are open. The result's value is the number of discarded attempts."""
        return done(sum([self.end(stage, number, AttemptState.DISCARDED) for number in command.attempts]))

    @applies(ForgetWrite)
    def forget(self, stage: Stage, command: ForgetWrite) -> CommandResult:
        """Removes the record of the name's committed write, so that the name may be used again, from any write number
        on. The result's value is the number of that write. The result is `not_found` if there is none, and PREPARED if
        a write of the name waits for its decision."""
        name = command.name
        before = self._committed(stage, name)
        if before is None:
            return not_found(f"no committed write {name!r}")
        if name in self._prepared:
            return CommandResult(False, PREPARED, min(self._prepared[name].values()))
        stage.delete(TRANS, keys.write_key(name))
        return done(before.write)

    # -- apply, for prepared_writes.py

    def refusal(self, stage: Stage, name: str, write: int, winners: Mapping[int, int]) -> CommandResult | None:
        """Returns the result that refuses a command which names `winners` (attempt -> number of its messages) as
        winners of the write; None if the command may name them."""
        before = self._committed(stage, name)
        if before is not None and write <= before.write:
            return CommandResult(False, COMMITTED, before.write)
        for number, count in winners.items():
            wrong = self._mismatch(number, count, name, write)
            if wrong:
                return CommandResult(False, INCOMPLETE, wrong)
        return None

    def is_prepared(self, name: str) -> bool:
        """Returns True if attempts at a write of the name wait for a decision."""
        return name in self._prepared

    def prepare(self, stage: Stage, numbers: Iterable[int]) -> None:
        """Marks open attempts as prepared: they wait for the decision."""
        for number in numbers:
            self._put(stage, self._known(number)._replace(state=AttemptState.PREPARED))

    def commit_prepared(self, stage: Stage, name: str, write: int, total: int, now_ms: int) -> None:
        """Commits the prepared attempts of the name, and discards the attempts that lose. Records the write as the
        newest committed one, unless a later one is recorded. `total`: the number of messages of the prepared
        attempts."""
        before = self._committed(stage, name)
        self._decide(stage, name, write, list(self._prepared.get(name, ())))
        if before is None or before.write < write:
            stage.put(TRANS, keys.write_key(name), keys.WRITE.pack(write, total, now_ms))

    def discard_prepared(self, stage: Stage, name: str) -> None:
        """Discards the prepared attempts of the name."""
        for number in list(self._prepared.get(name, ())):
            self._finish(stage, self._known(number), AttemptState.DISCARDED)

    def end(self, stage: Stage, number: int, state: AttemptState) -> bool:
        """Moves an attempt to the state `state`, if it is open. Returns True if it was."""
        attempt = self.current(number)
        if attempt is None or attempt.state is not AttemptState.OPEN:
            return False
        self._finish(stage, attempt, state)
        return True

    def discard_losers(self, stage: Stage, losers: Losers, at: bytes, rows_max: int) -> Done:
        """Discards attempts that lost by a commit, from the key `at` on, among the next `rows_max` attempts of their
        name. Returns how far it came."""
        after = keys.attempt_number(at) - 1 if at else 0
        numbers = self._open.get(losers.name, _NONE).keys_from(after, rows_max)
        for number in numbers:
            attempt = self._attempts[number]
            if attempt.write <= losers.write and number < losers.below:
                self._finish(stage, attempt, AttemptState.DISCARDED)
        return Done(len(numbers), keys.attempt_key(numbers[-1] + 1) if len(numbers) == rows_max else None)

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written."""
        if not self.changed:
            return
        changed, self.changed = self.changed, {}
        for number, attempt in changed.items():
            if attempt is not None:
                self._attempts.put(number, attempt)
                if attempt.state in _DRAINING:
                    self.draining.put(number, attempt.state)
                continue
            for rows in (self._attempts, self.draining):
                if number in rows:
                    rows.remove(number)
        self.left, self.left_bytes = self._staged_left, self._staged_bytes

    # -- internal methods

    def _mismatch(self, number: int, count: int, name: str, write: int) -> str:
        """Returns the reason why a commit of the write may not name the attempt; "" if it may."""
        attempt = self.current(number)
        # The text does not show the name of another write, because the client that commits may have no right to that
        # write.
        if attempt is None or attempt.state is not AttemptState.OPEN or (attempt.name, attempt.write) != (name, write):
            return f"attempt {number} is no open attempt at this write (any more)"
        if attempt.count != count:
            return f"attempt {number} has {attempt.count} messages, not {count}"
        return ""

    def _seen(self, attempt: Attempt) -> Attempt:
        """Returns the attempt as readers see it: as discarded if a slice has yet to discard it."""
        if attempt.state is AttemptState.OPEN and self._removals.loses(attempt.name, attempt.write, attempt.number):
            return attempt._replace(state=AttemptState.DISCARDED)
        return attempt

    def _decide(self, stage: Stage, name: str, write: int, winners: Iterable[int]) -> None:
        """Commits the winners. Slices discard the other attempts if there are many."""
        for number in winners:
            self._finish(stage, self._known(number), AttemptState.COMMITTED)
        if len(self._open.get(name, ())) > LOSERS_AT_ONCE:
            self._removals.begin_write(stage, Losers(name, write, self._next_number(stage)))
        else:
            self._discard_open(stage, name, write)

    def _known(self, number: int) -> Attempt:
        """Returns the attempt. Raises InvariantViolationError if it has no row."""
        attempt = self.current(number)
        if attempt is None:
            raise InvariantViolationError(f"attempt {number} is listed and has no row")
        return attempt

    def _discard_open(self, stage: Stage, name: str, write: int) -> None:
        """Discards the open attempts at this write or an earlier one of the name."""
        for number in [number for number, of in self._open.get(name, _NONE).items() if of <= write]:
            self.end(stage, number, AttemptState.DISCARDED)

    def _finish(self, stage: Stage, attempt: Attempt, state: AttemptState) -> None:
        if attempt.left:
            self._put(stage, attempt._replace(state=state))
        else:
            self._drop(stage, attempt)

    def _next_number(self, stage: Stage) -> int:
        row = stage.get(TRANS, keys.NEXT_ATTEMPT_KEY)
        number: int = 1 if row is None else keys.U64.unpack(row)[0]
        return number

    def _committed(self, stage: Stage, name: str) -> CommittedWrite | None:
        row = stage.get(TRANS, keys.write_key(name))
        return None if row is None else CommittedWrite(name, *keys.WRITE.unpack(row))

    def _put(self, stage: Stage, attempt: Attempt) -> None:
        self.changed[attempt.number] = attempt
        if attempt.state not in _KEPT or attempt.number not in self._list_of(attempt.state).get(attempt.name, _NONE):
            self._close(attempt)
            if attempt.state in _KEPT:
                self._list_of(attempt.state).setdefault(attempt.name, SortedMap()).put(attempt.number, attempt.write)
        stage.put(TRANS, keys.attempt_key(attempt.number), keys.ATTEMPT.pack(*attempt[1:-1]) + attempt.name.encode())

    def _drop(self, stage: Stage, attempt: Attempt) -> None:
        self.changed[attempt.number] = None
        self._close(attempt)
        self._live -= 1
        stage.delete(TRANS, keys.attempt_key(attempt.number))

    def _list_of(self, state: AttemptState) -> dict[str, SortedMap[int, int]]:
        """Returns `_open` or `_prepared`, the one that lists the attempts in the state `state` (one of _KEPT)."""
        return self._open if state is AttemptState.OPEN else self._prepared

    def _close(self, attempt: Attempt) -> None:
        """Removes the attempt from `_open` or `_prepared`, because its row no longer has that state."""
        for of_names in (self._open, self._prepared):
            numbers = of_names.get(attempt.name)
            if numbers is not None and attempt.number in numbers:
                numbers.remove(attempt.number)
                if not numbers:
                    del of_names[attempt.name]


class WriteReads(Reads):
    """Read access to what a state holds about staged writes."""

    writes = family_of(StagedWrites)
    """Messages of staged writes (Spark), which wait for a commit."""


_NONE = SortedMap[int, int]()


def attempt_of(due_ms: int) -> int | None:
    """Returns the number of the attempt whose rows have this due time; None if it is a real time."""
    return due_ms - STAGED_DUE if due_ms >= STAGED_DUE else None


def _attempt(key: bytes, row: bytes) -> Attempt:
    state, write, count, left, size, opened_ms, staged_ms = keys.ATTEMPT.unpack_from(row)
    number = keys.attempt_number(key)
    name = row[keys.ATTEMPT.size :].decode()
    return Attempt(number, AttemptState(state), write, count, left, size, opened_ms, staged_ms, name)

"""Staged writes: messages that come into their queues if one commit names them, and else never (docs/adr/0068).

A *write* has a name and a number: of a streaming query its id and the batch id. An *attempt* is one try of one task at
a write. Its messages are rows of the family `timer` that are never due: their due time is STAGED_DUE + the number of
the attempt. The commit names the winning attempts and how many messages each has; it counts if all of them are there,
and discards what else is staged for that write or an earlier one of the name. If these are many, slices discard them
(removals.py), and meanwhile everybody sees them as discarded.

Invariants: a message of an attempt comes into a queue only after a commit named the attempt, once; of each name, the
numbers that are committed rise. So a commit or an attempt that comes again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from itertools import islice
from typing import Any, NamedTuple

from statemachine.commands import CommandResult, InvalidCommandError, checked_int, checked_str, done, not_found
from statemachine.removals import Done, Losers, Removals
from statemachine.rows import keys
from statemachine.rows.kv import KV, TRANS
from statemachine.rows.sorted_map import SortedMap
from statemachine.rows.stage import Stage

STAGED_DUE = 1 << 63
"""Due times from here on are no times: what is left is the number of an attempt."""
NAME_MAX = 255
"""Characters of the name of a write."""
ATTEMPTS_MAX = 65_536
"""Attempts that are there at once, whatever became of them: `open_attempt` is refused above it."""
WINNERS_MAX = 4_096
"""Attempts that a commit may name: each of them is a row that the commit changes."""
LOSERS_AT_ONCE = 16
"""A commit looks at so many other attempts of its name. If there are more, slices discard them (removals.py)."""
COMMITTED, INCOMPLETE, FULL = "committed", "incomplete", "full"
"""Codes of results: it was committed before; an attempt is not there, or not whole; there are too many attempts."""


class AttemptState(IntEnum):
    """The fate of an attempt's messages."""

    OPEN = 0
    COMMITTED = 1
    """They are being copied into their queues."""
    DISCARDED = 2
    """They are being removed."""


class Attempt(NamedTuple):
    """One try of one task."""

    number: int
    state: AttemptState
    write: int
    """The number of the write."""
    count: int  # type: ignore[assignment]
    """Messages that were staged."""
    left: int
    """Staged messages that are neither copied nor removed."""
    left_bytes: int
    """Bytes of the messages that are left."""
    opened_ms: int
    staged_ms: int
    """The time when something was staged last, log time."""
    name: str
    """The name of the write."""

    @property
    def due_ms(self) -> int:
        """The due time of its rows."""
        return STAGED_DUE + self.number


class CommittedWrite(NamedTuple):
    """The newest write of a name."""

    name: str
    write: int
    count: int  # type: ignore[assignment]
    """Messages that it brought."""
    committed_ms: int
    """Log time."""


class StagedWrites:
    """Rows "a", "w" and "b" of the family `trans`. The members up to `committed_writes` may be used on any thread."""

    def __init__(self, kv: KV, removals: Removals) -> None:
        """`removals`: attempts that they are to discard are discarded already, to everybody."""
        self._kv = kv
        self._removals = removals
        stored = [_attempt(key, row) for key, row in kv.scan(TRANS, *keys.ATTEMPTS)]
        self._attempts = SortedMap((attempt.number, attempt) for attempt in stored)
        """The attempts as their rows have them."""
        self._live = len(stored)
        """Attempts that are there as of the run."""
        self._open: dict[str, SortedMap[int, int]] = {}
        """Name -> the attempts whose rows are open, and their writes, as of the run."""
        for attempt in stored:
            if attempt.state is AttemptState.OPEN:
                self._open.setdefault(attempt.name, SortedMap()).put(attempt.number, attempt.write)
        self.draining = SortedMap((attempt.number, attempt.state) for attempt in stored if attempt.state)
        """Attempts that are copied or removed, by number."""
        self.left = self._staged_left = sum([attempt.left for attempt in self._attempts.values()])
        """Messages that are staged, of all attempts."""
        self.left_bytes = self._staged_bytes = sum([attempt.left_bytes for attempt in self._attempts.values()])
        """The bytes in the log of the staged messages."""
        self.changed: dict[int, Attempt | None] = {}
        """Attempts that the run changed; nothing is left of one that is None."""

    def get(self, number: int) -> Attempt | None:
        """The attempt; None if it was never opened, or nothing is left of it."""
        attempt = self._attempts.get(number)
        return attempt and self._seen(attempt)

    def attempts(self) -> Iterator[Attempt]:
        """All of them, by number; there may be ATTEMPTS_MAX."""
        return (self._seen(attempt) for attempt in self._attempts.values())

    def open_of(self, name: str, write: int, after: int, count_max: int) -> tuple[list[Attempt], int | None]:
        """Open attempts at the write with numbers above `after`, after a look at up to `count_max` of its name; and
        behind which number to look next, None if there are no more."""
        numbers = self._open.get(name, _NONE).keys_from(after, count_max)
        there = [attempt for attempt in map(self.get, numbers) if attempt is not None]
        found = [attempt for attempt in there if (attempt.write, attempt.state) == (write, AttemptState.OPEN)]
        return found, numbers[-1] if len(numbers) == count_max else None

    def committed(self, name: str) -> CommittedWrite | None:
        """The newest committed write of the name; None if there is none, or it was forgotten."""
        row = self._kv.get(TRANS, keys.write_key(name))
        return None if row is None else CommittedWrite(name, *keys.WRITE.unpack(row))

    def committed_writes(self, count_max: int) -> list[CommittedWrite]:
        """The newest of each name, in the order of the names; up to so many."""
        rows = islice(self._kv.scan(TRANS, *keys.WRITES), count_max)
        return [CommittedWrite(key[1:].decode(), *keys.WRITE.unpack(row)) for key, row in rows]

    # -- apply

    def open(self, stage: Stage, name: Any, write: Any, now_ms: Any) -> CommandResult:
        """A new attempt at the write; value: its number."""
        name, write, now_ms = _checked_name(name), _checked_u63(write, "write"), _checked_u63(now_ms, "now_ms")
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
        """The attempt as of the run."""
        attempt = self.changed[number] if number in self.changed else self._attempts.get(number)
        return attempt and self._seen(attempt)

    def stage(self, stage: Stage, number: int, count: int, size: int, now_ms: int) -> bool:
        """Messages are staged for the attempt; False if it is not open: then they are nobody's."""
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
        """Counts messages of the attempt that were copied or removed; called once for each row that went."""
        self._staged_left -= count
        self._staged_bytes -= size
        attempt = self.current(number)
        if attempt is not None:
            left = attempt._replace(left=attempt.left - count, left_bytes=attempt.left_bytes - size)
            if left.left or left.state is AttemptState.OPEN:
                self._put(stage, left)
            else:
                self._drop(stage, left)

    def commit(self, stage: Stage, name: Any, write: Any, now_ms: Any, winners: Any) -> CommandResult:
        """Commits the write with these attempts, [[number, count], ...]; value: how many messages it brings. A write
        that was committed before, or an earlier one, is refused with the number of the newest: no attempt at it is
        open. Slices discard the others if there are many."""
        name, write, now_ms = _checked_name(name), _checked_u63(write, "write"), _checked_u63(now_ms, "now_ms")
        counts = _checked_winners(winners)
        before = self._committed(stage, name)
        if before is not None and write <= before.write:
            return CommandResult(False, COMMITTED, before.write)
        for number, count in counts.items():
            wrong = self._mismatch(number, count, name, write)
            if wrong:
                return CommandResult(False, INCOMPLETE, wrong)
        for number in counts:
            self._end(stage, number, AttemptState.COMMITTED)
        if len(self._open.get(name, ())) > LOSERS_AT_ONCE:
            self._removals.begin_write(stage, Losers(name, write, self._next_number(stage)))
        else:
            self._discard_open(stage, name, write)
        total = sum(counts.values())
        stage.put(TRANS, keys.write_key(name), keys.WRITE.pack(write, total, now_ms))
        return done(total)

    def discard(self, stage: Stage, numbers: Any) -> CommandResult:
        """Discards those of these attempts that are open; value: how many."""
        if type(numbers) is not list:
            raise InvalidCommandError(f"attempts must be a list, not {numbers!r}")
        checked = [_checked_u63(number, "attempt") for number in numbers]
        return done(sum([self._end(stage, number, AttemptState.DISCARDED) for number in checked]))

    def forget(self, stage: Stage, name: Any) -> CommandResult:
        """Forgets what was committed under the name: it may be written anew, from any number."""
        name = _checked_name(name)
        before = self._committed(stage, name)
        if before is None:
            return not_found(f"no committed write {name!r}")
        stage.delete(TRANS, keys.write_key(name))
        return done(before.write)

    def discard_losers(self, stage: Stage, losers: Losers, at: bytes, rows_max: int) -> Done:
        """Discards losers from the key `at` on, after a look at up to `rows_max` of their name."""
        after = keys.attempt_number(at) - 1 if at else 0
        numbers = self._open.get(losers.name, _NONE).keys_from(after, rows_max)
        for number in numbers:
            attempt = self._attempts[number]
            if attempt.write <= losers.write and number < losers.below:
                self._finish(stage, attempt, AttemptState.DISCARDED)
        return Done(len(numbers), keys.attempt_key(numbers[-1] + 1) if len(numbers) == rows_max else None)

    def publish(self) -> None:
        """Publishes the run's changes; called when its batch is written."""
        if not self.changed:
            return
        changed, self.changed = self.changed, {}
        for number, attempt in changed.items():
            if attempt is not None:
                self._attempts.put(number, attempt)
                if attempt.state:
                    self.draining.put(number, attempt.state)
                continue
            for rows in (self._attempts, self.draining):
                if number in rows:
                    rows.remove(number)
        self.left, self.left_bytes = self._staged_left, self._staged_bytes

    # -- inside

    def _mismatch(self, number: int, count: int, name: str, write: int) -> str:
        """Returns the reason why the attempt cannot be among those of the write; "" if it can."""
        attempt = self.current(number)
        if attempt is None or attempt.state is not AttemptState.OPEN:
            return f"attempt {number} is not open (any more)"
        if (attempt.name, attempt.write) != (name, write):
            return f"attempt {number} is of write {attempt.write} of {attempt.name!r}"
        if attempt.count != count:
            return f"attempt {number} has {attempt.count} messages, not {count}"
        return ""

    def _seen(self, attempt: Attempt) -> Attempt:
        """The attempt as everybody sees it: its row may say so only later."""
        if attempt.state is AttemptState.OPEN and self._removals.loses(attempt.name, attempt.write, attempt.number):
            return attempt._replace(state=AttemptState.DISCARDED)
        return attempt

    def _discard_open(self, stage: Stage, name: str, write: int) -> None:
        """Discards what is open for this write or an earlier one of the name."""
        for number in [number for number, of in self._open.get(name, _NONE).items() if of <= write]:
            self._end(stage, number, AttemptState.DISCARDED)

    def _end(self, stage: Stage, number: int, state: AttemptState) -> bool:
        """Ends an attempt if it is open: whether it was."""
        attempt = self.current(number)
        if attempt is None or attempt.state is not AttemptState.OPEN:
            return False
        self._finish(stage, attempt, state)
        return True

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
        if attempt.state is AttemptState.OPEN:
            if attempt.number not in (numbers := self._open.get(attempt.name, _NONE)):
                if numbers is _NONE:
                    numbers = self._open[attempt.name] = SortedMap()
                numbers.put(attempt.number, attempt.write)
        else:
            self._close(attempt)
        stage.put(TRANS, keys.attempt_key(attempt.number), keys.ATTEMPT.pack(*attempt[1:-1]) + attempt.name.encode())

    def _drop(self, stage: Stage, attempt: Attempt) -> None:
        self.changed[attempt.number] = None
        self._close(attempt)
        self._live -= 1
        stage.delete(TRANS, keys.attempt_key(attempt.number))

    def _close(self, attempt: Attempt) -> None:
        """Takes the attempt from the open ones: its row is not open any more."""
        numbers = self._open.get(attempt.name)
        if numbers is not None and attempt.number in numbers:
            numbers.remove(attempt.number)
            if not numbers:
                del self._open[attempt.name]


_NONE = SortedMap[int, int]()


def attempt_of(due_ms: int) -> int | None:
    """The number of the attempt whose row has this due time; None if it is a time."""
    return due_ms - STAGED_DUE if due_ms >= STAGED_DUE else None


def _attempt(key: bytes, row: bytes) -> Attempt:
    state, write, count, left, size, opened_ms, staged_ms = keys.ATTEMPT.unpack_from(row)
    number = keys.attempt_number(key)
    name = row[keys.ATTEMPT.size :].decode()
    return Attempt(number, AttemptState(state), write, count, left, size, opened_ms, staged_ms, name)


def _checked_name(value: Any) -> str:
    name = checked_str(value, "name")
    if not 0 < len(name) <= NAME_MAX:
        raise InvalidCommandError(f"the name of a write has 1 to {NAME_MAX} characters, not {len(name)}")
    return name


def _checked_u63(value: Any, what: str) -> int:
    return checked_int(value, what, 0, STAGED_DUE - 1)


def _checked_winners(value: Any) -> dict[int, int]:
    """Attempt -> messages. Raises InvalidCommandError before anything changes."""
    if type(value) is not list:
        raise InvalidCommandError(f"winners must be a list, not {value!r}")
    found: dict[int, int] = {}
    for pair in _pairs(value):
        if pair[0] in found:
            raise InvalidCommandError(f"attempt {pair[0]} is named twice")
        found[pair[0]] = pair[1]
    return found


def _pairs(value: list[Any]) -> Iterator[tuple[int, int]]:
    for pair in value:
        if type(pair) is not list or len(pair) != 2:
            raise InvalidCommandError(f"a winner is [attempt, count], not {pair!r}")
        yield _checked_u63(pair[0], "attempt"), _checked_u63(pair[1], "count")

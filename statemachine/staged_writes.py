"""Staged writes: messages that come into their queues if one commit names them, and else never (docs/adr/0068).

A *write* has a name and a number: of a streaming query its id and the batch id. An *attempt* is one try of one task at
a write. Its messages are rows of the family `timer` that are never due: their due time is STAGED_DUE + the number of
the attempt. The commit names the winning attempts and how many messages each has; it counts if all of them are there,
and discards what else is staged for that write or an earlier one of the name.

Invariants: a message of an attempt comes into a queue only after a commit named the attempt, once; of each name, the
numbers that are committed rise. So a commit or an attempt that comes again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from itertools import islice
from typing import Any, NamedTuple

from statemachine import keys
from statemachine.commands import CommandResult, InvalidCommandError, checked_int, checked_str, done, not_found
from statemachine.kv import KV, TRANS
from statemachine.stage import Stage

STAGED_DUE = 1 << 63
"""Due times from here on are no times: what is left is the number of an attempt."""
NAME_MAX = 255
"""Characters of the name of a write."""
ATTEMPTS_MAX = 65_536
"""That are there at once, whatever became of them: `open_attempt` is refused above it."""
COMMITTED, INCOMPLETE, FULL = "committed", "incomplete", "full"
"""Codes of results: it was committed before; an attempt is not there, or not whole; there are too many attempts."""


class AttemptState(IntEnum):
    """What becomes of an attempt's messages."""

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
    """Of those, the ones that are neither copied nor removed."""
    left_bytes: int
    """Of the messages that are left."""
    opened_ms: int
    staged_ms: int
    """When something was staged last, log time."""
    name: str
    """Of the write."""

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

    def __init__(self, kv: KV) -> None:
        self._kv = kv
        self._attempts = {
            attempt.number: attempt for attempt in (_attempt(key, row) for key, row in kv.scan(TRANS, *keys.ATTEMPTS))
        }
        self._live = len(self._attempts)
        """Attempts that are there as of the run."""
        self.draining = tuple([number for number, attempt in self._attempts.items() if attempt.state])
        """Numbers of the attempts that are copied or removed, ascending. Replaced as a whole."""
        self.left = self._staged_left = sum([attempt.left for attempt in self._attempts.values()])
        """Messages that are staged, of all attempts."""
        self.left_bytes = self._staged_bytes = sum([attempt.left_bytes for attempt in self._attempts.values()])
        """Their bytes in the log."""
        self.changed: dict[int, Attempt | None] = {}
        """By the run."""

    def get(self, number: int) -> Attempt | None:
        """The attempt; None if it was never opened, or nothing is left of it."""
        return self._attempts.get(number)

    def attempts(self) -> list[Attempt]:
        """All of them, by number."""
        return sorted(self._attempts.values())

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
        row = stage.get(TRANS, keys.NEXT_ATTEMPT_KEY)
        number: int = 1 if row is None else keys.U64.unpack(row)[0]
        self._live += 1
        stage.put(TRANS, keys.NEXT_ATTEMPT_KEY, keys.U64.pack(number + 1))
        self._put(stage, Attempt(number, AttemptState.OPEN, write, 0, 0, 0, now_ms, now_ms, name))
        return done(number)

    def current(self, number: int) -> Attempt | None:
        """The attempt as of the run."""
        return self.changed[number] if number in self.changed else self._attempts.get(number)

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
        """So many of its messages were copied or removed; called once for each row that went."""
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
        that was committed before, or an earlier one, is refused with the number of the newest, and what was staged for
        it again is discarded."""
        name, write, now_ms = _checked_name(name), _checked_u63(write, "write"), _checked_u63(now_ms, "now_ms")
        counts = _checked_winners(winners)
        before = self._committed(stage, name)
        if before is not None and write <= before.write:
            self._discard_others(stage, name, write, {})
            return CommandResult(False, COMMITTED, before.write)
        for number, count in counts.items():
            wrong = self._mismatch(number, count, name, write)
            if wrong:
                return CommandResult(False, INCOMPLETE, wrong)
        self._discard_others(stage, name, write, counts)
        for number in counts:
            self._end(stage, number, AttemptState.COMMITTED)
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

    def publish(self) -> None:
        """Publishes the run's changes; called when its batch is written."""
        if not self.changed:
            return
        changed, self.changed = self.changed, {}
        draining = set(self.draining)
        for number, attempt in changed.items():
            if attempt is None:
                self._attempts.pop(number, None)
                draining.discard(number)
                continue
            self._attempts[number] = attempt
            if attempt.state:
                draining.add(number)
        self.left, self.left_bytes = self._staged_left, self._staged_bytes
        if len(draining) != len(self.draining) or not draining.issuperset(self.draining):
            self.draining = tuple(sorted(draining))

    # -- inside

    def _mismatch(self, number: int, count: int, name: str, write: int) -> str:
        """Why the attempt cannot be among those of the write; "" if it can."""
        attempt = self.current(number)
        if attempt is None or attempt.state is not AttemptState.OPEN:
            return f"attempt {number} is not open (any more)"
        if (attempt.name, attempt.write) != (name, write):
            return f"attempt {number} is of write {attempt.write} of {attempt.name!r}"
        if attempt.count != count:
            return f"attempt {number} has {attempt.count} messages, not {count}"
        return ""

    def _discard_others(self, stage: Stage, name: str, write: int, winners: dict[int, int]) -> None:
        """Discards what is open for this write or an earlier one of the name, but for the winners."""
        for number in [number for number in {**self._attempts, **self.changed} if number not in winners]:
            attempt = self.current(number)
            if attempt is not None and attempt.name == name and attempt.write <= write:
                self._end(stage, number, AttemptState.DISCARDED)

    def _end(self, stage: Stage, number: int, state: AttemptState) -> bool:
        """Ends an attempt if it is open: whether it was."""
        attempt = self.current(number)
        if attempt is None or attempt.state is not AttemptState.OPEN:
            return False
        if attempt.left:
            self._put(stage, attempt._replace(state=state))
        else:
            self._drop(stage, attempt)
        return True

    def _committed(self, stage: Stage, name: str) -> CommittedWrite | None:
        row = stage.get(TRANS, keys.write_key(name))
        return None if row is None else CommittedWrite(name, *keys.WRITE.unpack(row))

    def _put(self, stage: Stage, attempt: Attempt) -> None:
        self.changed[attempt.number] = attempt
        stage.put(TRANS, keys.attempt_key(attempt.number), keys.ATTEMPT.pack(*attempt[1:-1]) + attempt.name.encode())

    def _drop(self, stage: Stage, attempt: Attempt) -> None:
        self.changed[attempt.number] = None
        self._live -= 1
        stage.delete(TRANS, keys.attempt_key(attempt.number))


def attempt_of(due_ms: int) -> int | None:
    """The number of the attempt whose row has this due time; None if it is a time."""
    return due_ms - STAGED_DUE if due_ms >= STAGED_DUE else None


def _attempt(key: bytes, row: bytes) -> Attempt:
    state, write, count, left, size, opened_ms, staged_ms = keys.ATTEMPT.unpack_from(row)
    number: int = keys.U64.unpack_from(key, 1)[0]
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

"""Checks staged writes from the entries of the log (docs/adr/0068, 0109). The check implements the commands of staged
writes a second time, independently of the nodes' state machine.

- A message that is copied belongs to an attempt that a commit named. A message that is dropped belongs to an attempt
  that was discarded.
- A commit counts only if its number is above the last commit of its name, and every attempt that it names is complete.
- A prepared write ends only by an entry that ends it, and a name has at most one prepared write.
"""

from __future__ import annotations

from collections.abc import Collection

from statemachine.commands import Found
from statemachine.delivery.prepared_writes import CommitGroups, DecideWrite, EndPrepared, PrepareWrite
from statemachine.delivery.staged_writes import CommitWrite, DiscardAttempts, ForgetWrite, OpenAttempt

STAGED_DUE = 1 << 63
OPEN, PREPARED, COMMITTED, DISCARDED = "open", "prepared", "committed", "discarded"


class _Attempt:
    def __init__(self, name: str, write: int) -> None:
        self.name, self.write = name, write
        self.state = OPEN
        self.count = self.left = 0


class WriteCheck:
    """Keeps its own model of staged writes, from the commands and staged rows of the log in their order."""

    def __init__(self) -> None:
        self._attempts: dict[int, _Attempt] = {}
        self._next = 1
        self._committed: dict[str, int] = {}
        self._prepared: dict[str, tuple[int, int, list[int]]] = {}
        """Name -> (decider, write, attempts) of its prepared write that is not ended."""

    def learn(self, command: Found) -> None:
        """Adds the next command to the model."""
        if isinstance(command, OpenAttempt):
            if self._above(command.name, command.write):
                self._attempts[self._next] = _Attempt(command.name, command.write)
                self._next += 1
        elif isinstance(command, CommitWrite):
            self._commit(command.name, command.write, dict(command.winners))
        elif isinstance(command, PrepareWrite):
            self._prepare(command)
        elif isinstance(command, EndPrepared):
            self._end_prepared(command.decider, committed=command.committed)
        elif isinstance(command, CommitGroups):
            self._commit(command.name, command.write, {**dict(command.winners), command.decider: 0})
        elif isinstance(command, DecideWrite):
            decider = self._attempts.get(command.decider)
            if command.abort and decider is not None and (decider.name, decider.write) == (command.name, command.write):
                self._end(command.decider, DISCARDED)
        elif isinstance(command, DiscardAttempts):
            for number in command.attempts:
                self._end(number, DISCARDED)
        elif isinstance(command, ForgetWrite):
            self._committed.pop(command.name, None)

    def stages(self, number: int, count: int) -> bool:
        """Records `count` messages that are staged for the attempt. Returns True if the attempt is open; otherwise they
        do not count."""
        attempt = self._attempts.get(number)
        if attempt is None or attempt.state != OPEN:
            return False
        attempt.count += count
        attempt.left += count
        return True

    def ends(self, number: int, count: int) -> str:
        """Records that `count` messages of the attempt are copied or dropped. Returns the attempt's state, "unknown" if
        there is no such attempt."""
        attempt = self._attempts.get(number)
        if attempt is None:
            return "unknown"
        attempt.left -= count
        if not attempt.left and attempt.state != OPEN:
            del self._attempts[number]
        return attempt.state

    def state_of(self, number: int) -> str:
        """Returns the state of the attempt, "unknown" if there is no such attempt."""
        attempt = self._attempts.get(number)
        return "unknown" if attempt is None else attempt.state

    def _above(self, name: str, write: int) -> bool:
        return write > self._committed.get(name, -1)

    def _commit(self, name: str, write: int, winners: dict[int, int]) -> None:
        above = self._above(name, write)
        if above and (name in self._prepared or not self._whole(name, write, winners)):
            return
        self._settle(name, write, winners if above else ())
        if above:
            self._committed[name] = write

    def _whole(self, name: str, write: int, winners: dict[int, int]) -> bool:
        """Returns True if every attempt in `winners` (attempt -> number of messages that it must have) is open, belongs
        to this name and write, and has that number of messages."""
        for number, count in winners.items():
            attempt = self._attempts.get(number)
            if attempt is None or attempt.state != OPEN or attempt.count != count:
                return False
            if (attempt.name, attempt.write) != (name, write):
                return False
        return True

    def _settle(self, name: str, write: int, winners: Collection[int]) -> None:
        """Commits the winners, and discards every other open attempt of the name at this write or an earlier one."""
        for number, attempt in list(self._attempts.items()):
            if number not in winners and attempt.name == name and attempt.write <= write:
                self._end(number, DISCARDED)
        for number in winners:
            self._end(number, COMMITTED)

    def _prepare(self, command: PrepareWrite) -> None:
        name, write, winners = command.name, command.write, dict(command.winners)
        if name not in self._prepared and self._above(name, write) and self._whole(name, write, winners):
            self._prepared[name] = command.decider, write, list(winners)
            for number in winners:
                self._attempts[number].state = PREPARED

    def _end_prepared(self, decider: int, *, committed: bool) -> None:
        for name, (by, write, winners) in list(self._prepared.items()):
            if by == decider:
                del self._prepared[name]
                for number in winners:
                    self._attempts[number].state = OPEN  # `_end` ends only open attempts
                if committed:
                    self._settle(name, write, winners)
                    self._committed[name] = max(write, self._committed.get(name, -1))
                else:
                    for number in winners:
                        self._end(number, DISCARDED)

    def _end(self, number: int, state: str) -> None:
        attempt = self._attempts.get(number)
        if attempt is not None and attempt.state == OPEN:
            attempt.state = state
            if not attempt.left:
                del self._attempts[number]

"""Checks staged writes from the entries of the log (docs/adr/0068), by an implementation of their commands of its own.

- What is copied belongs to an attempt that a commit named, and what is dropped to one that was discarded.
- A commit counts only if it is above the last one of its name, and every attempt that it names is whole.
"""

from __future__ import annotations

from statemachine.commands import Found
from statemachine.delivery.staged_writes import CommitWrite, DiscardAttempts, ForgetWrite, OpenAttempt

STAGED_DUE = 1 << 63
OPEN, COMMITTED, DISCARDED = "open", "committed", "discarded"


class _Attempt:
    def __init__(self, name: str, write: int) -> None:
        self.name, self.write = name, write
        self.state = OPEN
        self.count = self.left = 0


class WriteCheck:
    """The check itself, told the commands and staged rows of the log in their order."""

    def __init__(self) -> None:
        self._attempts: dict[int, _Attempt] = {}
        self._next = 1
        self._committed: dict[str, int] = {}

    def learn(self, command: Found) -> None:
        """Takes in the next command."""
        if isinstance(command, OpenAttempt):
            if self._above(command.name, command.write):
                self._attempts[self._next] = _Attempt(command.name, command.write)
                self._next += 1
        elif isinstance(command, CommitWrite):
            self._commit(command.name, command.write, dict(command.winners))
        elif isinstance(command, DiscardAttempts):
            for number in command.attempts:
                self._end(number, DISCARDED)
        elif isinstance(command, ForgetWrite):
            self._committed.pop(command.name, None)

    def stages(self, number: int, count: int) -> bool:
        """Records messages that are staged for the attempt; returns True if they count, because the attempt is open."""
        attempt = self._attempts.get(number)
        if attempt is None or attempt.state != OPEN:
            return False
        attempt.count += count
        attempt.left += count
        return True

    def ends(self, number: int, count: int) -> str:
        """Records that messages of the attempt are copied or dropped; returns the state that the attempt had."""
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
        if above:
            for number, count in winners.items():
                attempt = self._attempts.get(number)
                if attempt is None or attempt.state != OPEN or attempt.count != count:
                    return
                if (attempt.name, attempt.write) != (name, write):
                    return
        else:
            winners = {}
        for number, attempt in list(self._attempts.items()):
            if number not in winners and attempt.name == name and attempt.write <= write:
                self._end(number, DISCARDED)
        for number in winners:
            self._end(number, COMMITTED)
        if above:
            self._committed[name] = write

    def _end(self, number: int, state: str) -> None:
        attempt = self._attempts.get(number)
        if attempt is not None and attempt.state == OPEN:
            attempt.state = state
            if not attempt.left:
                del self._attempts[number]

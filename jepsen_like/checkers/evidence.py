"""The evidence that all checkers judge, gathered from a history some steps at a time.

Sends and final reads are most of a history. They are put into columns while their steps are still in the processor's
cache and forgotten: judging a million messages then takes a fraction of the memory, and of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jepsen_like.checkers.availability import Attempts
from jepsen_like.checkers.messages import Messages
from jepsen_like.checkers.steps import NOT_CLIENTS, Operations
from jepsen_like.history import Op, Operation, Pairing


class Evidence:
    """Operations, sends and final reads apart from the others."""

    def __init__(self) -> None:
        self.operations = Operations()
        """All but sends and final reads."""
        self.messages = Messages()
        self.attempts = Attempts()

    @classmethod
    def of(cls, batches: Iterable[list[Op]], error: Callable[[Op, str], Exception]) -> Evidence:
        """Gathers the evidence from all steps. Raises `error` for steps that cannot be, MalformedStep for sends and
        reads of other shape.
        """
        self, pairing = cls(), Pairing(error)
        for batch in batches:
            completed = pairing.feed(batch)
            self._add(completed)
            self.attempts.add([operation for operation in completed if operation[0].f not in NOT_CLIENTS])
        still_open = pairing.still_open()
        self._add(still_open)
        self.attempts.close([operation for operation in still_open if operation[0].f not in NOT_CLIENTS])
        self.operations.close()
        self.messages.close()
        return self

    def _add(self, operations: list[Operation]) -> None:
        sends = [operation for operation in operations if operation[0].f == "send"]
        self.messages.add_sends(sends)
        if len(sends) < len(operations):
            self.messages.add_reads([operation for operation in operations if operation[0].f == "read"])
            repeats = [operation for operation in operations if operation[0].f == "repeat"]
            self.messages.add_repeats([one for one in repeats if one[1] is not None and one[1].type == "ok"])
            self.operations.add(operation for operation in operations if operation[0].f not in ("send", "read"))

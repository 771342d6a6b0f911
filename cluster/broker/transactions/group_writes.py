"""Writes to queues of several groups of brokers, on the leaders: another group prepares its part, and the first group
commits all of it (docs/adr/0109).

Both requests may be repeated. A write that an earlier driver of the name has prepared, and left behind, is decided when
a later one prepares: deciders have ascending numbers, and only the newest may go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cluster.broker.refusal import Reason, Refused
from cluster.broker.transactions.staged_writes import CommitAnswer, commit_answer, no_result
from cluster.replication.outcome import Outcome, ProposeResult
from statemachine.delivery.prepared_writes import OPEN, CommitGroups, DecideWrite, EndPrepared, PrepareWrite
from statemachine.delivery.staged_writes import COMMITTED, FULL, PREPARED

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from statemachine.commands import Command


class GroupWrite(NamedTuple):
    """The part of a write to several groups that one of them has."""

    name: str
    write: int
    decider: int
    """The number of the attempt in the first group that decides."""
    winners: Sequence[tuple[int, int]]
    """The winning attempts in this group: (attempt, number of its messages)."""


class GroupWriteRequests:
    """Handles requests of writes to several groups. Leader only; callers forward to it."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def prepare(self, part: GroupWrite, done: Callable[[int | CommitAnswer | Refused], None]) -> None:
        """Prepares this group's part; `done` gets the number of its messages, or the CommitAnswer if the write is
        committed here. Refused if an attempt does not exist or is incomplete, if a newer driver has prepared, and in
        the first group."""
        self._prepare(part, done, again=True)

    def _prepare(self, part: GroupWrite, done: Callable[[int | CommitAnswer | Refused], None], *, again: bool) -> None:
        services = self._services

        def prepared(result: ProposeResult) -> None:
            if result.outcome is not Outcome.OK:
                done(no_result(result))
                return
            answer = result.results[-1]
            if answer.ok:
                done(int(answer.value))
            elif answer.code == COMMITTED:
                done(CommitAnswer(int(answer.value), earlier=True))
            elif answer.code == PREPARED and int(answer.value) > part.decider:
                done(Refused(Reason.ILLEGAL, f"a later driver has prepared a write of {part.name!r}"))
            elif answer.code == PREPARED and again:
                self._settle(int(answer.value), part, done)
            elif answer.code in (PREPARED, FULL):
                done(_waits())
            else:
                done(Refused(Reason.ILLEGAL, f"write {part.write} of {part.name!r} is not prepared: {answer.value}"))

        command = PrepareWrite(part.name, part.write, services.log_time_ms(), part.decider, part.winners)
        services.propose([command], prepared)

    def _settle(self, older: int, part: GroupWrite, done: Callable[[int | CommitAnswer | Refused], None]) -> None:
        """Has what an older decider has prepared ended as the first group decides, and prepares then. What is of the
        same name is decided now at the latest. What is of another name, under this decider, is none of its: the first
        group says so, or that this decider is that one's."""
        services = self._services
        left = services.state.prepared_writes.prepared.get(older)
        if left is None:  # it has just ended
            self._prepare(part, done, again=False)
            return

        def ended(result: ProposeResult) -> None:
            if result.outcome is Outcome.OK:
                self._prepare(part, done, again=False)
            else:
                done(no_result(result))

        def decided(result: ProposeResult) -> None:
            if result.outcome is not Outcome.OK:
                done(no_result(result))
            elif (answer := result.results[-1].value) == OPEN:
                done(_waits())
            else:
                services.propose([EndPrepared(older, answer == COMMITTED, services.log_time_ms())], ended)

        is_mine = left.name == part.name
        ask = DecideWrite(left.name, left.write, older, services.config.cluster.group, abort=is_mine)
        services.propose([ask], decided)

    def commit(self, part: GroupWrite, groups: Sequence[int], done: Callable[[CommitAnswer | Refused], None]) -> None:
        """Has the first group commit the write; `part` is that of the first group, `groups` the others, which have
        prepared theirs. Refused if the decider is not open (any more), or as a commit in one group is."""
        now_ms = self._services.log_time_ms()
        command: Command = CommitGroups(part.name, part.write, now_ms, part.decider, part.winners, groups)
        self._services.propose([command], lambda result: done(commit_answer(part.name, part.write, result)))


def _waits() -> Refused:
    return Refused(Reason.BUSY, "prepared writes wait for their decision: see raftmq writes list")

"""Handles writes to queues of several groups of brokers, on their leaders. A client, the *driver* of the write, asks
each other group to prepare its part, and then the first group to commit the whole write (docs/adr/0109).

Both requests may be repeated. A write that an earlier driver of the name has prepared, and left behind, is decided when
a later driver prepares one. Each driver has a *decider*: its open attempt at the write in the first group. Deciders
have ascending numbers, and only the driver with the newest decider may go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cluster.broker.refusal import Reason, Refused
from cluster.broker.transactions.staged_writes import CommitAnswer, commit_answer, no_result, told_at_once
from cluster.replication.outcome import Outcome, ProposeResult
from raftlog.types import FIRST_GROUP
from raftlog.work import ITEM_UNITS, charge
from statemachine.delivery.prepared_writes import (
    ABORTED,
    OPEN,
    CommitGroups,
    DecideWrite,
    EndPrepared,
    PrepareWrite,
)
from statemachine.delivery.staged_writes import COMMITTED, FULL, PREPARED

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from statemachine.commands import Command
    from statemachine.delivery.prepared_writes import PreparedWrite


class GroupWrite(NamedTuple):
    """The part of a write to several groups that lies in one of them."""

    name: str
    write: int
    decider: int
    """The number of the attempt in the first group that decides."""
    winners: Sequence[tuple[int, int]]
    """The winning attempts in this group: (attempt, number of its messages)."""


class GroupWriteRequests:
    """Handles the requests of writes to several groups. Leader only; callers forward requests to the leader."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def prepare(self, part: GroupWrite, done: Callable[[int | CommitAnswer | Refused], None]) -> None:
        """Prepares this group's part of the write. Calls `done` with the number of the part's messages, or with the
        CommitAnswer if the write is committed here.

        Calls `done` with a Refused (UNAVAILABLE, BUSY or UNKNOWN) if the part cannot be prepared now or the outcome is
        unknown. Calls it with a Refused (ILLEGAL) in four cases: this is the first group; an attempt does not exist or
        is incomplete; a newer driver has prepared; or the decider is not an open attempt at this very write. The last
        check is needed because any client can name the number of a decider. A client that prepared under the decider of
        another write could otherwise make that write's part end, even after it was promised (ADR 0109).
        """
        services = self._services
        if services.config.cluster.group == FIRST_GROUP:
            self._prepare(part, done, again=True)
            return

        def told(result: ProposeResult) -> None:
            if result.outcome is not Outcome.OK:
                why = f"group {FIRST_GROUP} does not say if it still decides this write"
                done(Refused(Reason.UNAVAILABLE, f"{why}; nothing was prepared, try again: {result.remark}"))
            elif result.results[-1].value == ABORTED:
                self._is_over(part, done)
            else:
                self._prepare(part, done, again=True)

        ask = DecideWrite(part.name, part.write, part.decider, services.config.cluster.group, abort=False)
        services.propose([ask], told)

    def _is_over(self, part: GroupWrite, done: Callable[[int | CommitAnswer | Refused], None]) -> None:
        """Answers the request to prepare a part whose decider does not decide, or no longer decides. Calls `done` with
        the CommitAnswer if the write is committed, also if another driver prepared it, otherwise with a Refused. A
        prepared write of that name is ended first if the first group has decided it."""
        writes = self._services.state.prepared_writes
        charge(ITEM_UNITS * (1 + len(writes.prepared) // 16))
        other = writes.undecided(part.name)

        def told() -> None:
            newest = self._services.state.writes.committed(part.name)
            if newest is not None and newest.write >= part.write:
                done(CommitAnswer(newest.write, earlier=True))
            else:
                why = f"attempt {part.decider} of group {FIRST_GROUP} does not decide it (any more)"
                done(Refused(Reason.ILLEGAL, f"write {part.write} of {part.name!r} is not prepared: {why}"))

        if other is None:
            told()
        else:
            self._follow(other, told, done, abort=False)

    def _prepare(self, part: GroupWrite, done: Callable[[int | CommitAnswer | Refused], None], *, again: bool) -> None:
        services = self._services

        def prepared(result: ProposeResult) -> None:
            answer = told_at_once(result, done)
            if answer is None:
                return
            if answer.code == PREPARED and int(answer.value) > part.decider:
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
        """Ends the part that the decider `older` has prepared, as the first group decides, and then prepares `part`
        instead. If both parts belong to writes of the same name, the first group decides now, at the latest. If the
        names differ, which only an older release allows, an undecided older part is not ended."""
        left = self._services.state.prepared_writes.prepared.get(older)
        again = partial(self._prepare, part, done, again=False)
        if left is None:  # the older attempt has just ended
            again()
        else:
            self._follow(left, again, done, abort=left.name == part.name)

    def _follow(
        self, left: PreparedWrite, then: Callable[[], None], done: Callable[[Refused], None], *, abort: bool
    ) -> None:
        """Ends the prepared write `left` as the first group decides. With `abort` the first group decides now, at the
        latest. Then calls `then`, or `done` with the reason if the decision cannot be known."""
        services = self._services

        def ended(result: ProposeResult) -> None:
            if result.outcome is Outcome.OK:
                then()
            else:
                done(no_result(result))

        def decided(result: ProposeResult) -> None:
            if result.outcome is not Outcome.OK:
                done(no_result(result))
            elif result.results[-1].value == OPEN:
                then()
            else:
                committed = result.results[-1].value == COMMITTED
                services.propose([EndPrepared(left.decider, committed, services.log_time_ms())], ended)

        ask = DecideWrite(left.name, left.write, left.decider, services.config.cluster.group, abort=abort)
        services.propose([ask], decided)

    def commit(self, part: GroupWrite, groups: Sequence[int], done: Callable[[CommitAnswer | Refused], None]) -> None:
        """Commits the write in the first group. `part`: the part of the first group. `groups`: the numbers of the other
        groups, which have prepared their parts. Calls `done` with the result: Refused if the decider is not an open
        attempt, or for the reasons for which a commit in one group is refused."""
        now_ms = self._services.log_time_ms()
        command: Command = CommitGroups(part.name, part.write, now_ms, part.decider, part.winners, groups)
        self._services.propose([command], lambda result: done(commit_answer(part.name, part.write, result)))


def _waits() -> Refused:
    return Refused(Reason.BUSY, "prepared writes wait for their decision: see raftmq writes list")

"""Ends the parts of writes to several groups, in all groups but the first (docs/adr/0109). A group holds its part of
such a write as a prepared write. The group's leader asks the first group for its decision, commits or aborts the
prepared write as decided, and reports to the first group that a committed one is ended.

The leader asks about up to AT_ONCE writes at a time, by commands of the truth, which the first group carries out.
Nothing but the rows of the state says which writes are left, so each new leader continues the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING, Final, Protocol

from cluster.replication.outcome import Outcome, ProposeResult
from cluster.runtime.findings import Code
from cluster.runtime.service_lifecycle import Part
from cluster.truth.truth_source import TruthReads
from raftlog.work import ITEM_UNITS, charge
from statemachine.delivery.prepared_writes import (
    ABORTED,
    ConfirmWrite,
    DecideWrite,
    EndPrepared,
    ForgetPrepared,
    PreparedState,
    PreparedWrite,
)
from statemachine.delivery.staged_writes import COMMITTED

if TYPE_CHECKING:
    from cluster.runtime.alarms import Alarms
    from cluster.truth.truth_source import Submit
    from statemachine.broker_state import BrokerState
    from statemachine.commands import Command, CommandResult

ASK_EVERY_MS: Final = 1_000
"""Milliseconds between the end of one round of questions about all prepared writes and the next round."""
AT_ONCE: Final = 64
"""The most writes about which the leader asks at once."""
UNDECIDED_MS: Final = 600_000
"""Milliseconds of log time after which an undecided write raises the alarm WRITE_UNDECIDED."""
LOOK_EVERY_MS: Final = 10_000
WRITE_UNDECIDED = Code("write_undecided", "warning", "raftmq writes list")
"""Key of the alarm about prepared writes that wait for a decision for UNDECIDED_MS."""


class LeaderReads(TruthReads, Protocol):
    """The services of the node that `WriteDecisions` uses."""

    def log_time_ms(self) -> int:
        """Returns the log time now, in milliseconds. Leader only."""


class WriteDecisions:
    """Ends prepared writes as the first group decided, while this node leads another group. Event loop only."""

    def __init__(self, state: BrokerState, reads: LeaderReads, submit: Submit, group: int, alarms: Alarms) -> None:
        """`submit` proposes commands to this group, and sends those of the truth to the first group
        (`cluster.replication.proposals.Proposals.submit_commands`). `group`: the number of this node's group."""
        self._state, self._reads, self._submit, self._group, self._alarms = state, reads, submit, group, alarms
        self._asking = False
        self._due_ms = self._look_ms = 0
        self._after: int | None = None
        """The number of the last prepared write about which this round has asked the first group; None: the next round
        begins with the first one."""

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="write decisions", tick=self.tick, opened=self.hurry)

    def tick(self, now_ms: int) -> None:
        """Asks the first group about prepared writes when that is due, and raises or clears the alarm about old ones.
        If no write is prepared, the call costs a few comparisons."""
        writes = self._state.prepared_writes
        if not writes.prepared or not self._reads.writes_open():
            if self._alarms.raised(WRITE_UNDECIDED):
                self._alarms.clear(WRITE_UNDECIDED)
            return
        if now_ms >= self._look_ms:
            self._look_ms = now_ms + LOOK_EVERY_MS
            self._look_for_old(list(writes.prepared.values()))
        if now_ms >= self._due_ms and not self._asking:
            self._ask(now_ms)

    def hurry(self) -> None:
        """Makes the next tick ask at once, because something is known to be decided, or because this node has become
        leader."""
        self._due_ms = self._look_ms = 0
        self._after = None

    def _ask(self, now_ms: int) -> None:
        writes = self._state.prepared_writes.prepared
        numbers = writes.keys_from(self._after, AT_ONCE)
        self._after = numbers[-1] if len(numbers) == AT_ONCE else None
        if self._after is None:  # The round has asked about all writes: the next one begins later.
            self._due_ms = now_ms + ASK_EVERY_MS
        asked = [writes[number] for number in numbers]
        if asked:
            self._asking = True
            self._submit([self._question(each) for each in asked], lambda result: self._told(asked, result))

    def _question(self, write: PreparedWrite) -> Command:
        if write.state is PreparedState.COMMITTED:
            return ConfirmWrite(write.decider, self._group)
        return DecideWrite(write.name, write.write, write.decider, self._group, abort=False)

    def _told(self, asked: Sequence[PreparedWrite], result: ProposeResult) -> None:
        """Proposes, for each write in `asked`, the command that follows from the first group's answer. If the first
        group could not be asked, a new round begins ASK_EVERY_MS later."""
        self._asking = False
        if result.outcome is not Outcome.OK:
            self._after = None
            self._due_ms = self._reads.monotonic_ms() + ASK_EVERY_MS
            return
        if not self._reads.writes_open():
            return
        now_ms = self._reads.log_time_ms()
        pairs = zip(asked, result.results, strict=True)
        steps = [step for write, answer in pairs if (step := step_after(write, answer, now_ms)) is not None]
        if steps:
            self._asking = True
            self._submit(steps, self._followed)

    def _followed(self, result: ProposeResult) -> None:
        self._asking = False
        if result.outcome is Outcome.OK:  # The first group is told at once which writes were committed.
            self._due_ms = 0

    def _look_for_old(self, prepared: Sequence[PreparedWrite]) -> None:
        charge(ITEM_UNITS * (1 + len(prepared) // 16))
        since_ms = self._reads.log_time_ms() - UNDECIDED_MS
        old = [each for each in prepared if each.state is PreparedState.UNDECIDED and each.prepared_ms <= since_ms]
        if not old:
            self._alarms.clear(WRITE_UNDECIDED)
            return
        oldest = min(old, key=lambda each: each.prepared_ms)
        self._alarms.raise_alarm(
            WRITE_UNDECIDED,
            f"{len(old)} writes of Spark to several groups are prepared in group {self._group}, and nothing is decided "
            f"for {UNDECIDED_MS // 60_000} minutes: write {oldest.write} of {oldest.name!r} is the oldest. They keep "
            "their part of the log. If its query or job is not coming back: "
            + abort_command(oldest.name, oldest.write),
        )


def abort_command(name: str, write: int) -> str:
    """Returns the command line that an operator types to make the first group abort an undecided write."""
    return f"raftmq writes abort {quote(name)} {write}"


def step_after(write: PreparedWrite, answer: CommandResult, now_ms: int) -> Command | None:
    """Returns the command that follows from the first group's answer about a prepared write; None if the answer is no
    decision yet. `now_ms`: log time."""
    if write.state is PreparedState.COMMITTED:
        return ForgetPrepared(write.decider) if answer.ok or answer.code == "not_found" else None
    if not answer.ok or answer.value not in (COMMITTED, ABORTED):
        return None
    return EndPrepared(write.decider, answer.value == COMMITTED, now_ms)

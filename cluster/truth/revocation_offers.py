"""Sends revocations to the first group. Revocations are changes that take rights away, which a group made in its own
log while it could not ask the first group. The group's leader offers them to the first group. Once the first group has
decided about them, the leader removes them from the rows of this group (docs/adr/0110).

Nothing but the rows of the state says which revocations are left, so each new leader continues the work.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from cluster.replication.outcome import Outcome, ProposeResult
from cluster.runtime.findings import Code
from cluster.runtime.service_lifecycle import Part
from statemachine.access.revocations import ENDED_MAX, EndRevocations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.replication.outcome import Done
    from cluster.runtime.alarms import Alarms
    from cluster.truth.truth_source import Submit, TruthReads
    from statemachine.broker_state import BrokerState
    from statemachine.commands import Command

OFFER_EVERY_MS: Final = 1_000
"""Milliseconds between two offers of the same revocations."""
ALARM = Code("revocations_wait", "warning", "raftmq status")


class Offer(Protocol):
    """Offers commands to the first group (`cluster.truth.truth_acts.ActsAsked.offer`)."""

    def __call__(self, revocations: Sequence[Command], done: Done) -> None:
        """Sends the commands, and calls `done` with the results: on success once this group has copied the changes, on
        failure at once."""


class RevocationOffers:
    """Offers the revocations of this group, while this node leads it. Event loop only."""

    def __init__(
        self, state: BrokerState, reads: TruthReads, offer: Offer, submit: Submit, group: int, alarms: Alarms
    ) -> None:
        """`submit` proposes commands to this group, whose number is `group`."""
        self._state, self._reads, self._offer, self._submit = state, reads, offer, submit
        self._group, self._alarms = group, alarms
        self._is_offering = False
        self._due_ms = 0

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="revocation offers", tick=self.tick)

    def tick(self, now_ms: int) -> None:
        """Offers the next waiting revocations when that is due, and raises an alarm while any wait. If none waits, the
        call costs a few comparisons."""
        waiting = self._state.revocations.waiting
        if not waiting or not self._reads.writes_open():
            if self._alarms.raised(ALARM):
                self._alarms.clear(ALARM)
            return
        self._alarms.raise_alarm(
            ALARM,
            f"{len(waiting)} changes that took rights away count in group {self._group} alone: the first group, which "
            "could not be asked, has not made them yet",
        )
        if now_ms < self._due_ms or self._is_offering:
            return
        self._is_offering, self._due_ms = True, now_ms + OFFER_EVERY_MS
        numbers = list(islice(waiting, ENDED_MAX))

        def decided(result: ProposeResult) -> None:
            self._is_offering = False
            if result.outcome is Outcome.OK and self._reads.writes_open():
                self._submit([EndRevocations(numbers)], lambda _: None)

        self._offer([waiting[number] for number in numbers], decided)

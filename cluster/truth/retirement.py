"""Retires a group of brokers that was drained (docs/adr/0113). Once the group's log is closed, its leader asks the
first group to retire it. The leader repeats the request until the group's own copy of the truth shows that it is
retired."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cluster.replication.outcome import Done, ProposeResult
from cluster.runtime.service_lifecycle import Part
from statemachine.cluster_wide.broker_groups import RetireBrokerGroup, is_retired

if TYPE_CHECKING:
    from statemachine.broker_state import BrokerState
    from statemachine.commands import Command

AGAIN_MS: Final = 1_000
"""Milliseconds between two requests. A request is repeated because it is lost if a leader is deposed."""

AskActs = Callable[[list["Command"], Done, str], None]
"""(commands, callback that receives their results, author). See `cluster.truth.truth_acts.ActsAsked.ask`."""


class Retirement:
    """Retires the node's group. Event loop only."""

    def __init__(self, state: BrokerState, leads: Callable[[], bool], ask: AskActs) -> None:
        """`leads` returns True if this node leads its group and accepts writes. `ask` sends commands to the first
        group."""
        self._state, self._leads, self._ask = state, leads, ask
        self._asked = False
        self._due_ms = 0

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="retirement", tick=self.tick)

    def tick(self, now_ms: int) -> None:
        """Asks the first group to retire this group, if the log is closed, this node leads and the copy does not show
        yet that the group is retired. The next request follows AGAIN_MS later, once this one was answered."""
        groups = self._state.broker_groups
        if not self._state.closed_log.is_closed or is_retired(groups.by_number, groups.own):
            return
        if self._leads() and not self._asked and now_ms >= self._due_ms:
            self._asked, self._due_ms = True, now_ms + AGAIN_MS
            self._ask([RetireBrokerGroup(groups.own)], self._done, "")

    def _done(self, result: ProposeResult) -> None:
        # The outcome does not matter: this group's own copy shows whether it is retired.
        self._asked = False

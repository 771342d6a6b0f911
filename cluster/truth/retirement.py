"""The last act of a group of brokers that drained: once its log is closed, its leader has the first group retire it
(docs/adr/0113), and repeats that until this group's own copy says so."""

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
"""Milliseconds between two acts, of which one may be lost with a leader."""

AskActs = Callable[[list["Command"], Done, str], None]
"""(commands, what is called with their results, author): `ActsAsked.ask`."""


class Retirement:
    """Retires the node's group. Event loop only."""

    def __init__(self, state: BrokerState, leads: Callable[[], bool], ask: AskActs) -> None:
        """`leads` returns True if this node leads its group and takes writes. `ask` has the first group decide."""
        self._state, self._leads, self._ask = state, leads, ask
        self._asked = False
        self._due_ms = 0

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="retirement", tick=self.tick)

    def tick(self, now_ms: int) -> None:
        """Asks the first group to retire this one, if the log is closed and this node leads; again after AGAIN_MS."""
        groups = self._state.broker_groups
        if not self._state.closed_log.is_closed or is_retired(groups.by_number, groups.own):
            return
        if self._leads() and not self._asked and now_ms >= self._due_ms:
            self._asked, self._due_ms = True, now_ms + AGAIN_MS
            self._ask([RetireBrokerGroup(groups.own)], self._done, "")

    def _done(self, result: ProposeResult) -> None:
        self._asked = False  # whatever the answer is: this group's own copy says if it was done

"""Limits the number of topics and consumer groups, whether created explicitly or automatically: every node keeps every
name, in memory and on disk, until it is deleted.

The leader enforces it where commands are proposed, so it covers every request. Existing names may change and be used,
even if there are more of them than a lower limit that was set later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.replication.pending import UnacceptableError
from statemachine.commands import CREATE_TOPIC, PUT_GROUP, Command

if TYPE_CHECKING:
    from cluster.config.config import LimitsSection
    from cluster.replication.outcome import Done, ProposeResult
    from statemachine.broker_state import BrokerState

_KINDS = {CREATE_TOPIC: ("topics", "topics_max"), PUT_GROUP: ("groups", "groups_max")}
New = set[tuple[str, str]]
"""(create_topic or put_group, name)."""


class NameLimits:
    """Counts existing names and those being created."""

    def __init__(self, limits: LimitsSection, state: BrokerState) -> None:
        self._limits = limits
        self._state = state
        self._coming: New = set()

    def admit(self, commands: list[Command], done: Done) -> Done:
        """`done`, or a wrapper that also records the end of these creations. Raises UnacceptableError."""
        new = self._new(commands)
        if not new:
            return done
        for command, (kind, key) in _KINDS.items():
            count = sum(1 for made, _ in new if made == command)
            if not count:
                continue
            there = len(getattr(self._state, kind)) + sum(1 for made, _ in self._coming if made == command)
            maximum: int = getattr(self._limits, key)
            if there + count > maximum:
                raise UnacceptableError(
                    f"there are {there} {kind} (those of retries included), and limits.{key} is {maximum}: delete "
                    "unused ones, or raise it on every node"
                )
        self._coming |= new
        return self._noting(new, done)

    def _new(self, commands: list[Command]) -> New:
        tables = {CREATE_TOPIC: self._state.topics, PUT_GROUP: self._state.groups}
        made = {(command[0], command[1].get("name")) for command in commands if command[0] in tables}
        return {(kind, name) for kind, name in made if name not in tables[kind]} - self._coming

    def _noting(self, new: New, done: Callable[[ProposeResult], None]) -> Done:
        def ended(result: ProposeResult) -> None:
            self._coming -= new
            done(result)

        return ended

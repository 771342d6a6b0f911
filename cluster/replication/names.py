"""Limits the number of topics, of their queues and of consumer groups, whether created explicitly or automatically:
every node keeps every name, in memory and on disk, until it is deleted, and a queue costs memory once it is used.

The leader enforces it where commands are proposed, so it covers every request. Existing names may change and be used,
even if there are more of them than a lower limit that was set later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container
from typing import TYPE_CHECKING

from cluster.replication.pending import UnacceptableError
from statemachine.commands import CREATE_TOPIC, PUT_GROUP, Command
from statemachine.topics import QUEUES_DEFAULT

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
        self._coming_of = Counter[str]()
        """Command -> how many of them it makes."""
        self._coming_queues = 0

    def reload(self, limits: LimitsSection) -> None:
        """Other limits from now on."""
        self._limits = limits

    def admit(self, commands: list[Command], done: Done) -> Done:
        """`done`, or a wrapper that also records the end of these creations. Raises UnacceptableError."""
        new, queues = self._new(commands), self._new_queues(commands)
        if not new and not queues:
            return done
        for command, (kind, key) in _KINDS.items():
            count = sum(1 for made, _ in new if made == command)
            if not count:
                continue
            there = len(getattr(self._state, kind)) + self._coming_of[command]
            maximum: int = getattr(self._limits, key)
            if there + count > maximum:
                raise UnacceptableError(
                    f"there are {there} {kind} (those of retries included), and limits.{key} is {maximum}: delete "
                    f"unused ones, or raise it: raftmq config set limits.{key} N"
                )
        there, maximum = self._state.queue_count + self._coming_queues, self._limits.queues_max
        if queues and there + queues > maximum:
            raise UnacceptableError(
                f"there are {there} queues of all topics, {queues} more are asked for, and limits.queues_max is "
                f"{maximum}: delete unused topics, ask for fewer queues, or raise it: raftmq config set "
                "limits.queues_max N"
            )
        self._coming |= new
        self._coming_of.update(made for made, _ in new)
        self._coming_queues += queues
        return self._noting(new, queues, done)

    def _new(self, commands: list[Command]) -> New:
        tables: dict[str, Container[str]] = {CREATE_TOPIC: self._state.topics, PUT_GROUP: self._state.groups}
        made = {(command[0], command[1].get("name")) for command in commands if command[0] in tables}
        return {(kind, name) for kind, name in made if name not in tables[kind]} - self._coming

    def _new_queues(self, commands: list[Command]) -> int:
        """Returns how many queues these add, at most: what is no number is refused elsewhere."""
        added = 0
        for name, *arguments in commands:
            if name != CREATE_TOPIC:
                continue
            config, if_absent = arguments
            there = self._state.topics.get(config.get("name"))
            if there is not None and if_absent:
                continue
            known = (there.read_queues, there.write_queues) if there is not None else (QUEUES_DEFAULT, QUEUES_DEFAULT)
            given = [config.get("read_queues", known[0]), config.get("write_queues", known[1])]
            queues = max([number for number in given if type(number) is int], default=0)
            added += max(0, queues - (0 if there is None else there.queues))
        return added

    def _noting(self, new: New, queues: int, done: Callable[[ProposeResult], None]) -> Done:
        def ended(result: ProposeResult) -> None:
            self._coming -= new
            self._coming_of.subtract(made for made, _ in new)
            self._coming_queues -= queues
            done(result)

        return ended

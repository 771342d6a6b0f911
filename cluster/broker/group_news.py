"""What the log does not know yet of a consumer group (the group, its %RETRY% topic, its subscriptions): proposed once.

The members of a group tell every node what they subscribe to; the leader brings the applied state up to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cluster.broker.group_members import Members
from cluster.broker.names import RETRY_PREFIX
from cluster.broker.services import Services
from cluster.replication.outcome import ProposeResult
from statemachine import commands

Subscribed = Mapping[str, tuple[str, str, int]]
"""Topic -> expression type, expression, version: as the log has it."""


class GroupNews:
    """Proposes what is new of the groups of this node's `Members`, one proposal of a group at a time."""

    def __init__(self, services: Services, members: Members) -> None:
        self._services = services
        self._members = members
        self._proposing: set[str] = set()

    def propose(self, groups: list[str], done: Callable[[ProposeResult | None], None]) -> None:
        """Calls `done` when the log knows these groups or could not be told; with None if nothing was to be proposed
        by this node now."""
        news: list[commands.Command] = []
        proposed: set[str] = set()
        if self._services.writes_open():
            for group in groups:
                if group not in self._proposing and (found := self._news_of(group)):
                    news += found
                    proposed.add(group)
        if not news:
            done(None)
            return
        self._proposing |= proposed

        def proposal_done(result: ProposeResult) -> None:
            self._proposing -= proposed
            done(result)

        self._services.propose(news, proposal_done)

    def _news_of(self, group: str) -> list[commands.Command]:
        """Commands that bring applied state up to what the group's members say; [] most of the time."""
        state = self._services.state
        news: list[commands.Command] = []
        config = state.groups.get(group)
        if config is None:
            news.append([commands.PUT_GROUP, {"name": group}, True])
        retry_topic = RETRY_PREFIX + group
        if retry_topic not in state.topics:
            retry = {"name": retry_topic, "read_queues": 1, "write_queues": 1, "perm": 6}
            news.append([commands.CREATE_TOPIC, retry, True])
        stored = config.subscriptions if config is not None else {}
        wanted = self._wanted_subscriptions(group, stored)
        if wanted != stored:
            news.append([commands.SUBSCRIBE, group, [[topic, *row] for topic, row in sorted(wanted.items())]])
        return news

    def _wanted_subscriptions(self, group: str, stored: Subscribed) -> Subscribed:
        """What the log should say of the group: the members' list, never with an older version than is stored."""
        found = self._members.consumers[group]
        if not found.subscribed:
            return stored
        wanted: dict[str, tuple[str, str, int]] = {}
        for topic, expression_type, sub_string, version in found.subscriptions.values():
            old = stored.get(topic)
            wanted[topic] = old if old is not None and old[2] >= version else (expression_type, sub_string, version)
        return wanted

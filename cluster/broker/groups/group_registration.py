"""Proposes what the log lacks about a consumer group: the group itself, its %RETRY% topic, its subscriptions.

The members of a group send their subscriptions to every node in heartbeats. The leader proposes the differences to the
applied state.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping

from cluster.broker.groups.consumer_group import ConsumerGroup
from cluster.broker.groups.group_members import Members
from cluster.broker.name_rules import RETRY_PREFIX
from cluster.broker.new_names import check_new_group
from cluster.broker.refusal import Refused
from cluster.broker.retries import own_topic
from cluster.broker.rights import Party
from cluster.broker.services import Services
from cluster.replication.outcome import ProposeResult
from raftlog.work import ITEM_UNITS, charge
from statemachine.commands import Command
from statemachine.consuming.groups import PutGroup, Subscribe

ROWS_MAX = 1_000
"""The approximate number of groups and subscriptions in one entry. It is limited so that applying an entry takes a
short time."""
Subscribed = Mapping[str, tuple[str, str, int]]
"""Topic -> (expression type, expression, version), as the log stores subscriptions."""


class GroupRegistration:
    """Proposes changes of the groups in this node's `Members`. For each group one proposal is in flight at a time."""

    def __init__(self, services: Services, members: Members) -> None:
        self._services = services
        self._members = members
        self._proposing: set[str] = set()

    def propose(
        self, groups: list[str], party: Party, done: Callable[[ProposeResult | None], None], limited: list[str]
    ) -> Generator[None]:
        """Proposes what the log lacks about these groups. Calls `done` when all proposals are decided, with one of
        their results, or with None if there was nothing to propose. `limited`: a list to which it adds the reasons for
        groups that were not created because of a quota of the party. Yields between two groups."""
        telling = _Telling(done)
        news: list[Command] = []
        proposed: list[str] = []
        rows = 0
        try:
            for group in groups if self._services.writes_open() else ():
                found = self._members.consumers.get(group)
                size = 1 + len(found.subscriptions) if found is not None else 1
                charge(ITEM_UNITS * size)
                if (
                    found is not None
                    and group not in self._proposing
                    and (new := self._news_of(group, found))
                    and self._may_be_made(group, party, limited)
                ):
                    self._proposing.add(group)
                    news += new
                    proposed.append(group)
                    rows += size
                    if rows >= ROWS_MAX:
                        self._send(news, proposed, telling)
                        news, proposed, rows = [], [], 0
                yield
        except BaseException:  # the client disconnected between two steps; other members will propose these groups
            self._proposing.difference_update(proposed)
            raise
        if news:
            self._send(news, proposed, telling)
        telling.all_sent()

    def _may_be_made(self, group: str, party: Party, limited: list[str]) -> bool:
        if group not in self._services.state.groups:
            try:
                check_new_group(self._services.creations, group, party)
            except Refused as refused:
                limited.append(refused.remark)
                return False
        return True

    def _send(self, news: list[Command], groups: list[str], telling: _Telling) -> None:
        telling.sent += 1

        def proposal_done(result: ProposeResult) -> None:
            self._proposing.difference_update(groups)
            telling.ended(result)

        self._services.propose(news, proposal_done)

    def _news_of(self, group: str, found: ConsumerGroup) -> list[Command]:
        """Returns the commands that bring the applied state up to date with the group's members; [] if nothing has
        changed, as is usual."""
        state = self._services.state
        news: list[Command] = []
        config = state.groups.get(group)
        if config is None:
            news.append(PutGroup({"name": group}, if_absent=True))
        queues = config.retry_queue_nums if config is not None else 1
        news += own_topic(state, RETRY_PREFIX + group, queues)
        stored = config.subscriptions if config is not None else {}
        wanted = _wanted_subscriptions(found, stored)
        if wanted != stored:
            news.append(Subscribe(group, [(topic, *row) for topic, row in sorted(wanted.items())]))
        return news


class _Telling:
    """Tracks the entries that are proposed for the groups of one heartbeat. Calls `done` when all are decided."""

    def __init__(self, done: Callable[[ProposeResult | None], None]) -> None:
        self._done = done
        self._result: ProposeResult | None = None
        """The first unacceptable result, or the first result if all are acceptable; None before the first one."""
        self.sent = 1
        """The number of entries that were proposed and are undecided, plus one until `all_sent` is called."""

    def ended(self, result: ProposeResult) -> None:
        """Records the outcome of one of the entries."""
        if self._result is None or (result.unacceptable and not self._result.unacceptable):
            self._result = result
        self.all_sent()

    def all_sent(self) -> None:
        """Counts one entry, or the proposing itself, as ended. Calls `done` if nothing is left. Called for each decided
        entry, and once when no more entries will be proposed."""
        self.sent -= 1
        if not self.sent:
            self._done(self._result)


def _wanted_subscriptions(found: ConsumerGroup, stored: Subscribed) -> Subscribed:
    """Returns the subscriptions that the log should have: those of the members, but for each topic the stored one
    unless the members' version is newer. Returns `stored` if no member has sent subscriptions."""
    if not found.subscribed:
        return stored
    wanted: dict[str, tuple[str, str, int]] = {}
    for topic, expression_type, sub_string, version in found.subscriptions.values():
        old = stored.get(topic)
        wanted[topic] = old if old is not None and old[2] >= version else (expression_type, sub_string, version)
    return wanted

"""Tells the members of a consumer group that the group has changed (request 40), so that they divide its queues again.

Each change is a notice to all members. If 2,000 clients joined a group one after the other, that would be two million
notices, and after each the member asks for the list of all members. A group therefore has a *budget*: PER_SECOND
notices a second, of which at most one second's worth is saved up. The members of a small group, or of a large group
after a single change, are notified at once. All changes that come while the budget is overdrawn cause a single notice
to each member, when the budget is no longer overdrawn.

Invariant: after the last change of a group, every member that is still there gets one more notice.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Protocol

from raftlog.work import CALL_UNITS, FRAME_UNITS, charge

if TYPE_CHECKING:
    from cluster.broker.services import Client, Services

PER_SECOND = 1_000
"""The number of notices to the members of one group in a second. So a group of 2,000 members is told of changes every 2
s."""
DEBT_MS_MAX = 20_000
"""The longest time, in milliseconds, that a group waits for its next notices, however large it is. Consumers divide the
queues on their own every 20 s, too."""
NOTICE_UNITS = FRAME_UNITS + 2 * CALL_UNITS


class Budget:
    """The budget of notices of one group, and whether its members have to be notified."""

    __slots__ = ("empty_until_ms", "telling", "untold", "waiting")

    def __init__(self) -> None:
        self.empty_until_ms = 0
        """The time, in milliseconds, until which the budget is overdrawn. After it, up to one second's worth of notices
        is saved up."""
        self.untold = False
        """True if the group has changed and its members are not being told of it yet."""
        self.waiting = False
        """True while a timer runs that ends when the budget is no longer overdrawn."""
        self.telling = False
        """True while members are being told."""


class NotifiedGroup(Protocol):
    """A group whose members are notified of its changes."""

    budget: Budget

    def clients(self) -> Iterator[Client]:
        """Yields the members' connections; one may come several times. Members may come and go during the iteration."""


class GroupNotices:
    """Notifies the members of all groups of this node. Event loop only."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def changed(self, name: str, group: NotifiedGroup) -> None:
        """Notifies the group's members of a change: at once, or when the group's budget allows it."""
        group.budget.untold = True
        self._go_on(name, group)

    def _go_on(self, name: str, group: NotifiedGroup) -> None:
        budget, now_ms = group.budget, self._services.monotonic_ms()
        if not budget.untold or budget.waiting or budget.telling:
            return
        if now_ms < budget.empty_until_ms:
            budget.waiting = True
            self._services.call_later(budget.empty_until_ms - now_ms, lambda: self._waited(name, group))
            return
        budget.untold, budget.telling = False, True
        self._services.turns.begin(self, self._tell(name, group))

    def _waited(self, name: str, group: NotifiedGroup) -> None:
        group.budget.waiting = False
        self._go_on(name, group)

    def _tell(self, name: str, group: NotifiedGroup) -> Generator[None]:
        """Notifies each member once. A client that joins during this may be missed, but its joining is another change,
        of which the members are notified afterwards."""
        told: set[Client] = set()
        for client in group.clients():
            if client not in told:
                charge(NOTICE_UNITS)
                told.add(client)
                client.consumers_changed(name)
                yield
        budget = group.budget
        budget.telling = False
        budget.empty_until_ms = self._spent(budget.empty_until_ms, len(told))
        self._go_on(name, group)

    def _spent(self, empty_until_ms: int, told: int) -> int:
        """Returns the time until which the budget is overdrawn after `told` more notices."""
        now_ms = self._services.monotonic_ms()
        saved = max(empty_until_ms, now_ms - 1_000)  # at most one second's worth is saved up
        return min(saved + 1_000 * told // PER_SECOND, now_ms + DEBT_MS_MAX)

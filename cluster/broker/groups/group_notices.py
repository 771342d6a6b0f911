"""Tells the members of a consumer group that it has changed, so that they divide its queues again (40).

Each change is a notice to all members. If 2,000 clients joined a group one after the other, that would be two million
notices, and after each the member asks for the list of all members. A group therefore has a *budget*: PER_SECOND
notices a second, and at most that many at once after a quiet second. The members of a small group, or of a large group
after a single change, are notified at once. Changes that come while the budget is overdrawn cause one notice together,
as soon as it no longer is.

Invariant: after the last change of a group, every member that is still there gets one more notice, whatever came
before.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Protocol

from raftlog.work import CALL_UNITS, FRAME_UNITS, charge

if TYPE_CHECKING:
    from cluster.broker.services import Client, Services

PER_SECOND = 1_000
"""Notices to the members of one group in a second. A group of 2,000 is told of changes every 2 s."""
DEBT_MS_MAX = 20_000
"""The longest time in milliseconds that a group waits, however large it is. Consumers divide queues by themselves as
often."""
NOTICE_UNITS = FRAME_UNITS + 2 * CALL_UNITS


class Budget:
    """The time at which one group may be notified next, and whether there is something to notify it of."""

    __slots__ = ("empty_until_ms", "telling", "untold", "waiting")

    def __init__(self) -> None:
        self.empty_until_ms = 0
        """The budget is overdrawn until this time. From then on it grows, up to the notices of one second."""
        self.untold = False
        """True if the group has changed and nobody has begun to tell its members."""
        self.waiting = False
        """True while a timer runs until the budget is no longer overdrawn."""
        self.telling = False
        """True while members are being told."""


class NotifiedGroup(Protocol):
    """A group whose members are notified of its changes."""

    budget: Budget

    def clients(self) -> Iterator[Client]:
        """Yields the members' connections, one per member. Members may come and go during the iteration."""


class GroupNotices:
    """Notifies the members of all groups of this node. Event loop only."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def changed(self, name: str, group: NotifiedGroup) -> None:
        """Notifies the members of a change, now or a little later."""
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
        """Returns the time at which the budget is no longer overdrawn, after that number of notices."""
        now_ms = self._services.monotonic_ms()
        saved = max(empty_until_ms, now_ms - 1_000)  # at most one second is saved up
        return min(saved + 1_000 * told // PER_SECOND, now_ms + DEBT_MS_MAX)

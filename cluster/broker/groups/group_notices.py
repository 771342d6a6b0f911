"""Tells the members of a consumer group that it has changed, so that they divide its queues again (40).

Each change is told to all members. A group of 2,000 that join one after the other would hear two million times of it,
and each member then asks for the list of all. So a group has a *budget*: it may be told PER_SECOND times a second, as
many as that at once after a quiet second. A change of a small group, or the only one of a large group, is told at once.
Those that come while the budget is overdrawn are told together, as soon as it is not.

Invariant: after the last change of a group every member that is there is told once more, whatever came before.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Protocol

from raftlog.work import CALL_UNITS, FRAME_UNITS, charge

if TYPE_CHECKING:
    from cluster.broker.services import Client, Services

PER_SECOND = 1_000
"""Notices to the members of one group in a second: a group of 2,000 is told of changes every 2 s."""
DEBT_MS_MAX = 20_000
"""So long a group waits at most, however large it is: consumers divide queues by themselves as often."""
NOTICE_UNITS = FRAME_UNITS + 2 * CALL_UNITS


class Budget:
    """When one group may be told next, and whether it has to be."""

    __slots__ = ("empty_until_ms", "telling", "untold", "waiting")

    def __init__(self) -> None:
        self.empty_until_ms = 0
        """The budget is overdrawn until then. It grows from there, up to that of a second."""
        self.untold = False
        """The group has changed, and nobody has begun to tell its members."""
        self.waiting = False
        """A timer runs until the budget is there."""
        self.telling = False
        """Members are being told."""


class Told(Protocol):
    """A group."""

    budget: Budget

    def clients(self) -> Iterator[Client]:
        """The connections of its members, one for each member. Members may come and go meanwhile."""


class GroupNotices:
    """Tells the members of all groups of this node. Event loop only."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def changed(self, name: str, group: Told) -> None:
        """Tells the members now or a little later."""
        group.budget.untold = True
        self._go_on(name, group)

    def _go_on(self, name: str, group: Told) -> None:
        budget, now_ms = group.budget, self._services.monotonic_ms()
        if not budget.untold or budget.waiting or budget.telling:
            return
        if now_ms < budget.empty_until_ms:
            budget.waiting = True
            self._services.call_later(budget.empty_until_ms - now_ms, lambda: self._waited(name, group))
            return
        budget.untold, budget.telling = False, True
        self._services.turns.begin(self, self._tell(name, group))

    def _waited(self, name: str, group: Told) -> None:
        group.budget.waiting = False
        self._go_on(name, group)

    def _tell(self, name: str, group: Told) -> Generator[None]:
        """Tells each member once. A client that joins meanwhile may be passed over: that is a change, and is told
        afterwards."""
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
        """When the budget is no longer overdrawn, after so many were told."""
        now_ms = self._services.monotonic_ms()
        saved = max(empty_until_ms, now_ms - 1_000)  # no more than that of a second
        return min(saved + 1_000 * told // PER_SECOND, now_ms + DEBT_MS_MAX)

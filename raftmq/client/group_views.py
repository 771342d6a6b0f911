"""The groups of brokers that one client knows, and its view of each.

A cluster of one group has one view. In a cluster of several, each node knows all groups, so the servers that a user
names may be of any of them. A view of a further group is made when a queue of it is first used.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Generic, Protocol, Self, TypeVar

from raftmq.client.errors import Refused, Unreachable
from raftmq_wire.codes import ResponseCode
from raftmq_wire.queue_numbers import FIRST_GROUP, GROUPS_MAX, group_of, queue_text

_ROW = re.compile(r"([1-9]\d?)/(\S+)", re.ASCII)
_ALIAS = re.compile(r"-\d+\Z", re.ASCII)
_LOOK_S = 0.25
HEARD_S = 10.0
GRACE_S = 1.0
_T = TypeVar("_T")


async def of_each(
    works: Mapping[int, Coroutine[Any, Any, _T]], *, grace_s: float = GRACE_S
) -> dict[int, _T | Exception]:
    """Runs the coroutines of all groups of brokers concurrently; returns group -> its result, or the error with which
    it ended. Once one group has a result, the others get `grace_s` seconds more and are then cancelled, with
    Unreachable as their error. So a group without a leader does not delay the others; the caller asks it again
    later."""
    tasks = {asyncio.create_task(work): group for group, work in works.items()}
    try:
        waiting = {*tasks}
        while waiting and not any(task.done() and task.exception() is None for task in tasks):
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if waiting:
            await asyncio.wait(waiting, timeout=grace_s)
    finally:
        late = [task for task in tasks if not task.done()]
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
    return {group: _outcome(task) for task, group in tasks.items()}


def _outcome(task: asyncio.Task[_T]) -> _T | Exception:
    if task.cancelled():
        return Unreachable("the group of brokers has no leader that answers", retryable=True)
    error = task.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
    return error if error is not None else task.result()


def _no_group(group: int, lead: str = "") -> Refused:
    why = f"{lead}the cluster has no group {group} of brokers (any more)"
    hint = "raftmq broker-group list shows those that it has."
    return Refused(why, code=ResponseCode.INVALID_PARAMETER, hint=hint)


class View(Protocol):
    """The part of a `raftmq.client.cluster_view.ClusterView` that this module uses."""

    leader: str | None

    async def find_leader(self) -> str:
        """Returns the leader's address."""

    def suspect(self, address: str | None) -> None:
        """Records that a node did not behave like a leader."""

    def of_group(self, group: int) -> Self:
        """Returns a new view of another group of the same cluster."""


_V = TypeVar("_V", bound=View)


class GroupViews(Generic[_V]):
    """The groups of brokers that a client knows, and its views of them. Event loop only."""

    def __init__(self, first: _V, *, heard_s: float = HEARD_S) -> None:
        """`first`: the view of the first group. `heard_s`: seconds to wait for a server to name the groups."""
        self._heard_s = heard_s
        self.first = first
        self.names: dict[str, int] = {}
        """Name of a group -> its number; empty while only one is known."""
        self._has_retired = False
        self._told = asyncio.Event()
        self._told_s = 0.0
        self.clusters: tuple[str, ...] = ()
        """The uuids of the cluster that this client belongs to, and of those from which that cluster was restored; ()
        until a server reports them."""
        self._views: dict[int, _V] = {FIRST_GROUP: first}

    @property
    def heard(self) -> bool:
        """True once a server has named its groups, or reported that there is only one."""
        return self._told.is_set()

    def heard_within(self, seconds: float) -> bool:
        """Returns True if a server has named its groups in the last `seconds`: a group may have joined since."""
        return self.heard and asyncio.get_running_loop().time() - self._told_s <= seconds

    @property
    def several(self) -> bool:
        """True if the cluster is known to have, or to have had, more than one group. It stays true when groups retire,
        because waiting sends are already sorted by group."""
        return len(self.names) > 1 or self._has_retired

    def numbers(self) -> list[int]:
        """Returns the numbers of the known groups, ascending."""
        return sorted({FIRST_GROUP, *self.names.values()})

    def views(self) -> Iterable[_V]:
        """Returns the views that were made so far."""
        return list(self._views.values())

    def known(self, group: int) -> _V | None:
        """Returns the view of a group; None if this client knows no such group, or it has retired."""
        view = self._views.get(group)
        if view is None and group in self.names.values():
            view = self._views[group] = self.first.of_group(group)
        return view

    def living(self, groups: Iterable[int]) -> list[_V]:
        """Returns the views of the groups in `groups`, without groups that are unknown to this client or retired."""
        return [view for group in groups if (view := self.known(group)) is not None]

    def of(self, group: int) -> _V:
        """Returns the view of a group. Raises Refused if this client knows no such group, or it has retired: another
        group cannot answer instead, because queue numbers and positions differ between groups."""
        view = self.known(group)
        if view is None:
            raise _no_group(group)
        return view

    async def at(self, queue: int) -> _V:
        """Returns the view of the group that has the queue of this number. Waits and raises as `when_heard` does."""
        group = group_of(queue)
        await self._hear(group)
        view = self.known(group)
        if view is None:
            raise _no_group(group, f"there is no queue {queue_text(queue)}: ")
        return view

    async def when_heard(self, group: int) -> _V:
        """Returns the view of a group. Unless it is the first group, waits until a server has named the groups. Raises
        Refused as `of` does; Unreachable if no server answers."""
        await self._hear(group)
        return self.of(group)

    async def _hear(self, group: int) -> None:
        """Waits until a server has named the groups; returns at once for the first group. Raises Unreachable if no
        server names them in time."""
        if group != FIRST_GROUP and not self.heard:
            finding = asyncio.create_task(self.first.find_leader())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._heard_s):
                    await self._told.wait()
            finding.cancel()
            if not self.heard:
                raise Unreachable("no server has told which groups of brokers there are", retryable=True)

    async def any_leader(self) -> str:
        """Returns the address of the leader of any group. Waits without limit until one is found: the caller sets a
        timeout."""
        for view in self._views.values():
            if view.leader is not None:
                return view.leader
        finding: dict[int, asyncio.Task[str]] = {}
        try:
            while True:
                for group in self.numbers():
                    if group not in finding:
                        finding[group] = asyncio.create_task(self.of(group).find_leader())
                done, _ = await asyncio.wait(finding.values(), timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    return task.result()
        finally:
            for task in finding.values():
                task.cancel()

    def belong_to(self, clusters: tuple[str, ...]) -> None:
        """Sets the uuids of the cluster that this client belongs to, and of those from which it was restored."""
        self.clusters = clusters

    def take(self, told: str, retired: str = "") -> None:
        """Takes the names of groups from a reply (ext fields `raftmqGroups`, `raftmqRetiredGroups`); rows that cannot
        be parsed are ignored. A group is forgotten only if it has retired, not if a reply lacks it, because the node
        may not know the group yet."""
        self._told.set()
        self._told_s = asyncio.get_running_loop().time()
        for row in told.split():
            if (found := _ROW.fullmatch(row)) and int(found[1]) <= GROUPS_MAX:
                self.names[found[2]] = int(found[1])
        for number in retired.split():
            self._forget(number)

    def _forget(self, number: str) -> None:
        """Forgets a group that has retired and will not return; the first group never retires."""
        gone = {name for name, group in self.names.items() if str(group) == number and group != FIRST_GROUP}
        self._has_retired = self._has_retired or bool(gone)
        for name in gone:
            self._views.pop(self.names.pop(name), None)

    def group_of_name(self, broker_name: str) -> int:
        """Returns the number of the group that a broker name or an alias belongs to; the first if there is one group,
        0 if no group has the name."""
        if not self.names:
            return FIRST_GROUP
        found = self.names.get(broker_name)
        return found if found is not None else self.names.get(_ALIAS.sub("", broker_name), 0)

    def lost(self, address: str | None) -> None:
        """Records that the connection to a node has ended."""
        for view in self._views.values():
            view.suspect(address)

"""Pulls that wait for messages: parked by queue, woken once per applied run, looked at again every 5 s at the latest.

Tables are dicts of None, not sets: the longest wait is served first.
One timer for all of them, running only while somebody waits. The number that may wait is bounded, per connection and
per node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from cluster.broker.filters.sql import SqlFilter
from cluster.broker.services import Client, Services
from cluster.broker.subscription import MessageFilter
from cluster.runtime.room import Room, Share

if TYPE_CHECKING:
    from cluster.broker.pull import Pull

TICK_MS = 100
RECHECK_MS = 5_000
USUAL_BYTES = 1024
"""Of a pull that waits; what is larger is counted."""
TAG_BYTES = 64

_Key = TypeVar("_Key")
Queue = tuple[int, int]
"""(topic id, queue id)."""


class LongPolls:
    """The parked pulls of a node. `attempt` answers a pull or returns False; `expire` tells it that nothing came."""

    def __init__(self, services: Services, attempt: Callable[[Pull], bool], expire: Callable[[Pull], None]) -> None:
        self._services = services
        self._attempt = attempt
        self._expire = expire
        self._by_queue: dict[Queue, dict[Pull, None]] = {}
        self._by_client: dict[Client, dict[Pull, None]] = {}
        self._slots: dict[int, dict[Pull, None]] = {}
        self._next_slot = 0
        self._ticking = False
        self.count = 0
        """How many pulls are parked."""
        self._bytes = Room(services.config.limits.node_inflight_bytes_max, lambda again: services.call_later(0, again))
        """What large ones of them hold, and their filters; usual ones are bounded by their number."""
        self._filters = _Filters(self._bytes)
        services.on_applied(self.wake)

    def reload(self, bytes_max: int) -> None:
        """Another `limits.node_inflight_bytes_max`; the other limits are looked up."""
        self._bytes.resize(bytes_max)

    def park(self, pull: Pull) -> str | None:
        """Keeps the pull until its deadline, set when it is parked first. Returns why not, naming limit and key."""
        limits = self._services.config.limits
        connection = pull.puller.client
        if connection.closed:
            return None
        mine = self._by_client.get(connection)
        if self.count >= limits.long_polls_max:
            return f"{self.count} pulls wait on this node, limits.long_polls_max is {limits.long_polls_max}"
        if mine is not None and len(mine) >= limits.connection_long_polls_max:
            maximum = limits.connection_long_polls_max
            return f"{len(mine)} pulls wait on this connection, limits.connection_long_polls_max is {maximum}"
        size = _size(pull)
        more = (size if size > USUAL_BYTES else 0) + self._filters.bytes_of_new(pull.wanted)
        if more and not self._bytes.fits(more):
            return (
                f"pulls that wait hold {self._bytes.taken} bytes on this node; with {more} more they pass "
                f"limits.node_inflight_bytes_max = {self._bytes.size}"
            )
        if size > USUAL_BYTES:
            pull.kept = self._bytes.share(size)
        self._filters.add(pull.wanted)
        if mine is None:
            mine = self._by_client[connection] = {}
            connection.on_close.append(lambda: self._on_close(connection))
        now = self._services.monotonic_ms()
        if not pull.held:
            pull.held = True
            pull.puller.hold()
            pull.deadline_ms = now + pull.suspend_ms
        pull.parked = True
        self.count += 1
        mine[pull] = None
        self._by_queue.setdefault((pull.topic_id, pull.queue_id), {})[pull] = None
        self._schedule(pull, now)
        return None

    def _schedule(self, pull: Pull, now: int) -> None:
        if not self._ticking:
            self._ticking = True
            self._next_slot = now // TICK_MS
            self._services.call_later(TICK_MS, self._tick)
        due = min(pull.deadline_ms, now + RECHECK_MS)
        pull.slot = max(-(-due // TICK_MS), self._next_slot)
        self._slots.setdefault(pull.slot, {})[pull] = None

    def _unpark(self, pull: Pull) -> None:
        pull.parked = False
        self.count -= 1
        if pull.kept is not None:
            pull.kept.hold(0)
            pull.kept = None
        self._filters.remove(pull.wanted)
        _discard(self._by_queue, (pull.topic_id, pull.queue_id), pull)
        _discard(self._slots, pull.slot, pull)
        mine = self._by_client.get(pull.puller.client)
        if mine is not None:
            mine.pop(pull, None)

    def wake(self, grown: set[Queue]) -> None:
        """Called once per applied run with the queues that grew, and when more of one may be served."""
        for queue in grown:
            waiting = self._by_queue.get(queue)
            for pull in list(waiting) if waiting else ():
                self._try(pull)

    def _try(self, pull: Pull) -> None:
        """Attempts a parked pull; it leaves the tables first, since the attempt itself may park it again."""
        self._unpark(pull)
        if not self._attempt(pull):
            self.park(pull)

    def _tick(self) -> None:
        now = self._services.monotonic_ms()
        while self._next_slot <= now // TICK_MS:
            slot = self._next_slot
            self._next_slot += 1
            for pull in list(self._slots.get(slot, ())):
                if pull.deadline_ms > now:
                    self._try(pull)
                else:
                    self._unpark(pull)
                    self._expire(pull)
        self._ticking = bool(self.count)
        if self._ticking:
            self._services.call_later(TICK_MS, self._tick)

    def release(self) -> None:
        """Tells everybody who waits that nothing came: the node is about to close their connections."""
        for pull in [pull for waiting in self._by_client.values() for pull in waiting]:
            self._unpark(pull)
            self._expire(pull)

    def _on_close(self, connection: Client) -> None:
        for pull in self._by_client.pop(connection, ()):
            if pull.parked:
                self._unpark(pull)


class _Filters:
    """The SQL92 filters of pulls that wait. Pulls of a group share one, and it is counted once."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._pulls: dict[SqlFilter, int] = {}
        self._shares: dict[SqlFilter, Share] = {}

    def bytes_of_new(self, wanted: MessageFilter) -> int:
        """What `add` would take."""
        return wanted.kept_bytes if isinstance(wanted, SqlFilter) and wanted not in self._pulls else 0

    def add(self, wanted: MessageFilter) -> None:
        """A pull waits."""
        if isinstance(wanted, SqlFilter):
            if wanted not in self._pulls:
                self._shares[wanted] = self._room.share(wanted.kept_bytes)
            self._pulls[wanted] = self._pulls.get(wanted, 0) + 1

    def remove(self, wanted: MessageFilter) -> None:
        """It waits no longer."""
        if isinstance(wanted, SqlFilter):
            self._pulls[wanted] -= 1
            if not self._pulls[wanted]:
                del self._pulls[wanted]
                self._shares.pop(wanted).hold(0)


def _size(pull: Pull) -> int:
    """What a pull keeps of its request, and the tags that it wants, bytes."""
    tags = 0 if isinstance(pull.wanted, SqlFilter) else len(pull.wanted or ())
    return pull.puller.kept_bytes + TAG_BYTES * tags


def _discard(table: dict[_Key, dict[Pull, None]], key: _Key, pull: Pull) -> None:
    """Removes the pull, and its row when that is empty."""
    row = table.get(key)
    if row is not None:
        row.pop(pull, None)
        if not row:
            del table[key]

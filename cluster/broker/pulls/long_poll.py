"""Keeps long polls: pulls that wait for messages. They are parked by queue, woken each time when entries with messages
of the queue were applied, and checked again at least every 5 s.

The tables are dicts with None as values, not sets, because they keep an order: the longest wait is served first, and
several clients are served in turn. Waking, checking again, and forgetting the pulls of a closed connection are cut into
steps (`cluster.runtime.turns.work`): a pull stays in the tables, and is counted, until its turn comes. In one step of a
wake, equal pulls get the same answer, which is read and encoded once (`answers`). There is one timer for all pulls,
which runs only while some wait. The number of waiting pulls is bounded, per connection and per node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from cluster.broker.filters.sql import SqlFilter
from cluster.broker.filters.subscription import MessageFilter
from cluster.broker.reads.pull_values import leave_line
from cluster.broker.refusal import Refused
from cluster.broker.services import Client, Services
from cluster.runtime.resource_budget import Room, Share
from raftlog.work import ITEM_UNITS, METER, charge
from statemachine.rows.keys import Queue

if TYPE_CHECKING:
    from cluster.broker.reads.pull_values import Pull, PullAnswer
    from cluster.runtime.turns.work import WorkSteps

TICK_MS = 100
RECHECK_MS = 5_000
USUAL_BYTES = 1024
"""The bytes up to which a parked pull does not count against the memory for parked pulls. A larger pull counts with all
its bytes."""
TAG_BYTES = 64
FEW = 8
"""The most pulls of a queue that are woken at once, without steps, if the turn of the loop has time left."""
WAKE_UNITS, FORGET_UNITS = 15, 2
"""The units of work (`raftlog.work`) of attempting a pull, and of removing one from the tables."""
STEP_UNITS = 250

ClientPulls = dict["Pull", None]
"""The pulls of one client for one queue, the one that has waited longest first."""
Lines = dict[Client, ClientPulls]
Wish = tuple[int, int, int, str, int, int]
"""(topic id, queue id, offset, group, most messages, most bytes) of a pull without a filter. Pulls with an equal Wish
get the same answer."""
Answers = dict[Wish, "PullAnswer"]


class LongPolls:
    """The parked pulls of a node. `attempt` answers a pull, or returns False if there are still no messages. `expire`
    tells a pull's client that no message came. Event loop only."""

    def __init__(self, services: Services, attempt: Callable[[Pull], bool], expire: Callable[[Pull], None]) -> None:
        self._services = services
        self._attempt = attempt
        self._expire = expire
        self._by_queue: dict[Queue, Lines] = {}
        """Queue -> the pulls that are woken when it grows. Waking removes them from this table, so that no pull is
        served twice."""
        self._by_client: dict[Client, dict[Pull, None]] = {}
        self._slots: dict[int, dict[Pull, None]] = {}
        self._next_slot = 0
        self._due: deque[int] = deque()
        """The numbers of the time slots whose pulls must be checked again now."""
        self._looks = False
        """True while the pulls of such slots are being checked."""
        self._ticking = False
        self._woken = _Woken()
        self.answers: Answers | None = None
        """The answers that were given in this step of a wake; None outside of a step. A step is too short for them to
        become outdated."""
        self._leaving = False
        self._denied: Callable[[Pull], Refused | None] | None = None
        self._may_lack: Callable[[], bool] = lambda: False
        self._access = services.state.access
        self.count = 0
        """The number of parked pulls."""
        self._bytes = Room(services.config.limits.node_inflight_bytes_max, lambda again: services.call_later(0, again))
        """The memory that large pulls and all filters may take. Usual pulls are limited by their number."""
        self._filters = _Filters(self._bytes)
        services.on_applied(self.wake)

    def judge_by(self, denied: Callable[[Pull], Refused | None], may_lack: Callable[[], bool]) -> None:
        """Makes waiting pulls be judged again when users or rules change. `denied` returns the refusal for a pull; None
        if it is allowed. It is called for a pull once for each version of users and rules, before the pull gets any
        message: a new version is published before the messages that come after it in the log. `may_lack` returns True
        if this node may not have applied a change yet that allows a denied pull."""
        self._denied, self._may_lack = denied, may_lack

    def judge_again(self, then: Callable[[], None]) -> None:
        """Refuses the waiting pulls that users, rules or the mode deny now. Works in later turns of the loop, and calls
        `then` when all pulls were judged."""
        self._services.turns.begin_later("pulls that are judged again", self._judge_all(then))

    def _judge_all(self, then: Callable[[], None]) -> WorkSteps:
        began = METER.units
        for pull in [pull for waiting in self._by_client.values() for pull in waiting]:
            if METER.units - began >= STEP_UNITS:
                yield
                began = METER.units
            charge(WAKE_UNITS)
            if pull.parked and pull.judged != self._access.version and not self.is_allowed(pull):
                self._unpark(pull)
        then()

    def is_allowed(self, pull: Pull) -> bool:
        """Judges a pull again if users or rules have changed since it was judged. Returns True if it is allowed, False
        if it was answered. A denied pull is refused, except in two cases: it came while requests were not judged, or
        this node may lack a change that allows it. Then its client is told that no message came, asks again, and is
        judged anew (ADR 0104)."""
        version = self._access.version
        refused = None if self._denied is None or pull.judged == version else self._denied(pull)
        pull.judged = version
        if refused is None:
            return True
        if pull.puller.judged and not self._may_lack():
            pull.puller.refused(refused)
        else:
            self._expire(pull)
        return False

    def reload(self, bytes_max: int) -> None:
        """Applies another `limits.node_inflight_bytes_max`. The other limits are read when they are needed."""
        self._bytes.resize(bytes_max)

    def has(self, connection: Client) -> bool:
        """Returns True if pulls of the connection wait."""
        return bool(self._by_client.get(connection))

    def waits_for(self, topic_id: int, queue_id: int) -> bool:
        """Returns True if a pull may wait for the next message of the queue."""
        return (topic_id, queue_id) in self._by_queue or self._woken.served

    def park(self, pull: Pull) -> str | None:
        """Parks the pull until its deadline, which is set when it is first parked. Returns the reason if a limit
        prevents that: the limit, and its configuration key. Returns None otherwise, also if the pull needs no place:
        its client has disconnected, or the node is stopping and has answered it."""
        full = self._park(pull)
        if not pull.parked:
            leave_line(pull)
        return full

    def _park(self, pull: Pull) -> str | None:
        limits = self._services.config.limits
        connection = pull.puller.client
        if connection.closed:
            return None
        if self._leaving:
            self._expire(pull)
            return None
        mine = self._by_client.get(connection)
        if self.count >= limits.long_polls_max:
            return f"{self.count} pulls wait on this node, limits.long_polls_max is {limits.long_polls_max}"
        if mine is not None and len(mine) >= limits.connection_long_polls_max:
            maximum = limits.connection_long_polls_max
            return f"{len(mine)} pulls wait on this connection, limits.connection_long_polls_max is {maximum}"
        now = self._services.monotonic_ms()
        if not pull.held:
            pull.held = True
            pull.puller.hold()
            pull.deadline_ms = now + pull.suspend_ms
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
        self.count += 1
        mine[pull] = None
        pull.parked = True
        pull.wave = self._woken.waves
        if not pull.paced:
            lines = self._by_queue.setdefault((pull.topic_id, pull.queue_id), {})
            lines.setdefault(connection, {})[pull] = None
        self._schedule(pull, now)
        return None

    def _schedule(self, pull: Pull, now: int) -> None:
        if not self._ticking:
            self._ticking = True
            self._next_slot = now // TICK_MS
            self._services.call_later(TICK_MS, self._tick)
        due = pull.deadline_ms if pull.paced else min(pull.deadline_ms, now + RECHECK_MS)
        pull.slot = max(-(-due // TICK_MS), self._next_slot)
        self._slots.setdefault(pull.slot, {})[pull] = None

    def _unpark(self, pull: Pull) -> None:
        self._leave_line(pull)
        self._leave(pull)

    def _leave(self, pull: Pull) -> None:
        """Removes the pull from all tables except `_by_queue`."""
        pull.parked = False
        leave_line(pull)
        self.count -= 1
        if pull.kept is not None:
            pull.kept.hold(0)
            pull.kept = None
        if pull.wanted is not None:
            self._filters.remove(pull.wanted)
        slot = self._slots[pull.slot]
        del slot[pull]
        if not slot:
            del self._slots[pull.slot]
        mine = self._by_client.get(pull.puller.client)
        if mine is not None:
            mine.pop(pull, None)

    def _leave_line(self, pull: Pull) -> None:
        queue, connection = (pull.topic_id, pull.queue_id), pull.puller.client
        lines = self._by_queue.get(queue)
        line = None if lines is None else lines.get(connection)
        if lines is None or line is None or pull not in line:
            return  # a wake has removed the pull from the table already
        del line[pull]
        if not line:
            del lines[connection]
            if not lines:
                del self._by_queue[queue]

    def go_on(self, pull: Pull) -> None:
        """Attempts a parked pull that has waited for its quota."""
        pull.paced = False
        self._try(pull)

    def _try(self, pull: Pull) -> None:
        """Attempts a parked pull. The pull leaves the tables first, because the attempt itself may park it again."""
        charge(WAKE_UNITS)
        self._leave_line(pull)
        self._try_out_of_line(pull)

    def _try_out_of_line(self, pull: Pull) -> None:
        self._leave(pull)
        if pull.judged != self._access.version and not self.is_allowed(pull):
            return
        if not pull.puller.client.closed and not self._attempt(pull):
            self.park(pull)

    # --- messages come -----------------------------------------------------------------------------------------------

    def wake(self, grown: set[Queue]) -> None:
        """Wakes the parked pulls of these queues. Called with the queues that grew, once for each run of entries that
        are applied together, and when more of a queue may be served."""
        woken = self._woken
        for queue in grown:
            lines = self._by_queue.get(queue)
            if lines is None:
                continue
            if not woken.served and _are_few(lines) and not self._services.turns.spent():
                for pull in [pull for line in lines.values() for pull in line]:
                    self._try(pull)
            else:
                del self._by_queue[queue]
                woken.take(lines)
                if not woken.served:
                    woken.served = True
                    # The pulls are served in later turns: this turn of the loop belongs to the caller's own work.
                    self._services.turns.begin_later("woken pulls", self._serve())

    def _serve(self) -> WorkSteps:
        woken, began = self._woken, METER.units
        self.answers = {}
        try:
            for pull in woken:
                if pull is not None:
                    charge(WAKE_UNITS)
                    self._try_out_of_line(pull)  # `take` has emptied it
                if METER.units - began >= STEP_UNITS:
                    self.answers = None
                    yield
                    self.answers, began = {}, METER.units
        finally:
            self.answers = None
            woken.served = False

    # --- time passes -------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self._services.monotonic_ms()
        while self._next_slot <= now // TICK_MS:
            if self._next_slot in self._slots:
                self._due.append(self._next_slot)
            self._next_slot += 1
        if self._due and not self._looks:
            self._looks = True
            self._services.turns.begin("pulls that are due", self._look())
        self._ticking = bool(self.count)
        if self._ticking:
            self._services.call_later(TICK_MS, self._tick)

    def _look(self) -> WorkSteps:
        began = METER.units
        try:
            while self._due:
                slot = self._due.popleft()
                for pull in list(self._slots.get(slot, ())):  # a pull that is parked again goes into a later slot
                    if METER.units - began >= STEP_UNITS:
                        yield
                        began = METER.units
                    if not pull.parked or pull.slot != slot:
                        continue
                    if pull.deadline_ms > self._services.monotonic_ms():
                        self._try(pull)
                    else:
                        self._end(pull)
        finally:
            self._looks = False

    def _end(self, pull: Pull) -> None:
        """Ends the wait of a pull for which no message came."""
        charge(WAKE_UNITS)
        self._unpark(pull)
        if not pull.puller.client.closed:
            self._expire(pull)

    # --- clients disconnect, or the node stops -----------------------------------------------------------------------

    async def release(self) -> None:
        """Tells the clients of all parked pulls that no message came, because the node will close their connections.
        From now on no pull is parked."""
        self._leaving = True
        for pull in [pull for waiting in self._by_client.values() for pull in waiting]:
            await self._services.turns.breathe("pulls that are released")
            if pull.parked:
                self._end(pull)

    def _on_close(self, connection: Client) -> None:
        waiting = self._by_client.pop(connection, None)
        if waiting:
            self._services.turns.begin("pulls of closed connections", self._forget(list(waiting)))

    def _forget(self, pulls: list[Pull]) -> WorkSteps:
        began = METER.units
        for pull in pulls:
            if METER.units - began >= STEP_UNITS:
                yield
                began = METER.units
            charge(FORGET_UNITS)
            if pull.parked:
                self._unpark(pull)


class _Woken:
    """The woken pulls, in the order in which they are served: one pull of each client in turn."""

    def __init__(self) -> None:
        self.served = False
        """True while a task serves the pulls one after the other."""
        self.waves = 0
        """The number of times that pulls were taken from the tables."""
        self._taken: deque[tuple[Lines, int]] = deque()
        """(pulls, number of the wave) of the pulls that are not yet divided among their clients."""
        self._waiting: dict[Client, deque[Iterator[Pull]]] = {}
        self._turns: deque[Client] = deque()
        """The clients with woken pulls; the next one to be served is first."""

    def take(self, lines: Lines) -> None:
        """Adds pulls that waking has removed from the table of parked pulls."""
        self._taken.append((lines, self.waves))
        self.waves += 1

    def __iter__(self) -> Iterator[Pull | None]:
        """Yields the pulls one after the other, also those that are added during the iteration. Yields None after some
        work that has not led to a pull."""
        while self._taken or self._turns:
            if self._taken:
                yield from self._divide(*self._taken.popleft())
            else:
                yield self._next()

    def _divide(self, lines: Lines, wave: int) -> Iterator[None]:
        for client, line in lines.items():
            charge(ITEM_UNITS)
            waiting = self._waiting.get(client)
            if waiting is None:
                waiting = self._waiting[client] = deque()
                self._turns.append(client)
            waiting.append(_parked(line, wave))
            yield

    def _next(self) -> Pull | None:
        client = self._turns.popleft()
        waiting = self._waiting[client]
        pull = next(waiting[0], None)
        if pull is not None:
            self._turns.append(client)
            return pull
        waiting.popleft()
        if waiting:
            self._turns.appendleft(client)
        else:
            del self._waiting[client]
        return None


def wish_of(pull: Pull) -> Wish:
    """Returns the `Wish` of a pull without a filter."""
    return pull.topic_id, pull.queue_id, pull.offset, pull.group, pull.messages_max, pull.bytes_max


def _are_few(lines: Lines) -> bool:
    return len(lines) <= FEW and sum(map(len, lines.values())) <= FEW


def _parked(line: ClientPulls, wave: int) -> Iterator[Pull]:
    """Yields the pulls of the line that are still parked when their turn comes. A pull that was parked again since the
    wave is skipped: it waits for the next wake."""
    for pull in line:
        if pull.parked and pull.wave <= wave:
            yield pull


class _Filters:
    """Counts the memory of the SQL92 filters of parked pulls. A filter that several pulls share is counted once."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._pulls: dict[SqlFilter, int] = {}
        self._shares: dict[SqlFilter, Share] = {}

    def bytes_of_new(self, wanted: MessageFilter) -> int:
        """Returns the bytes that `add` would count for this filter; 0 if it is counted already, or is no SQL92
        filter."""
        return wanted.kept_bytes if isinstance(wanted, SqlFilter) and wanted not in self._pulls else 0

    def add(self, wanted: MessageFilter) -> None:
        """Counts a parked pull with this filter."""
        if isinstance(wanted, SqlFilter):
            if wanted not in self._pulls:
                self._shares[wanted] = self._room.share(wanted.kept_bytes)
            self._pulls[wanted] = self._pulls.get(wanted, 0) + 1

    def remove(self, wanted: MessageFilter) -> None:
        """Removes a pull with this filter from the count of parked pulls."""
        if isinstance(wanted, SqlFilter):
            self._pulls[wanted] -= 1
            if not self._pulls[wanted]:
                del self._pulls[wanted]
                self._shares.pop(wanted).hold(0)


def _size(pull: Pull) -> int:
    """Returns the approximate bytes of the request and of the tags that a parked pull keeps in memory."""
    tags = 0 if isinstance(pull.wanted, SqlFilter) else len(pull.wanted or ())
    return pull.puller.kept_bytes + TAG_BYTES * tags

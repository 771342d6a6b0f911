"""Decides the order in which sends of many clients go to the log, when more of them wait than the next entry takes.

It is start-time fair queueing (Goyal, Vin and Cheng, 1996) at two levels: first between owners (the user who signed a
send, else the address of its client; the number of its connections does not matter), then between the topics of one
owner. Each has a tag: the virtual time at which its next send begins. The owner or topic with the least tag goes first,
and its tag rises by the cost of its sends. An owner that was idle begins at the present virtual time, so a client that
sends little is next, and no client saves up a share. Deficit round robin gives the same shares, but a newcomer waits
for a round, and a debt (a message of 4 MiB behind which nothing waits) costs empty rounds.

The sends of one owner to one topic keep their order, and so do the sends of one connection to one queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from cluster.replication.message_batch import message_size
from raftlog.work import charge

if TYPE_CHECKING:
    from cluster.replication.message_batch import Send

MESSAGE_COST: Final = 1024
"""The cost of a message, in bytes, in addition to its size: on one core a node handles small messages at the same rate
as those of 1 KiB."""
RUN_COST: Final = 8 * 1024
"""The cost up to which one line (the sends of one owner to one topic) is served in one turn. A turn for each single
send would cost too much."""
SENDS_PER_UNIT: Final = 2
"""Sends that are sorted, or taken, in a microsecond (a unit of `raftlog.work`)."""
LIGHT_MS: Final = 2_000
"""The milliseconds within which an owner that sends little is expected to send again."""
IDLE_MAX: Final = 64
"""Once more owners are remembered than this number plus twice those with waiting sends, the owners that have no waiting
sends and have had no more than their share are forgotten."""
DEMOTED: Final = 8
"""The factor by which sends to a demoted topic cost more. While other topics use their full shares, a demoted topic
gets an eighth of a share. It also gets what the others leave over."""
OWN_COPIES: Final = -1
"""The topic id under which copies that the node makes itself are sorted. So these keep their order even if their topics
differ."""


def cost_of(send: Send) -> int:
    """Returns the cost of a send: its size in bytes plus MESSAGE_COST for each message."""
    return send.size + MESSAGE_COST * (len(send.batch) or 1)


def competes(send: Send, other: Send) -> bool:
    """Returns True if two sends are of different owners (`owner_of`) or topics. Called for each read of a connection,
    so it compares addresses only if it must."""
    if send.slot is not other.slot or send.user != other.user:
        return True
    mine, others = send.connection, other.connection
    return not send.user and mine is not others and mine.in_flight.address != others.in_flight.address


class _Line:
    """The waiting sends of one owner to one topic, oldest first."""

    __slots__ = ("cost", "queued", "sends", "tag")

    def __init__(self) -> None:
        self.sends: deque[Send] = deque()
        self.cost = 0
        """The cost of its sends; 0 if there is none."""
        self.tag = 0
        self.queued = False
        """True while it has a place in the turn of its owner, even if all its sends have been removed."""


class _Owner:
    """The waiting sends of one owner."""

    __slots__ = ("cost", "lines", "queued", "tag", "turn")

    def __init__(self) -> None:
        self.cost = 0
        self.lines: dict[int, _Line] = {}
        """Id of the topic -> line."""
        self.tag = 0
        self.queued = False
        self.turn: _Turn[_Line] = _Turn()


_C = TypeVar("_C", _Line, _Owner)


class _Turn(Generic[_C]):
    """The owners, or the lines of one owner, that have sends, ordered by their tags."""

    __slots__ = ("_count", "_heap", "_now")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, _C]] = []
        """(tag, number, owner or line). Of equal tags, the lower number, which joined earlier, comes first."""
        self._now = 0
        """The tag of the owner or line that was served last."""
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def join(self, who: _C) -> None:
        """Adds an element that was idle. It is next, unless it has had more than its share."""
        who.queued = True
        who.tag = max(who.tag, self._now)
        self._count += 1
        heappush(self._heap, (who.tag, self._count, who))

    def front(self) -> _C | None:
        """Returns the owner or line whose turn it is; None if none has sends. Removes elements in front of it whose
        sends are gone."""
        heap = self._heap
        while heap:
            who = heap[0][2]
            if who.cost:
                return who
            heappop(heap)
            who.queued = False
        return None

    def served(self, cost: int) -> None:
        """Charges the element in front `cost` for what it has just had, and moves it to its next place."""
        self._now, _, who = self._heap[0]
        who.tag = self._now + cost
        self._count += 1
        heapreplace(self._heap, (who.tag, self._count, who))

    def is_past(self, tag: int) -> bool:
        """Returns True if the element with this tag has had no more than its share."""
        return tag <= self._now


class FairOrder:
    """The waiting sends, by owner and topic. Event loop only."""

    __slots__ = ("_demoted", "_light_ms", "_now_ms", "_owners", "_turn", "count")

    def __init__(self) -> None:
        self.count = 0
        """The number of sends."""
        self._demoted: Collection[int] = frozenset()
        self._owners: dict[int | str, _Owner] = {}
        """Id of the user, or address of the client if no user signed -> owner."""
        self._turn: _Turn[_Owner] = _Turn()
        self._now_ms = 0
        """The time in milliseconds at which the last send was added."""
        self._light_ms = -LIGHT_MS
        """The last time in milliseconds at which an entry took all sends of some owner to a topic, while other sends
        had to wait."""

    def __iter__(self) -> Iterator[Send]:
        return (send for owner in self._owners.values() for line in owner.lines.values() for send in line.sends)

    def demote(self, topics: Collection[int]) -> None:
        """Gives a smaller share to topics with these ids than to others, and refuses their sends first
        (`cluster.replication.learnt_use`), from now on."""
        self._demoted = topics

    def add(self, sends: Iterable[Send]) -> None:
        """Adds sends, in the order of their arrival."""
        connection = slot = owner = line = None
        count = 0
        for send in sends:
            if owner is None or line is None or send.connection is not connection or send.slot is not slot:
                connection, slot = send.connection, send.slot
                owner = self._owner(send)
                line = _line(owner, send)
            cost = cost_of(send)
            line.sends.append(send)
            line.cost += cost
            owner.cost += cost
            count += 1
        self.count += count
        if count:
            self._now_ms = send.received_ms
        charge(count // SENDS_PER_UNIT)

    @property
    def has_light(self) -> bool:
        """True if within LIGHT_MS an owner sent less than its share while others sent more than an entry takes."""
        return self.count > 0 and self._now_ms - self._light_ms < LIGHT_MS

    def take(self, bytes_left: int, count_left: int) -> tuple[list[Send], int]:
        """Removes sends in their fair order, up to `bytes_left` stored bytes and `count_left` messages, but at least
        one. Returns them and the bytes of their requests (`Send.size`), as `cluster.replication.send_queue.cut`
        does."""
        taken: list[Send] = []
        size = 0
        light = False
        while (place := self._front()) is not None:
            owner, line = place
            run = 0
            while line.sends and run < RUN_COST and count_left > 0:
                send = line.sends[0]
                bytes_left -= message_size(send, send.slot) if not send.batch else send.size
                if bytes_left < 0 and taken:
                    count_left = 0
                    break
                taken.append(line.sends.popleft())
                size += send.size
                count_left -= len(send.batch) or 1
                run += cost_of(send)
            if run:
                line.cost -= run
                owner.cost -= run
                light |= not line.sends
                if self._demoted and _topic(send) in self._demoted:
                    run *= DEMOTED
                owner.turn.served(run)
                self._turn.served(run)
            if count_left <= 0:
                break
        charge(len(taken) // SENDS_PER_UNIT)
        self._gone(len(taken))
        if light and self.count:
            self._light_ms = self._now_ms
        return taken, size

    def first(self) -> Send | None:
        """Returns the send that is taken next; None if there is none."""
        place = self._front()
        return None if place is None else place[1].sends[0]

    def take_longest(self, size: int, count: int, limit: int) -> list[Send]:
        """Removes and returns sends of clients: as many as needed for `size` bytes, and at most `count`. Each time it
        takes the owner whose waiting sends cost most, then that owner's topic with the highest cost, and removes the
        oldest send there.

        Sends to demoted topics are removed first, down to the part of an equal share that these topics get. Copies that
        the node makes itself stay. So do the sends of an owner or a topic that cost no more than an equal share of
        `limit` bytes: if copies fill the queue, clients are not to blame (seed 957000001).
        """
        taken = self._take_demoted(size, count, limit) if self._demoted else []
        size -= sum([send.size for send in taken])
        owners = _longest(self._owners.values())
        share = limit // max(1, len(owners))
        lines: dict[int, list[tuple[int, int, _Line]]] = {}
        shares: dict[int, int] = {}
        while size > 0 and len(taken) < count and owners and -owners[0][0] > share:
            _, name, owner = owners[0]
            if name not in lines:
                lines[name] = _longest(line for topic, line in owner.lines.items() if topic != OWN_COPIES)
                shares[name] = share // max(1, sum(line.cost > 0 for line in owner.lines.values()))
            if not lines[name] or -lines[name][0][0] <= shares[name]:
                heappop(owners)
                continue
            _, topic, line = lines[name][0]
            send = line.sends.popleft()
            taken.append(send)
            size -= send.size
            cost = cost_of(send)
            line.cost -= cost
            owner.cost -= cost
            _moved(lines[name], topic, line)
            _moved(owners, name, owner)
        self._gone(len(taken))
        return taken

    def _take_demoted(self, size: int, count: int, limit: int) -> list[Send]:
        """Removes and returns sends to demoted topics: as many as needed for `size` bytes, and at most `count`. Each is
        the oldest send of the line with the highest cost at that moment. The caller subtracts them from
        `self.count`."""
        found, lines = [], 0
        for owner in self._owners.values():
            for topic, line in owner.lines.items():
                if line.cost:
                    lines += 1
                    if topic in self._demoted:
                        found.append((owner, line))
        charge(1 + lines // SENDS_PER_UNIT)
        share = limit // (DEMOTED * max(1, lines))
        heap = _longest(line for _, line in found)
        taken: list[Send] = []
        while heap and size > 0 and len(taken) < count and -heap[0][0] > share:
            _, number, line = heap[0]
            send = line.sends.popleft()
            taken.append(send)
            size -= send.size
            line.cost -= cost_of(send)
            found[number][0].cost -= cost_of(send)
            _moved(heap, number, line)
        return taken

    def take_older(self, before_ms: int) -> list[Send]:
        """Removes and returns the sends that arrived at or before `before_ms`."""
        late: list[Send] = []
        for owner in self._owners.values():
            for line in owner.lines.values():
                while line.sends and line.sends[0].received_ms <= before_ms:
                    late.append(line.sends.popleft())
                    line.cost -= cost_of(late[-1])
                    owner.cost -= cost_of(late[-1])
        self._gone(len(late))
        return late

    def take_where(self, which: Callable[[Send], bool]) -> list[Send]:
        """Removes and returns the sends for which `which` is true."""
        taken: list[Send] = []
        for owner in self._owners.values():
            for line in owner.lines.values():
                found = take_where(line.sends, which)
                cost = sum([cost_of(send) for send in found])
                line.cost -= cost
                owner.cost -= cost
                taken += found
        self._gone(len(taken))
        return taken

    def take_all(self) -> list[Send]:
        """Removes and returns all sends; those of one owner to one topic are in their order."""
        sends = list(self)
        self._gone(len(sends))
        return sends

    def replace(self, old: Send, new: Send) -> bool:
        """Replaces a waiting send by its repetition; returns False if the send is not here."""
        owner = self._owners.get(owner_of(old))
        line = None if owner is None else owner.lines.get(_topic(old))
        if owner is None or line is None or old not in line.sends:
            return False
        line.sends[line.sends.index(old)] = new
        more = cost_of(new) - cost_of(old)
        line.cost += more
        owner.cost += more
        return True

    def _front(self) -> tuple[_Owner, _Line] | None:
        owner = self._turn.front()
        line = None if owner is None else owner.turn.front()
        return None if owner is None or line is None else (owner, line)

    def _owner(self, send: Send) -> _Owner:
        key = owner_of(send)
        owner = self._owners.get(key)
        if owner is None:
            if len(self._owners) > 2 * len(self._turn) + IDLE_MAX:
                self._forget_idle()
            owner = self._owners[key] = _Owner()
        if not owner.queued:
            owner.lines, owner.turn = {}, _Turn()
            self._turn.join(owner)
        return owner

    def _forget_idle(self) -> None:
        """Forgets owners that have no waiting sends and have had no more than their share."""
        charge(1 + len(self._owners) // SENDS_PER_UNIT)
        kept = {key: who for key, who in self._owners.items() if who.queued or not self._turn.is_past(who.tag)}
        self._owners = kept

    def _gone(self, count: int) -> None:
        """Subtracts `count` removed sends. When no send is left, all owners and tags are forgotten."""
        self.count -= count
        if not self.count:
            self._owners.clear()
            self._turn = _Turn()


def take_where(queue: deque[Send], which: Callable[[Send], bool]) -> list[Send]:
    """Removes and returns the sends of a queue for which `which` is true; the others keep their order."""
    taken: list[Send] = []
    kept: list[Send] = []
    for send in queue:
        (taken if which(send) else kept).append(send)
    if taken:
        queue.clear()
        queue.extend(kept)
    return taken


def _longest(all_of_them: Iterable[_C]) -> list[tuple[int, int, _C]]:
    """Returns the owners or lines that have sends, as a heap of (-cost, number, owner or line)."""
    heap = [(-who.cost, n, who) for n, who in enumerate(all_of_them) if who.cost]
    charge(1 + len(heap) // SENDS_PER_UNIT)
    heapify(heap)
    return heap


def _moved(heap: list[tuple[int, int, _C]], number: int, who: _C) -> None:
    """Moves the first element of a heap of `_longest` to its new place."""
    if who.cost:
        heapreplace(heap, (-who.cost, number, who))
    else:
        heappop(heap)


def owner_of(send: Send) -> int | str:
    """Returns the owner of a send: the id of the user, or the address of the client if no user signed."""
    return send.user or send.connection.in_flight.address


def _topic(send: Send) -> int:
    return send.slot.topic_id if send.done is None else OWN_COPIES


def _line(owner: _Owner, send: Send) -> _Line:
    topic = _topic(send)
    line = owner.lines.get(topic)
    if line is None:
        line = owner.lines[topic] = _Line()
    if not line.queued:
        owner.turn.join(line)
    return line

"""Chooses the connection that is closed for a newcomer when few places are left.

While there is room, one address may have all of it. From 80 % of the limit on, a client of another address takes the
place of the longest idle connection of the address that holds most. So no client can keep others out by holding
connections, and none loses a connection that is in use.

While users are enforced, a newcomer is a stranger until its connection has proven a user. Strangers share three
quarters of the places, by network prefix and by address. When these are taken, a newcomer takes the place of another
stranger. So the last quarter is for clients that have proven who they are, however many addresses strangers have.
"""

from __future__ import annotations

import heapq
import ipaddress
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

PRESSED = 0.8
"""The part of all places that must be taken before a newcomer takes the place of another address."""
LOOKED_AT = 64
"""The most connections of one address that are checked for a newcomer, few enough to keep the turn of the loop
short."""

FIRST_WORD_S = 1.0
"""Seconds for which a new connection of a stranger counts as in use, because its first request is on the way."""

C = TypeVar("C")


class ConnectionSlots(Generic[C]):
    """Keeps open connections by address, and finds idle ones of the address that holds most."""

    def __init__(self, idle_s: Callable[[C], float | None]) -> None:
        """`idle_s` returns the seconds for which a connection has been idle; None if it must stay."""
        self._idle_s = idle_s
        self._of: dict[str, dict[C, None]] = {}
        self._most: list[tuple[int, str]] = []
        """A heap of (minus the number of connections, address). An item is outdated if the address has another number
        by now."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, address: str, connection: C) -> None:
        """Adds an open connection."""
        self._count += 1
        mine = self._of.setdefault(address, {})
        mine[connection] = None
        if len(self._most) > 4 * len(self._of) + LOOKED_AT:
            self._most = [(-len(held), each) for each, held in self._of.items()]
            heapq.heapify(self._most)
        else:
            heapq.heappush(self._most, (-len(mine), address))

    def remove(self, address: str, connection: C) -> None:
        """Removes a connection that is closed, or about to be; does nothing if it is not known."""
        mine = self._of.get(address)
        if mine is not None and connection in mine:
            self._count -= 1
            del mine[connection]
            if not mine:
                del self._of[address]

    def held(self, address: str) -> int:
        """Returns the number of open connections of an address."""
        return len(self._of.get(address, ()))

    def victim(self, newcomer: str) -> C | None:
        """Returns the connection whose place a client of this address takes: an idle one of the address that holds
        most. Returns None if that address holds at most one connection more than the newcomer's address, or if none of
        its connections is idle."""
        top = self.top()
        return None if top is None or self.held(top) <= self.held(newcomer) + 1 else self.idlest(top)

    def idlest(self, address: str) -> C | None:
        """Returns the connection that is idle longest among LOOKED_AT connections of an address; None if all of these
        must stay. The next call looks at others."""
        held = self._of[address]
        looked = list(itertools.islice(held, LOOKED_AT))
        for each in looked:
            del held[each]
            held[each] = None  # the next newcomer looks at others
        return _idlest(looked, self._idle_s)

    def top(self) -> str | None:
        """Returns the address that holds most connections; None if there are no connections."""
        while self._most:
            count, address = self._most[0]
            now = len(self._of.get(address, ()))
            if now == -count:
                return address
            heapq.heappop(self._most)
            if now:
                heapq.heappush(self._most, (-now, address))
        return None


def _idlest(connections: Iterable[C], idle_s: Callable[[C], float | None]) -> C | None:
    idle = {each: seconds for each in connections if (seconds := idle_s(each)) is not None}
    return max(idle, key=idle.__getitem__, default=None)


PREFIX_6_BYTES = 8
KNOWN_MAX = 1_024


def prefix_of(address: str) -> str:
    """Returns the network to which a client's address belongs, by which strangers share places: /24, or /64 for
    IPv6."""
    if ":" not in address:
        return address.rpartition(".")[0]
    try:
        full = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if full.ipv4_mapped is not None:
        return str(full.ipv4_mapped).rpartition(".")[0]
    return full.packed[:PREFIX_6_BYTES].hex()


class Places(Generic[C]):
    """Decides which connections have the places of one port, and which one leaves for a newcomer."""

    def __init__(self, idle_s: Callable[[C], float | None], reserves: Callable[[], bool] = lambda: False) -> None:
        """`idle_s` as for ConnectionSlots; but a connection without a proven user may be closed even if `idle_s`
        returns None. `reserves` returns True while the last quarter is for connections that have proven a user."""
        self._idle_s = idle_s
        self._reserves = reserves
        self._all: ConnectionSlots[C] = ConnectionSlots(idle_s)
        self._strangers: dict[C, str] = {}
        """Connection that has proven no user -> its address, the oldest first."""
        self._networks: ConnectionSlots[C] = ConnectionSlots(self._stranger_idle_s)
        """The connections that have proven no user, by the prefix of their address."""
        self._within: dict[str, ConnectionSlots[C]] = {}
        """Prefix -> its strangers by address."""
        self._known: OrderedDict[str, None] = OrderedDict()
        """The addresses that have proven a user most recently."""

    def __len__(self) -> int:
        return len(self._all)

    @property
    def strangers(self) -> int:
        """The number of connections that have proven no user."""
        return len(self._strangers)

    def add(self, address: str, connection: C) -> None:
        """Adds an open connection, which has not proven a user yet."""
        prefix = prefix_of(address)
        self._all.add(address, connection)
        self._strangers[connection] = address
        self._networks.add(prefix, connection)
        if prefix not in self._within:
            self._within[prefix] = ConnectionSlots(self._stranger_idle_s)
        self._within[prefix].add(address, connection)

    def remove(self, address: str, connection: C) -> None:
        """Removes a connection that is closed, or about to be; does nothing if it is not known."""
        self._all.remove(address, connection)
        self._no_stranger(connection)

    def proven(self, address: str, connection: C) -> None:
        """Records that the connection has proven a user."""
        self._no_stranger(connection)
        self._known.pop(address, None)
        self._known[address] = None
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def may_have_all(self, address: str) -> bool:
        """Returns True if a client of this address may have one of the last quarter of places before it has proven a
        user: one of its connections did, or nothing is reserved."""
        return not self._reserves() or address in self._known

    def make_room(self, address: str, opening: int, limit: int) -> tuple[C | None, bool]:
        """Returns (the connection that must be closed for a client of this address or None, True if there is a place
        for the client then). `opening` is the number of accepted connections that are not open yet, `limit` the number
        of places."""
        count = len(self) + opening
        if not self._reserves():
            victim = self._all.victim(address) if count >= PRESSED * limit else None
            return victim, count - (victim is not None) < limit
        shared = shared_part(limit)
        if opening >= max(1, shared // 2) and address not in self._known:
            return None, False  # a connection that has sent nothing takes no place from one that has
        victim = None
        if self.strangers + opening >= shared:
            victim = self._leaving(address)
            return victim, victim is not None
        if count >= PRESSED * limit and len(self) - self.strangers > limit - shared:
            victim = self._all.victim(address)
            if victim is None and count >= limit:
                victim = self._leaving(address)
        return victim, count - (victim is not None) < limit

    def _leaving(self, newcomer: str) -> C | None:
        """Returns the connection without a proven user that is closed for a newcomer of this address; None if there is
        none."""
        top, prefix = self._networks.top(), prefix_of(newcomer)
        if top is None:
            return None
        own = self._within.get(prefix)
        if self._networks.held(top) <= self._networks.held(prefix) + 1:
            if own is not None and (victim := own.victim(newcomer)) is not None:
                return victim
            if self._networks.held(top) == 1:
                return _idlest(itertools.islice(self._strangers, LOOKED_AT), self._stranger_idle_s)
        within = self._within[top]
        most = within.top()
        return within.idlest(most) if most is not None and within.held(most) > 1 else self._networks.idlest(top)

    def _stranger_idle_s(self, connection: C) -> float:
        """Returns a measure that orders connections without a proven user: those with the highest value are closed
        first, idle ones before others, and those of known addresses last."""
        idle_s = self._idle_s(connection)
        if idle_s is None or idle_s < FIRST_WORD_S:
            idle_s = -1.0  # it is in use
        return idle_s - (1e9 if self._strangers[connection] in self._known else 0.0)

    def _no_stranger(self, connection: C) -> None:
        address = self._strangers.pop(connection, None)
        if address is None:
            return
        prefix = prefix_of(address)
        self._networks.remove(prefix, connection)
        self._within[prefix].remove(address, connection)
        if not self._networks.held(prefix):
            del self._within[prefix]


def shared_part(limit: int) -> int:
    """Returns the number of the `limit` places that are for all clients while the last quarter is reserved for proven
    users."""
    return max(1, limit - limit // 4)

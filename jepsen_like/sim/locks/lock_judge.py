"""Judges the answers about queue locks by the earlier answers to the clients, in virtual time.

A client that is granted a queue reads it for half of the lock's time from its request on. No other may be granted it
before that ends, and none is refused what nobody can hold. Log time may run beside virtual time only as far as clocks
are wrong: `exact` tells whether that is less than the half that is left.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from jepsen_like.sim.clients.raw_client import Report
from jepsen_like.sim.machines.machine import LOCK_TTL_MS

TTL_S = LOCK_TTL_MS / 1000
READS_S = TTL_S / 2
"""Seconds for which a client reads a queue after it asked for the lock that it was granted."""
SLACK_S = 4.0
"""Seconds by which a lock may end later than TTL_S: an election gives log time no more than the median clock and the
last entry have.
"""
LATE_S = 10.0
"""Seconds by which a request that was given up may be carried out later."""

Queue = tuple[str, str, int]
"""(group, topic, queue id)."""


class Asked(NamedTuple):
    """A request for locks on its way."""

    client: str
    queues: tuple[Queue, ...]
    at_s: float


class LockJudge:
    """Reports under the name `locks`."""

    def __init__(self, report: Report, now: Callable[[], float], exact: Callable[[], bool]) -> None:
        self._report, self._now, self._exact = report, now, exact
        self._reads: dict[Queue, tuple[str, float, float]] = {}
        """Queue -> (who reads it, since when, until when)."""
        self._may_hold: dict[Queue, dict[str, float]] = defaultdict(dict)
        """Queue -> client -> until when it can hold the lock; for ever while it asks."""
        self._lost: dict[Queue, dict[str, float]] = defaultdict(dict)
        """The same from requests that were given up: neither answers nor unlocking end that."""
        self._ended: dict[str, float] = {}
        """Client -> time at which its last request ended."""
        self._is_known: dict[str, Callable[[], bool]] = {}
        """Client -> whether every node knows it: else its lock stops nobody's commits."""

    def watch(self, client: str, is_known: Callable[[], bool]) -> None:
        """A client with this id begins."""
        self._is_known[client] = is_known

    # --- locks -------------------------------------------------------------------------------------------------------

    def asks(self, client: str, queues: Iterable[Queue]) -> Asked:
        """A client asks for locks; it asks again only after this ended."""
        asked = Asked(client, tuple(queues), self._now())
        for queue in asked.queues:
            self._may_hold[queue][client] = math.inf
        return asked

    def lost(self, asked: Asked) -> None:
        """Notes a request without an answer, or with one that does not tell: it may be granted yet."""
        self._ended[asked.client] = self._now()
        until = self._now() + LATE_S + TTL_S + SLACK_S
        for queue in asked.queues:
            self._lost[queue][asked.client] = until
            self._may_hold[queue][asked.client] = until

    def answered(self, asked: Asked, granted: Collection[Queue]) -> None:
        """The client was told what it holds."""
        now, client = self._now(), asked.client
        self._ended[client] = now
        for queue in asked.queues:
            if queue in granted:
                self._granted(asked, queue)
                self._may_hold[queue][client] = now + TTL_S + SLACK_S
            else:
                self._refused(asked, queue)
                self._may_hold[queue][client] = now
                if self.reader(queue) == client:
                    self._wrong(f"{client} was refused {named(queue)} while its own lock was good")

    def _granted(self, asked: Asked, queue: Queue) -> None:
        reader, since, until = self._reads.get(queue, ("", 0.0, 0.0))
        if reader not in ("", asked.client) and until > self._now():
            left = f"which {reader} was granted and reads for {until - self._now():.2f} s more"
            self._wrong(f"{asked.client} was granted {named(queue)}, {left}")
        begun = since if reader == asked.client and until > self._now() else self._now()
        if asked.at_s + READS_S > self._now():
            self._reads[queue] = asked.client, begun, asked.at_s + READS_S

    def _refused(self, asked: Asked, queue: Queue) -> None:
        for client in (*self._may_hold[queue], *self._lost[queue]):
            until = max(self._may_hold[queue].get(client, 0.0), self._lost[queue].get(client, 0.0))
            if client != asked.client and until >= asked.at_s:
                return
        self._wrong(f"{asked.client} was refused {named(queue)}, which nobody else can hold")

    def stops_reading(self, client: str, queues: Collection[Queue] | None = None) -> None:
        """The client gives queues up, or all that it reads, and is about to say so."""
        for queue, (reader, _, _) in list(self._reads.items()):
            if reader == client and (queues is None or queue in queues):
                del self._reads[queue]

    def unlocked(self, client: str, queues: Iterable[Queue]) -> None:
        """The client was told that it holds them no longer."""
        for queue in queues:
            self._may_hold[queue][client] = self._now()

    def deletes(self, group: str, topic: str | None = None) -> float:
        """The group, or a topic, is about to be deleted: nobody reads any more. Returns the time, for `deleted`."""
        for queue in [queue for queue in self._reads if self._is_of(queue, group, topic)]:
            del self._reads[queue]
        return self._now()

    def deleted(self, group: str, since_s: float, topic: str | None = None) -> None:
        """Notes a deletion: clients that were answered before hold nothing of it."""
        for queue, clients in self._may_hold.items():
            if self._is_of(queue, group, topic):
                for client, until in clients.items():
                    if until < math.inf and self._ended[client] <= since_s:
                        clients[client] = since_s

    @staticmethod
    def _is_of(queue: Queue, group: str, topic: str | None) -> bool:
        return queue[0] == group and topic in (None, queue[1])

    # --- what holders do ---------------------------------------------------------------------------------------------

    def reader(self, queue: Queue) -> str | None:
        """Returns the client that may read the queue now; None if there is none."""
        reader, _, until = self._reads.get(queue, (None, 0.0, 0.0))
        return reader if until > self._now() else None

    def committed(self, client: str, queue: Queue, asked_s: float) -> None:
        """A commit of the client's was answered as done."""
        reader, since, until = self._reads.get(queue, (client, 0.0, 0.0))
        known = self._is_known.get(reader, lambda: True)
        if reader != client and since < asked_s and until > self._now() and known():
            self._wrong(f"{client} committed an offset of {named(queue)}, which {reader} holds")

    def dropped(self, client: str, queue: Queue, asked_s: float) -> None:
        """A commit of the client's was answered as dropped: another holds the queue."""
        reader, since, until = self._reads.get(queue, ("", 0.0, 0.0))
        if reader == client and since < asked_s and until > self._now():
            self._wrong(f"{client} holds {named(queue)}, and its commit was dropped")

    def _wrong(self, what: str) -> None:
        if self._exact():
            self._report("locks", what)


def named(queue: Queue) -> str:
    """A queue in a report."""
    group, topic, queue_id = queue
    return f"{topic} queue {queue_id} (group {group})"

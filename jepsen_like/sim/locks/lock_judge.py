"""The lock judge: checks each answer about queue locks against the earlier answers to all clients, in virtual time.

A client that was granted a queue reads it for half of the lock's lifetime, counted from its request. No other client
may be granted the queue before that time ends, and no client may be refused a queue that no other client can hold. The
cluster's log time may differ from virtual time by the error of the clocks: `exact` tells whether that error is less
than the other half of the lifetime.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from jepsen_like.checkers.history_steps import GroupQueue
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.machines.machine import LOCK_TTL_MS

TTL_S = LOCK_TTL_MS / 1000
READS_S = TTL_S / 2
"""Time in seconds for which a client reads a queue, counted from its request for the lock that it was granted."""
SLACK_S = 4.0
"""Time in seconds by which a lock may outlive TTL_S: after an election, log time advances no further than the median
clock and the last entry allow."""
LATE_S = 10.0
"""Time in seconds after which a request that the client gave up is no longer carried out."""


class LockRequest(NamedTuple):
    """A lock request that is in flight: the client, the queues and the time in seconds at which it was sent."""

    client: str
    queues: tuple[GroupQueue, ...]
    at_s: float


class LockJudge:
    """Knows which client may hold which queue and reports wrong answers under the name `locks`."""

    def __init__(self, report: Report, now: Callable[[], float], exact: Callable[[], bool]) -> None:
        self._report, self._now, self._exact = report, now, exact
        self._reads: dict[GroupQueue, tuple[str, float, float]] = {}
        """Queue -> (client that reads it, start in seconds, end in seconds)."""
        self._may_hold: dict[GroupQueue, dict[str, float]] = defaultdict(dict)
        """Queue -> client -> latest time in seconds at which the client can hold the lock; infinity while its request
        is in flight."""
        self._lost: dict[GroupQueue, dict[str, float]] = defaultdict(dict)
        """Queue -> client -> latest time in seconds at which the client can hold the lock through a request that it
        gave up. Neither a later answer nor an unlock changes that time.
        """
        self._ended: dict[str, float] = {}
        """Client -> time in seconds at which its last lock request ended."""
        self._is_known: dict[str, Callable[[], bool]] = {}
        """Client -> function that tells whether every node knows the client. The lock of a client that some node does
        not know does not stop the commits of others."""

    def watch(self, client: str, is_known: Callable[[], bool]) -> None:
        """Registers a new client with the function that tells whether every node knows it."""
        self._is_known[client] = is_known

    # --- locks -------------------------------------------------------------------------------------------------------

    def asks(self, client: str, queues: Iterable[GroupQueue]) -> LockRequest:
        """Records that a client sends a lock request and returns it. The client sends the next one only after this one
        has ended."""
        asked = LockRequest(client, tuple(queues), self._now())
        for queue in asked.queues:
            self._may_hold[queue][client] = math.inf
        return asked

    def lost(self, asked: LockRequest) -> None:
        """Records that a lock request got no answer, or one that leaves the outcome unknown: it may still be
        granted."""
        self._ended[asked.client] = self._now()
        until = self._now() + LATE_S + TTL_S + SLACK_S
        for queue in asked.queues:
            self._lost[queue][asked.client] = until
            self._may_hold[queue][asked.client] = until

    def answered(self, asked: LockRequest, granted: Collection[GroupQueue]) -> None:
        """Records the answer to a lock request and reports grants and refusals that contradict what other clients
        hold."""
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

    def _granted(self, asked: LockRequest, queue: GroupQueue) -> None:
        reader, since, until = self._reads.get(queue, ("", 0.0, 0.0))
        if reader not in ("", asked.client) and until > self._now():
            left = f"which {reader} was granted and reads for {until - self._now():.2f} s more"
            self._wrong(f"{asked.client} was granted {named(queue)}, {left}")
        begun = since if reader == asked.client and until > self._now() else self._now()
        if asked.at_s + READS_S > self._now():
            self._reads[queue] = asked.client, begun, asked.at_s + READS_S

    def _refused(self, asked: LockRequest, queue: GroupQueue) -> None:
        for client in (*self._may_hold[queue], *self._lost[queue]):
            until = max(self._may_hold[queue].get(client, 0.0), self._lost[queue].get(client, 0.0))
            if client != asked.client and until >= asked.at_s:
                return
        self._wrong(f"{asked.client} was refused {named(queue)}, which nobody else can hold")

    def stops_reading(self, client: str, queues: Collection[GroupQueue] | None = None) -> None:
        """Records that the client no longer reads these queues (None: any queue), before it sends the unlock or
        leave."""
        for queue, (reader, _, _) in list(self._reads.items()):
            if reader == client and (queues is None or queue in queues):
                del self._reads[queue]

    def unlocked(self, client: str, queues: Iterable[GroupQueue]) -> None:
        """Records the answer that the client no longer holds these queues."""
        for queue in queues:
            self._may_hold[queue][client] = self._now()

    def deletes(self, group: str, topic: str | None = None) -> float:
        """Records that the group, or one of its topics, is about to be deleted: its queues are read no more. Returns
        the time in seconds that `deleted` needs."""
        for queue in [queue for queue in self._reads if self._is_of(queue, group, topic)]:
            del self._reads[queue]
        return self._now()

    def deleted(self, group: str, since_s: float, topic: str | None = None) -> None:
        """Records that a deletion is done: clients whose last lock request ended before it began (`since_s`) hold none
        of its queues."""
        for queue, clients in self._may_hold.items():
            if self._is_of(queue, group, topic):
                for client, until in clients.items():
                    if until < math.inf and self._ended[client] <= since_s:
                        clients[client] = since_s

    @staticmethod
    def _is_of(queue: GroupQueue, group: str, topic: str | None) -> bool:
        return queue[0] == group and topic in (None, queue[1])

    # --- what holders do ---------------------------------------------------------------------------------------------

    def reader(self, queue: GroupQueue) -> str | None:
        """Returns the client that may read the queue now; None if there is none."""
        reader, _, until = self._reads.get(queue, (None, 0.0, 0.0))
        return reader if until > self._now() else None

    def committed(self, client: str, queue: GroupQueue, asked_s: float) -> None:
        """Records that a client's commit was answered as done; reports it if another client is reading the queue."""
        reader, since, until = self._reads.get(queue, (client, 0.0, 0.0))
        known = self._is_known.get(reader, lambda: True)
        if reader != client and since < asked_s and until > self._now() and known():
            self._wrong(f"{client} committed an offset of {named(queue)}, which {reader} holds")

    def dropped(self, client: str, queue: GroupQueue, asked_s: float) -> None:
        """Records that a client's commit was dropped with the reason that another client holds the queue; reports it if
        this client holds the queue."""
        reader, since, until = self._reads.get(queue, ("", 0.0, 0.0))
        if reader == client and since < asked_s and until > self._now():
            self._wrong(f"{client} holds {named(queue)}, and its commit was dropped")

    def _wrong(self, what: str) -> None:
        if self._exact():
            self._report("locks", what)


def named(queue: GroupQueue) -> str:
    """Returns the queue's name for reports."""
    group, topic, queue_id = queue
    return f"{topic} queue {queue_id} (group {group})"

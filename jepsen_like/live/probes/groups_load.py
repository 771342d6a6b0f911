"""The load on topics of several groups of brokers: sends with and without keys, pulls and commits of each queue, and
members of consumer groups that share all queues."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import random
import time
from collections import defaultdict
from typing import TYPE_CHECKING

from jepsen_like.checkers.history_steps import TopicQueue
from jepsen_like.history import HistoryWriter, Op
from jepsen_like.live.nemeses.nemesis_interface import Counts
from jepsen_like.live.probes.broadcast_members import GROUP as WATCHERS
from jepsen_like.live.probes.broadcast_members import BroadcastMember
from jepsen_like.live.probes.lanes import PAUSE_S, Lanes
from jepsen_like.live.probes.recorded_sends import RecordedSends
from jepsen_like.live.subjects.raftmq_subject import RaftMQLogClient
from jepsen_like.live.subjects.subject import PlacedMessage
from raftmq.client.errors import RaftMQError
from raftmq.local.waiting import until
from raftmq_wire.queue_numbers import group_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from raftmq.client import AsyncClient
    from raftmq.client.consuming.consumer import AsyncConsumer
    from raftmq.local.local_users import ClientOptions

PROCESSES_FROM, SENDERS_FROM = 5_000_000, 6_000_000
KEYS = 64
KEYLESS_SHARE = 0.25
IN_FLIGHT_MAX = 128
"""The most sends of one topic that may be in flight. At most KEYS of them have a key, so keyed sends that wait for a
group of brokers that is away leave room for others.
"""
COMMIT_EVERY = 200
PULLERS = "pullers"
"""The consumer group whose queues have a lane each, which pulls and commits."""
MEMBERS = {"alone": 1, "pair": 2}
"""Beginning of the name of a consumer group -> the number of its members. The members use RaftMQ's consumer, as
programs do.
"""
IN_ORDER, IN_ORDER_MEMBERS = "in-order", 2
"""IN_ORDER: beginning of the name of the consumer group that reads in order, so that its members lock queues.
IN_ORDER_MEMBERS: the number of its members.
"""
BROADCAST_MEMBERS = 2
QUIET_S = 1.0
DRAIN_S = 90.0


class GroupsLoad(Lanes):
    """Sends and consumers of topics that lie in one or several groups of brokers. `start`, `send_to`, `read` and
    `finish` are called in the main thread; what it has measured may be read at any time."""

    def __init__(
        self, servers: str, options: ClientOptions, history: HistoryWriter, seed: int, rate: int, prefix: str = "g"
    ) -> None:
        """`rate`: sends per second to each topic. `prefix`: of all message ids."""
        super().__init__(history, random.Random(f"groups-{seed}"), PROCESSES_FROM)
        self._servers, self._options, self._rate, self._prefix = servers, options, rate, prefix
        self.sends = RecordedSends(history, SENDERS_FROM)
        """The sends, to all topics, with their counts."""
        self._sending = True
        self._senders: list[RaftMQLogClient] = []
        self._clients: list[AsyncClient] = []
        self._keys_busy: set[tuple[str, str]] = set()
        self.places: dict[tuple[str, str], list[int]] = defaultdict(list)
        """(topic, key) -> the queues in which its messages are, in the order in which these were first seen."""
        self.stored: dict[TopicQueue, set[int]] = defaultdict(set)
        """Queue -> offsets that were acknowledged."""
        self.acks_s: dict[int, list[float]] = defaultdict(list)
        """Group of brokers -> the moments (monotonic) of its acknowledgements."""
        self.handed_s: dict[int, list[float]] = defaultdict(list)
        """Group of brokers -> the moments at which members of consumer groups got messages of its queues."""
        self.committed_s: dict[int, list[float]] = defaultdict(list)
        """Group of brokers -> the moments at which the member of "alone" had committed a message of its queues."""
        self.handed: dict[str, dict[TopicQueue, set[int]]] = {name: defaultdict(set) for name in MEMBERS}
        """Consumer group ("alone", "pair" or IN_ORDER) -> queue -> offsets that its members got."""
        self._highest: dict[TopicQueue, int] = {}
        """Queue -> the highest offset of which the members of IN_ORDER got the message."""
        self.watchers: list[BroadcastMember] = []
        """The members of the group that reads by broadcasting, if there is one."""
        self.again = 0
        """Number of messages that a consumer group got again."""
        self.pulled: set[TopicQueue] = set()
        """The queues that are pulled, or were."""
        self._left: set[int] = set()
        """The groups of brokers whose queues are no longer pulled."""
        self.wrong: list[str] = []
        """Descriptions of broken promises that consumers saw."""

    def start(self) -> None:
        """Makes the client that the pulling lanes share. Must be called before any lane is added."""
        self._connect(self._servers, self._options)

    @property
    def counts(self) -> Counts:
        """The counts of sends so far."""
        return self.sends.counts

    # --- sends -------------------------------------------------------------------------------------------------------

    def send_to(self, topic: str) -> None:
        """Begins to send to the topic."""
        self.add(self._send(topic, f"{self._prefix}{len(self._tasks)}"))

    async def _send(self, topic: str, writer: str) -> None:
        loop = asyncio.get_running_loop()
        client = RaftMQLogClient(self._servers, self._options)
        self._senders.append(client)
        begun, due, in_flight = loop.time(), 0.0, set[asyncio.Future[PlacedMessage]]()
        for number in itertools.count(1):
            while due < 1 or len(in_flight) >= IN_FLIGHT_MAX:
                await asyncio.sleep(0.01)
                if not self._sending:
                    return
                due = min(10.0, due + (loop.time() - begun) * self._rate)  # sends without room are not made up for
                begun = loop.time()
            due -= 1
            key = self.free_key(topic)
            value = {"topic": topic, "id": f"{writer}-{number:07d}"}
            invoked = self.sends.begin(value)
            outcome = await client.submit(value["id"], topic, key)
            in_flight.add(outcome)
            outcome.add_done_callback(in_flight.discard)
            outcome.add_done_callback(functools.partial(self.settle, invoked, key))

    def free_key(self, topic: str) -> str | None:
        """Returns a key without a send in flight, or None for a message without a key. Like a program that needs the
        messages of a key in order, the load waits for the outcome of a key's send before the next one.
        """
        key = f"key-{self._rng.randrange(KEYS)}"
        if self._rng.random() < KEYLESS_SHARE or (topic, key) in self._keys_busy:
            return None
        self._keys_busy.add((topic, key))
        return key

    def settle(self, invoked: Op, key: str | None, done: asyncio.Future[PlacedMessage]) -> None:
        """Records the outcome of a send."""
        outcome = self.sends.end(invoked, done)
        if key is not None and outcome is not None:
            self._keys_busy.remove((invoked.value["topic"], key))  # after an unknown outcome the key stays busy
        if isinstance(outcome, PlacedMessage):
            self._note_stored(invoked, key, outcome)

    def _note_stored(self, invoked: Op, key: str | None, placed: PlacedMessage) -> None:
        topic = invoked.value["topic"]
        self.stored[topic, placed.queue_id].add(placed.queue_offset)
        self.acks_s[group_of(placed.queue_id)].append(time.monotonic())
        if key is not None and placed.queue_id not in self.places[topic, key]:
            self.places[topic, key].append(placed.queue_id)

    # --- consumers ---------------------------------------------------------------------------------------------------

    def pull(self, topic: str, queues: Iterable[int]) -> None:
        """Begins to pull these queues and to commit what was pulled."""
        fresh = [queue for queue in queues if (topic, queue) not in self.pulled]
        self.pulled |= {(topic, queue) for queue in fresh}
        self.add(*(self.consume(PULLERS, topic, queue, f"{topic}-") for queue in fresh))
        for member in self.watchers:
            self._watch(member, topic, fresh)

    def broadcast(self, topics: Sequence[str], ports: Sequence[int]) -> None:
        """Starts the members of a consumer group that reads by broadcasting. Each reads all queues that are pulled now
        or later. `ports`: the client ports of all nodes.
        """
        self.watchers = [BroadcastMember(str(number), self._pull, ports) for number in range(BROADCAST_MEMBERS)]
        for member in self.watchers:
            self.add(member.beat(topics))
            for topic, queue in sorted(self.pulled):
                self._watch(member, topic, [queue])

    def _watch(self, member: BroadcastMember, topic: str, queues: Iterable[int]) -> None:
        self.add(*(member.read(topic, queue, functools.partial(self._is_over, topic, queue)) for queue in queues))

    def unseen(self, group: int) -> list[str]:
        """Returns a line for each queue of the group of brokers with acknowledged messages that a member of the
        broadcasting group did not get.
        """
        return [
            f"member {member.name} of {WATCHERS!r} never got {len(lost)} acknowledged messages of {topic}/{queue}, the "
            f"first at {min(lost)}"
            for member in self.watchers
            for (topic, queue), offsets in sorted(self.stored.items())
            if group_of(queue) == group and (lost := offsets - member.seen[topic, queue])
        ]

    def leave(self, group: int) -> None:
        """Stops pulling the queues of a group of brokers."""
        self._left.add(group)

    def _is_over(self, topic: str, queue_id: int) -> bool:
        return group_of(queue_id) in self._left

    def read(self, topics: Sequence[str]) -> None:
        """Starts the members of consumer groups that read these topics."""
        self.add(*(self._read(name, topics) for name, count in MEMBERS.items() for _ in range(count)))

    async def _read(self, group: str, topics: Sequence[str]) -> None:
        """Runs a member of a consumer group, which commits from time to time. After an error it opens a new consumer,
        as a program would.
        """
        from raftmq.client import aconnect

        client = aconnect(self._servers, **self._options)
        self._clients.append(client)
        floor: dict[TopicQueue, int] = {}
        while not self._stopping:
            try:
                async with client.consumer(f"{group}-{topics[0]}", topics) as consumer:
                    while not self._stopping:
                        await self.take_some(group, consumer, floor)
            except RaftMQError:
                await asyncio.sleep(PAUSE_S)

    def read_in_order(self, topics: Sequence[str]) -> None:
        """Starts the members of the consumer group that reads these topics in order."""
        self.handed[IN_ORDER] = defaultdict(set)
        self.add(*(self._read_in_order(topics) for _ in range(IN_ORDER_MEMBERS)))

    async def _read_in_order(self, topics: Sequence[str]) -> None:
        from raftmq.client import aconnect

        client = aconnect(self._servers, **self._options)
        self._clients.append(client)
        while not self._stopping:
            try:
                async with client.consumer(f"{IN_ORDER}-{topics[0]}", topics, ordered=True) as consumer:
                    while not self._stopping:
                        message = await consumer.poll(QUIET_S)
                        if message is not None:
                            self.take_in_order((message.topic, message.queue_id), message.queue_offset)
                            await consumer.commit(message)
            except RaftMQError:
                await asyncio.sleep(PAUSE_S)

    def take_in_order(self, queue: TopicQueue, offset: int) -> None:
        """Records a message of the consumer group that reads in order. A new message must follow the last one; a
        message that was not acknowledged may be delivered again."""
        highest, handed = self._highest.get(queue, -1), self.handed[IN_ORDER][queue]
        if offset not in handed and offset != highest + 1:
            self.wrong.append(f"{IN_ORDER!r}: of {queue[0]}/{queue[1]} came offset {offset} after {highest}")
        self.again += offset in handed
        handed.add(offset)
        self._highest[queue] = max(highest, offset)

    async def take_some(self, group: str, consumer: AsyncConsumer, floor: dict[TopicQueue, int]) -> None:
        """Takes some messages and commits them. The only member of a group must never get a message again that it has
        committed.
        """
        taken: dict[TopicQueue, int] = {}
        for _ in range(COMMIT_EVERY):
            message = await consumer.poll(QUIET_S)
            if message is None:
                break
            queue, offset = (message.topic, message.queue_id), message.queue_offset
            if MEMBERS[group] == 1 and offset < floor.get(queue, 0):
                self.wrong.append(
                    f"{group!r} committed {queue[0]}/{queue[1]} up to {floor[queue]}, and then got offset {offset}"
                )
            self.again += offset in self.handed[group][queue]
            self.handed[group][queue].add(offset)
            self.handed_s[group_of(message.queue_id)].append(time.monotonic())
            taken[queue] = offset + 1
        if taken:
            await consumer.commit()
            for queue, offset in taken.items():
                floor[queue] = max(offset, floor.get(queue, 0))
                if MEMBERS[group] == 1:
                    self.committed_s[group_of(queue[1])].append(time.monotonic())

    # --- the end -----------------------------------------------------------------------------------------------------

    def missing(self) -> list[str]:
        """Returns a line for each queue with acknowledged messages that no member of a consumer group got."""
        return [
            f"{name!r} never got {len(lost)} acknowledged messages of {topic}/{queue}, the first at {min(lost)}"
            for name, handed in self.handed.items()
            for (topic, queue), offsets in sorted(self.stored.items())
            if (lost := offsets - handed[topic, queue])
        ]

    def finish(self) -> list[str]:
        """Stops sending, waits until all sends have an outcome and consumers have got everything, and ends the load.
        Returns a line for each queue with messages that consumers did not get (`missing`, `unseen`), for each wrong
        answer to a member of the broadcasting group, and for sends without an outcome.
        """
        self._sending = False
        until(lambda: self.sends.counts.in_flight == 0, DRAIN_S, 0.05)
        until(lambda: not self.missing(), DRAIN_S, 0.2)
        until(lambda: not any(map(self.unseen, {*self.acks_s} - self._left)), DRAIN_S if self.watchers else 0.0, 0.2)
        missing = self.missing() + [each for group in {*self.acks_s} - self._left for each in self.unseen(group)]
        missing += [each for member in self.watchers for each in member.wrong]
        if self.sends.counts.in_flight:
            missing.append(f"{self.sends.counts.in_flight} sends never had an outcome")
        self.stop()
        return missing

    async def _stop(self) -> None:
        for member in self.watchers:
            member.stopped = True
        await super()._stop()
        for close in [client.close for client in self._senders] + [client.close for client in self._clients]:
            with contextlib.suppress(RaftMQError):
                await close()

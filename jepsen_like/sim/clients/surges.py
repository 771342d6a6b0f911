"""Surges: one client (the surge) sends more than the log can take, and a quiet client sends a little at the same time.
Neither may suffer more than is fair.

During the faults, bursts come at random times. After the heal, with slowed disks, there are three stages:

- **A burst**: the surge sends many messages at once. That is no overload, so none is refused. A send of the quiet
  client does not wait for all of them: of the surge's messages that are in the leader's queue when it arrives, at most
  half are stored before it.
- **Two bursts**: the quiet client sends a burst too, on one connection beside the surge's three. Before the last of its
  messages is stored, at most twice as many of the surge's are.
- **An overload**: twice as much arrives as is acknowledged, until the leader refuses some sends. None of the quiet
  client's sends is refused then, and each is answered. Some sends of the surge come twice, on two connections.

In the end no refused send is stored. Each acknowledged one is stored once, where its answer said, and those of one
connection are stored in their order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from jepsen_like.client_kit.fields import foreign_send, topic_fields
from jepsen_like.client_kit.frames import Answer
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import SEND_CODE, ClientHost
from jepsen_like.sim.clients.history_recorder import stored_at
from jepsen_like.sim.clients.raw_client import RawConnection
from jepsen_like.sim.clients.single_request import Asker, dial
from jepsen_like.sim.clients.stored_messages import stored_on
from raftmq_wire.codes import RequestCode, ResponseCode, is_unknown

if TYPE_CHECKING:
    from jepsen_like.sim.machines.machine import Machine

TOPICS = ("surge", "surge-beside")
BURST, SMALL_BURST = 120, 40
"""BURST: number of sends in a burst of the surge after the heal. SMALL_BURST: the same during the faults."""
BESIDE_BURST = 30
"""Number of sends in the quiet client's own burst."""
CONNECTIONS = 3
"""Number of connections of the surge."""
QUIET_EVERY_S, QUIET_SENDS = 0.1, 6
TICK_S = 0.02
LOOK_S = 0.001
"""Time in seconds between two looks at the leader's queue."""
SENDS_PER_TICK = 100
TWICE_PER_TICK = 2
"""Number of sends of the surge per tick that are sent twice, once some sends are refused."""
WAITING_MAX = 1_000
"""Number of unanswered sends of the surge from which on it sends no more."""
CALM_S = 3.0
"""Time in seconds after which an earlier overload is over: longer than `admission_limit.LEAVE_MS`."""
OVERLOAD_S = 20.0
"""Time in seconds within which an overload is noticed at the latest: entries are few on a slow disk, and so are the
intervals that can be compared."""
MORE_S = 2.0
"""Time in seconds for which the overload goes on after the first refusal."""
ANSWERED_S = 12.0
"""Time in seconds within which each send is answered: it waits send.deadline_ms at most."""
MANY_OTHERS = 10
"""Number of waiting sends of other clients from which on those clients compete with the surge for the log."""
SLOW_S = 0.04
"""Time in seconds that the slowest operation of a lane takes while disks are slower."""
BUSY = ResponseCode.SYSTEM_BUSY


class AnsweredSend(NamedTuple):
    """The answer to one send of the surge or of the quiet client."""

    topic: str
    code: int
    remark: str
    queue_offset: int
    position: int
    """Byte position of the message in the log. Like `queue_offset`, it is -1 if the message is not stored."""

    @property
    def unknown(self) -> bool:
        return is_unknown(self.code, self.remark)

    @property
    def says(self) -> int:
        """Rank of the answer. An answer that proves more about what is stored has a higher rank."""
        return 2 if self.code == ResponseCode.SUCCESS else int(self.unknown)


class Surges(Asker):
    """The surge and the quiet client. Setting `stopped` ends the bursts; `play` begins the stages after the heal.
    `done` is True when all that was begun has ended."""

    def __init__(
        self,
        host: ClientHost,
        quiet: ClientHost,
        report: Report,
        machines: Callable[[], list[Machine]],
        leads: Callable[[], tuple[int, int] | None],
        queued: Callable[[], set[str]],
        crowded: Callable[[], bool],
        others: Callable[[], int],
    ) -> None:
        """`quiet`: the host of the client that sends a little. The functions return: `machines`, the members; `leads`,
        (term, node) of the leader that takes writes, None without one; `queued`, the ids of the surges' messages that
        wait in the leader's queue; `crowded`, True if the leader holds more bytes of sends than its limit, or refuses
        sends; `others`, the number of other clients' sends that wait in the leader's queue.
        """
        super().__init__(host, report)
        self._quiet, self._machines, self._leads, self._queued = quiet, machines, leads, queued
        self._crowded, self._others = crowded, others
        self._sent = self._twice = 0
        self._pid = self.rng.randbytes(16).hex()
        self._quiet_ended = True
        self.answers: dict[str, AnsweredSend] = {}
        """Id -> the answer; for a send that was sent twice, the answer with the highest rank (`AnsweredSend.says`).
        Sends without an answer are left out.
        """
        self._lines: dict[RawConnection, list[str]] = {}
        """Connection -> ids of the messages that were sent on it, in order. Messages that were sent twice are left out.
        """
        topics = TOPICS if host.options.users else (TOPICS[0],)
        self._topic_beside = topics[-1]  # with users, all these clients are one user with two topics

    def play(self) -> None:
        """Begins the stages after the heal."""
        self._spawn(self._play)

    async def _work(self) -> None:
        rng = random.Random(self.rng.random())
        while not self.stopped:
            await asyncio.sleep(rng.uniform(0.5, 2.5))
            connections = await self._dial_all(rng, self.host.nodes)
            if connections and await self._topics_made(connections[0]):
                self._send(rng, connections, SMALL_BURST)
                await asyncio.sleep(rng.uniform(0.2, 1.5))
            for connection in connections:
                connection.transport.close()

    async def _dial_all(self, rng: random.Random, nodes: list[str]) -> list[RawConnection]:
        made = [await dial(self.host, rng.choice(nodes), "a surge", self._report) for _ in range(CONNECTIONS)]
        return [connection for connection in made if connection is not None]

    async def _dial_beside(self, node: str) -> RawConnection | None:
        """Connects to the node from the machine of the quiet client; returns None if that fails."""
        made: list[RawConnection | None] = []
        dialled = asyncio.Event()

        async def run() -> None:
            made.append(await dial(self._quiet, node, "a quiet client", self._report))
            dialled.set()

        self._quiet.spawn(run)
        await dialled.wait()
        return made[0]

    async def _topics_made(self, connection: RawConnection) -> bool:
        for topic in TOPICS:
            answer = await self._ask(connection, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topic, 1))
            if answer is None or answer.code != ResponseCode.SUCCESS:
                return False
        return True

    def _send(self, rng: random.Random, connections: list[RawConnection], count: int) -> list[str]:
        """Sends messages of the surge without waiting for answers. Returns their ids."""
        size, names = self._size(), list[str]()
        parts: dict[RawConnection, list[bytes]] = {}
        for _ in range(count):
            connection = rng.choice(connections)
            self._sent += 1
            name = f"surge-{self._sent}"
            names.append(name)
            self._lines.setdefault(connection, []).append(name)
            parts.setdefault(connection, []).append(self._frame(connection, TOPICS[0], name, size))
        for connection, frames in parts.items():
            connection.write(b"".join(frames))
        return names

    def _send_twice(self, rng: random.Random, connections: list[RawConnection], count: int) -> None:
        """Sends messages of the surge, each on two connections."""
        for _ in range(count):
            self._twice += 1
            name, size = f"twice-{self._twice}", self._size()
            for connection in rng.sample(connections, min(2, len(connections))):
                connection.write(self._frame(connection, TOPICS[0], name, size, sequence=self._twice))

    def _size(self) -> int:
        return min(1500, self.host.options.batch_bytes_max // 4)

    def _frame(
        self,
        connection: RawConnection,
        topic: str,
        name: str,
        size: int,
        told: Callable[[], None] | None = None,
        *,
        sequence: int = 0,
    ) -> bytes:
        """Returns the frame of one send. `told` is called once the answer is recorded. `sequence`: the producer's
        sequence number, by which nodes recognize a repetition; 0: the send has no identity.
        """

        def heard(answer: Answer) -> None:
            offset = position = -1
            if answer.code == ResponseCode.SUCCESS:
                offset, position = stored_at(answer)[1], int(answer.ext["msgId"][-16:], 16)
            sent = AnsweredSend(topic, answer.code, answer.remark or "", offset, position)
            # If one of two copies is refused, the other may still be stored.
            self.answers[name] = max(self.answers.get(name, sent), sent, key=lambda each: each.says)
            if told is not None:
                told()

        ext = foreign_send(topic, name, 0) | {"i": ""}
        if sequence:
            ext |= {"raftmqPid": self._pid, "raftmqSeq": str(sequence), "raftmqLow": "1"}
        return connection.frame(SEND_CODE, ext, self.host.body(topic, name, size), heard=heard)

    # --- after the heal ----------------------------------------------------------------------------------------------

    async def _play(self) -> None:
        rng = random.Random(self.rng.random())
        nodes = [machine.host for machine in self._machines()]  # a removed one may be off: dialling it would wait
        connections = await self._dial_all(rng, nodes)
        beside = await self._dial_beside(rng.choice(nodes))
        if not connections or beside is None or not await self._topics_made(connections[0]):
            return
        slow = max(self.host.options.disk_s[1], self.host.options.apply_s[1])
        for machine in self._machines():
            machine.disk_factor = max(1.0, SLOW_S / slow)
        try:
            await asyncio.sleep(CALM_S)
            reign = self._leads()
            await self._burst(rng, connections, beside, reign)
            await self._two_bursts(rng, connections, beside, reign)
            await self._overload(rng, connections, beside, reign)
        finally:
            for machine in self._machines():
                machine.disk_factor = 1.0
            for connection in (*connections, beside):
                connection.transport.close()

    async def _burst(
        self, rng: random.Random, connections: list[RawConnection], beside: RawConnection, reign: object
    ) -> None:
        crowded = self._crowded()  # crowded by other clients while disks are slower (seeds 956500026, 958000003)
        others = self._others()  # other clients go on while the burst waits (seed 982200031)
        names = self._send(rng, connections, BURST)
        await asyncio.sleep(TICK_S)
        for _ in range(QUIET_SENDS):
            asking = asyncio.ensure_future(self._ask_beside(beside))
            # The messages that waited when the send was sent do not count. A change of a topic may propose all of them
            # before the send arrives.
            before = await self._others_before(f"quiet-{self._sent + 1}", asking) & set(names)
            sent = self.answers.get(await asking)
            if len(before) < BURST // 3 or sent is None or sent.code != ResponseCode.SUCCESS or self._leads() != reign:
                break
            answered = [self.answers[name] for name in before if name in self.answers]
            sooner = sum(-1 < other.position < sent.position for other in answered)
            if 2 * sooner > len(before):
                self._report("flow", f"a send waited for {sooner} of {len(before)} of another client")
                return
        await self._answered(connections)
        refused = [name for name in names if (sent := self.answers.get(name)) and _for_overload(sent)]
        many = max(others, self._others()) >= MANY_OTHERS  # the others send more than the log takes (seed 960000020)
        if refused and not crowded and not many:
            self._report("flow", f"{len(refused)} sends of a burst are refused: {self.answers[refused[0]].remark}")

    async def _others_before(self, name: str, asking: asyncio.Future[str]) -> set[str]:
        """Waits until the send `name` is in the leader's queue. Returns the ids of the surge's messages that are there
        then; an empty set if the send was never seen there.
        """
        while not asking.done():
            queued = self._queued()
            if name in queued:
                return queued
            await asyncio.sleep(LOOK_S)
        return set()

    async def _two_bursts(
        self, rng: random.Random, connections: list[RawConnection], beside: RawConnection, reign: object
    ) -> None:
        many = set(self._send(rng, connections, BURST))
        few = {f"quiet-{self._sent + number}" for number in range(1, BESIDE_BURST + 1)}
        self._sent += BESIDE_BURST
        self._lines.setdefault(beside, []).extend(sorted(few))
        topic, size = self._topic_beside, self._size()
        beside.write(b"".join(self._frame(beside, topic, name, size) for name in sorted(few)))
        await asyncio.sleep(TICK_S)
        queued = self._queued()
        many, few = many & queued, few & queued
        await self._answered([*connections, beside])
        stored = {name: sent.position for name in many | few if (sent := self.answers.get(name)) and sent.position >= 0}
        if len(few) < BESIDE_BURST // 2 or stored.keys() < many | few or self._leads() != reign:
            return
        last = max(stored[name] for name in few)
        sooner = sum(stored[name] < last for name in many)
        if sooner > 2 * len(few):
            self._report("flow", f"{len(few)} sends of one client waited for {sooner} of another")

    async def _overload(
        self, rng: random.Random, connections: list[RawConnection], beside: RawConnection, reign: object
    ) -> None:
        now = self.host.loop
        began_s, seen_s, before = now.now, 0.0, len(self.answers)
        quiet_s = now.now
        while self._leads() == reign and not all(connection.closed for connection in connections):
            fresh = list(self.answers.values())[before:]
            before += len(fresh)
            if not seen_s and any(map(_for_overload, fresh)):
                seen_s = now.now
            stored = sum(sent.code == ResponseCode.SUCCESS for sent in fresh)
            if sum(len(connection.unanswered) for connection in connections) < WAITING_MAX:
                self._send(rng, connections, min(SENDS_PER_TICK, 2 * stored + 1))
            if seen_s:
                self._send_twice(rng, connections, TWICE_PER_TICK)
            await asyncio.sleep(TICK_S)
            if seen_s and self._quiet_ended and now.now >= quiet_s + QUIET_EVERY_S:
                quiet_s, self._quiet_ended = now.now, False
                self._spawn(lambda: self._not_refused(beside, reign))
            if seen_s and now.now > seen_s + MORE_S:
                break
            if not seen_s and now.now > began_s + OVERLOAD_S:
                if len(self._queued()) > WAITING_MAX // 2:
                    much = f"twice what is acknowledged arrives for {OVERLOAD_S:.0f} s"
                    self._report("flow", f"{much}, and nothing is refused")
                break
        await self._answered(connections)

    async def _not_refused(self, beside: RawConnection, reign: object) -> None:
        # If many clients compete for a few messages per second, ten per second are more than a fair share (seed
        # 960500021).
        many = self._outnumbered()
        sent = self.answers.get(await self._ask_beside(beside))
        self._quiet_ended = True
        many = many or self._outnumbered()
        if sent is not None and sent.code != ResponseCode.SUCCESS and self._leads() == reign and not many:
            self._report("flow", f"a send of a client that sends little is refused: {sent.code} {sent.remark}")

    def _outnumbered(self) -> bool:
        """Returns True if more sends of other clients than of the surge wait in the leader's queue."""
        return len(self._queued()) < self._others()

    async def _ask_beside(self, connection: RawConnection) -> str:
        """Sends one message of the quiet client. Returns its id, or "" if no answer came within ANSWERED_S seconds,
        which is reported if the connection still works."""
        self._sent += 1
        name, told = f"quiet-{self._sent}", asyncio.Event()
        connection.write(self._frame(connection, self._topic_beside, name, 20, told.set))
        try:
            async with asyncio.timeout(ANSWERED_S):
                await told.wait()
        except TimeoutError:
            if not connection.closed and not connection.transport.leads_nowhere:
                self._report("flow", f"{name} has no answer after {ANSWERED_S:.0f} s")
            return ""
        return name

    async def _answered(self, connections: list[RawConnection]) -> None:
        """Waits until each send on these connections that are still open is answered. Reports if that takes more than
        ANSWERED_S seconds, unless one of the connections leads nowhere."""
        end = self.host.loop.now + ANSWERED_S
        while any(connection.unanswered and not connection.closed for connection in connections):
            if self.host.loop.now > end:
                if not any(connection.transport.leads_nowhere for connection in connections):
                    self._report("flow", f"sends of a surge have no answer after {ANSWERED_S:.0f} s")
                return
            await asyncio.sleep(TICK_S)

    # --- the end -----------------------------------------------------------------------------------------------------

    def judge(self) -> None:
        """Compares what a replica has with the answers; the replicas are equal."""
        machine = self._machines()[0]
        for topic in TOPICS:
            messages, trimmed = stored_on(machine, topic)
            places: dict[str, list[int]] = {}
            for message in messages:
                places.setdefault(message.body.split()[0].decode(), []).append(message.queue_offset)
            lowest = min((offset for offsets in places.values() for offset in offsets), default=1 << 60)
            for name, sent in self.answers.items():
                if sent.topic != topic or sent.unknown:
                    continue
                found = places.get(name, [])
                if sent.code != ResponseCode.SUCCESS:
                    right = not found
                else:
                    right = found == [sent.queue_offset] or (trimmed and not found and sent.queue_offset < lowest)
                if not right:
                    self._report("flow", f"{name} of {topic} was answered {sent}, and stands at {found}")
                    return
        for names in self._lines.values():
            stored = [name for name in names if name in self.answers and self.answers[name].position >= 0]
            for sooner, later in pairwise(stored):
                if self.answers[sooner].position >= self.answers[later].position:
                    self._report("flow", f"{later} stands before {sooner}, which its connection brought first")
                    return


def _for_overload(sent: AnsweredSend) -> bool:
    """Returns True if the send was refused because more arrives than the log takes."""
    return sent.code == BUSY and "flow.house_ms" in sent.remark
